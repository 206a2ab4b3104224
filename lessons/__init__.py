"""The lessons, and what the ``__main__.py`` of each calls."""

from pathlib import Path
from typing import Any


def run(main: str, own: Any = None) -> None:
    """Run the lesson whose ``__main__.py`` this is; interrupted while modules load, it ends without a traceback."""
    try:
        from common.cli import lesson_main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    raise SystemExit(lesson_main(Path(main).parent.name, own=own))

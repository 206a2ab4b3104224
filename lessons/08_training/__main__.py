from importlib import import_module
from pathlib import Path

try:
    from common.cli import lesson_main

    own = import_module(".network.commands", __package__).COMMANDS
except KeyboardInterrupt:
    raise SystemExit(130) from None

raise SystemExit(lesson_main(Path(__file__).parent.name, own=own))

"""Python in processes of their own, and what a terminal shows."""

import subprocess
import sys

from rich.console import Console

from common.catalog import catalog


def python(*words, code=0, cwd=catalog.ROOT, timeout=1200, **options):
    """The process that ran Python with these words, in the checkout; it must end with this exit code, if not None."""
    words = [sys.executable, *map(str, words)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=timeout, **options)
    assert code in (None, done.returncode), done.stdout[-2000:] + done.stderr[-2000:]
    return done


def shown(part, width=100):
    """The text of a part on a terminal of this width."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(part)
    return capture.get()

"""The harness: finds, checks, times and draws the lessons' kernels. Kernels know nothing of it.

``cli`` is the command line. Below it lie layers; each imports from itself and from those below it:

    commands/      each command: arguments, progress, printing
    grade/         other people's files
    edit/          the edit loop: save, and hear what came of it
    report/        charts, tables and pages; the book as a site, a trace as a page
    records/       what was measured, on which GPU
    timing/        how fast a kernel is
    check/         whether it is right
    trace/         the tracer
    run/           child processes: what they are asked, and what they answer
    machine_code/  what a kernel became
    explain/       what went wrong, in words
    catalog/       lessons, problems, right answers, limits, files

    cli            the command line
"""

import os
import sys

import lessons  # noqa: F401 - while the checkout is looked through first: another package may have this name

# Started with -m in the checkout, Python looks there first: a file that somebody left there would be taken for one of
# the standard library's. Both modules are in memory by now.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for _path in [path for path in sys.path if os.path.abspath(path) == _ROOT]:
    sys.path.remove(_path)
    sys.path.append(_path)

from importlib.util import find_spec  # noqa: E402 - after the path

# An interpreter of one's own may lack some: one line says so, not a traceback from the depths.
_NEEDED = ("matplotlib", "msgspec", "numba", "numba_cuda", "numpy", "rich")
_BEFORE_3_11 = ("tomli",) if sys.version_info < (3, 11) else ()
_missing = ", ".join(name for name in (*_NEEDED, *_BEFORE_3_11) if find_spec(name) is None)
if _missing:
    _venv, _how = os.path.join(_ROOT, ".venv"), "`make` without PYTHON=... installs all packages"
    if os.path.isdir(_venv) and os.path.dirname(os.path.dirname(os.path.abspath(sys.executable))) != _venv:
        _how = "they are in .venv: `. .venv/bin/activate`, once"
    print(f"{sys.executable} lacks {_missing}: {_how}", file=sys.stderr)
    raise SystemExit(2)

"""Which wrong kernels does each shape of a check find? python tests/kill_matrix.py [LADDER ...] [--drawn N].

Tries those of ``tests/mutants`` at every line of ``common/check/shapes.toml`` on the tracer, and prints of each line
how many it finds alone, how many at all, and milliseconds of a right kernel: one that finds none alone may go, unless
it is there for how far out it lies. For a kernel that no line finds it tries other shapes, its own, those of ``check
--full`` and N drawn ones, and prints the first at which it fails: the line to add.
"""

import argparse
import itertools
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import classes
from msgspec.structs import replace
from mutants import Mutant

from common.catalog import catalog, problems
from common.check import plan, tasks
from common.explain import diagnose
from common.run import child
from common.run.messages import Check

SECONDS = 6.0  # of a kernel at a line: one that takes longer is not found there
NO_FINDING = (*classes.ENDED, "unjudged")
# A right kernel by ladder, whose time is a line's cost: an ordinary one, not the quickest to trace.
RIGHT = {
    "gemm": "gemm_register_blocked", "conv2d": "conv2d_register_tiled", "conv3d": "conv3d_implicit_gemm",
    "hgemm": "hgemm_shared", "hconv3d": "hconv3d_mma", "dgrad": "dgrad_implicit_gemm",
    "wgrad": "wgrad_implicit_gemm", "igemm": "igemm_mma", "fp8gemm": "fp8gemm_wgmma", "bfgemm": "bfgemm_mma",
    "iconv3d": "iconv3d_direct",
}  # fmt: skip
LISTS = ("covering", "tiled", "layers", "familiar")
Line = tuple[Check, ...]  # one shape, or two that one module is asked for one after the other


class _Late(BaseException):
    pass


def _stop(*_: object) -> None:
    raise _Late


def lines(ladder: str) -> dict[str, Line]:
    """What ``shapes.toml`` has for a ladder: each line with its cases."""
    rest = iter(plan.chosen(ladder))
    written = plan.store.read_toml(plan.SHAPES)[ladder]
    return {line: tuple(case for case, _ in itertools.islice(rest, line.count(" then ") + 1)) for line in written}


def finds(kernel: Mutant, line: Line) -> bool:
    """Does the kernel, imported anew, fail at a line, and for a reason of its own?"""
    tasks._kept.clear()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        for case in line:
            result = classes.ask(classes.asked(kernel, case))
            if result.status not in NO_FINDING and classes.own_reason(kernel, result):
                return True
    except _Late:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def others(kernel: Mutant, drawn: int) -> Iterator[Line]:
    """Shapes that may find a kernel which no line finds, its own first."""
    yield tuple(plan.case(problem, "traced") for problem in kernel.shapes)
    listed: Sequence[problems.Problem] = [one for name in LISTS for one in plan.listed(name, kernel.ladder)]
    for problem in (*listed, *plan.drawn(kernel.ladder, 1, drawn)):
        yield (plan.case(problem, "traced"),)


def milliseconds(ladder: str, line: Line) -> float:
    """Of a right kernel at a line."""
    path, began = catalog.find(RIGHT[ladder]).path, time.process_time()
    for case in line:
        child.attempt(replace(case, path=str(path), repeats=1))
    return 1e3 * (time.process_time() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ladders", nargs="*", help="default: all")
    parser.add_argument("--drawn", type=int, default=100, help="shapes for a kernel that no line finds")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    with mock.patch.object(diagnose, "explain", return_value=""):
        for ladder in options.ladders or RIGHT:
            kernels = [one for one in classes.corpus() if one.ladder == ladder and one.shown.get("compiles", True)]
            found = {text: {one.name for one in kernels if finds(one, line)} for text, line in lines(ladder).items()}
            for text, line in lines(ladder).items():
                elsewhere = set().union(*(names for other, names in found.items() if other != text))
                alone, cost = len(found[text] - elsewhere), milliseconds(ladder, line)
                print(f"{ladder}: {text}  # {alone}, {len(found[text])}, {cost:.0f} ms", flush=True)
            for kernel in kernels:
                if not any(kernel.name in names for names in found.values()):
                    lacking = (line for line in others(kernel, options.drawn) if finds(kernel, line))
                    best = " then ".join(str(case.problem) for case in next(lacking, ())) or "no shape tried"
                    print(f"{ladder}: {kernel.name} is found by no line, and at {best}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

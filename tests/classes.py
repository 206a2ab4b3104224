"""How many wrong kernels of each class the check finds: python tests/classes.py [NAME or CLASS ...] [--seed N].

Every kernel of ``tests/wrong_kernels`` with a ``Class:`` line goes through a check without a GPU as
:mod:`common.check.plan` has it, up to the first case that is not right; what passes is compiled, as a check does.
Many share a process, so a kernel costs what its cases cost. Prints a table of classes with kernels tried and found,
and those that pass.
"""

import argparse
import ast
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common.catalog import catalog, device, problems
from common.catalog.problems import Problem
from common.check import plan, shapes
from common.jobs import run
from common.jobs.messages import Check, Compile
from common.run import child
from common.run.messages import ShapeTask

FOLDER = Path(__file__).parent / "wrong_kernels"
CLASSES = ("shapes", "values", "state", "order", "zero", "sound", "gpu", "refusal")
# How many kernels there are of each, and which of them a check without a GPU lets pass.
SIZES = {"shapes": 138, "values": 39, "state": 24, "order": 9, "zero": 14, "sound": 66, "gpu": 25, "refusal": 12}
PASSING = {
    # threads or blocks store one element twice, and equal values: a waste, and conv2d_register_tiled and
    # conv2d_layer_dispatch do so, too, where a tile reaches beyond the output
    "conv3d_pixels_by_two_blocks", "gemm_idle_threads_repeat_the_last", "gemm_overlapping_blocks",
    "gemm_two_blocks_for_each_tile",
}  # fmt: skip
ENDED = ("right", "refused")  # what a case says of a kernel that may be right

_DOCSTRING = re.compile(r"(?P<says>[A-Z\w].+\.)\n\nClass: (?P<kind>\w+)\nRefute: (?P<refute>\{.+\})\s*", re.DOTALL)
# An ordinary shape of a ladder, of no condition that a kernel here is wrong under.
_ORDINARY = {
    "gemm": "M=7 N=5 K=6",
    "conv2d": "N=1 C=2 H=9 W=11 K=3 R=4 S=5",
    "conv3d": "N=1 C=2 D=4 H=5 W=7 K=3 T=1 R=3 S=4",
}
_ORDINARY |= dict.fromkeys(("dgrad", "wgrad"), _ORDINARY["conv3d"])
_ORDINARY |= {ladder: _ORDINARY[kind.form] for ladder, kind in problems.LADDERS.items()}


@dataclass(frozen=True)
class Wrong:
    """A wrong kernel. ``refute`` says how it shows, at a ``shape``:

    ``then`` more shapes for the same module, ``inputs`` of a kind, ``launches`` as many, ``one_weight`` changed, all
    ``reordered``,
    ``fresh`` arrays, ``flip`` the order of the blocks, ``poison`` memory that nobody has written. ``unsound`` (race,
    barrier, unset, async, kernels) and ``compiles`` are not seen in the values.
    ``ordinary`` and ``ordinary_inputs``: where it is right, null if nowhere for sure.
    """

    path: Path
    kind: str
    says: str
    refute: dict

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def ladder(self) -> str:
        return self.name.split("_")[0]

    @property
    def ordinary(self) -> str | None:
        """A shape at which it computes the right values, or None if no shape is sure to."""
        return self.refute.get("ordinary", _ORDINARY[self.ladder])

    @property
    def of_limits(self) -> bool:
        """May a launch that no GPU takes be its mistake?"""
        widest = max(extent for one in self.shapes for extent in one.shape().values())
        return self.kind == "gpu" or (self.kind == "shapes" and widest > shapes.MAX_GRID_YZ)

    @property
    def shapes(self) -> list[Problem]:
        return [
            problems.parse_shape(self.ladder, text) for text in (self.refute["shape"], *self.refute.get("then", ()))
        ]


def read(path: Path) -> Wrong | None:
    """The wrong kernel in this file; None if its docstring is of the other form, which expects a finding."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""
    if "\nClass:" not in text:
        return None
    found = _DOCSTRING.fullmatch(text)
    assert found, f"{path.name}: the docstring must be a sentence, then Class: NAME and Refute: {{JSON}}"
    assert found["kind"] in CLASSES, f"{path.name}: {found['kind']} must be one of {', '.join(CLASSES)}"
    return Wrong(path, found["kind"], found["says"], json.loads(found["refute"]))


def corpus() -> list[Wrong]:
    """All wrong kernels that have a class."""
    return [one for path in sorted(FOLDER.glob("*.py")) if (one := read(path))]


def verdict(kernel: Wrong, seed: int) -> dict:
    """What the first case that is not right says, in this process; ``cases`` counts those up to it."""
    began, cases = time.process_time(), plan.cases(kernel.ladder, False, seed)
    for number, case in enumerate(cases, 1):
        result = _ask(kernel, Check, case.problem, {**case.fields(), "repeats": 1})
        if result["status"] not in ENDED and _own_reason(kernel, result):
            return _told(result, case, number, began)
    return {"status": "right", "cases": len(cases), "case": "all", "seconds": time.process_time() - began}


def _own_reason(kernel: Wrong, result: dict) -> bool:
    """Not that a grid is too large for the widest shapes, where the mistake is another one."""
    return kernel.of_limits or "LaunchLimitError" not in (result.get("message") or "")


def _ask(kernel: Wrong, kind: type[ShapeTask], problem: Problem, fields: dict) -> dict:
    task = kind(path=str(kernel.path), ladder=kernel.ladder, shape=problem.shape(), **fields)
    with contextlib.redirect_stdout(io.StringIO()):
        result = child.attempt(task)
    assert "ModuleNotFoundError" not in (result.get("message") or ""), result
    return run.judged(problem, result)


def _told(result: dict, case: plan.Case, number: int, began: float) -> dict:
    findings = [(finding["kind"], finding["message"]) for finding in result.get("findings", [])]
    return {
        "status": result["status"],
        "cases": number,
        "case": f"{case.engine} {case.depth} {case.problem}",
        "findings": findings or [(result["status"], result.get("message") or "")],
        "seconds": time.process_time() - began,
    }


def compiled(kernel: Wrong) -> dict:
    """What compiling it says."""
    began, problem = time.process_time(), problems.FIRST[kernel.ladder]
    result = _ask(kernel, Compile, problem, {"architectures": [run.CODE_ARCHITECTURE]})
    if result["status"] == "right":
        return {"status": "right", "seconds": time.process_time() - began}
    return {
        "status": result["status"],
        "cases": 1,
        "case": "compiled",
        "findings": [(result["status"], result.get("message") or "")],
        "seconds": time.process_time() - began,
    }


def judge(
    kernels: list[Wrong], seed: int = 0, processes: int = 2, told: Callable = lambda *_: None
) -> dict[str, dict]:
    """The verdicts by name, from ``processes`` that share the kernels; those of class gpu must compile before that.

    ``told(kernel, result)`` is called as each is known.
    """
    by_name = {kernel.name: kernel for kernel in kernels}
    found = compiled_elsewhere(kernels)
    for name, result in found.items():
        if result["status"] != "right":
            told(by_name[name], result)

    def collect(share: list[Wrong]) -> None:
        for name, result in _lines("trace", share, seed):
            earlier = found.get(name, {"seconds": 0})
            found[name] = {**earlier, **result, "seconds": earlier["seconds"] + result["seconds"]}
            told(by_name[name], found[name])

    rest = [kernel for kernel in kernels if found.get(kernel.name, {"status": "right"})["status"] == "right"]
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(collect, [rest[number::processes] for number in range(processes)]))
    return found


def compiled_elsewhere(kernels: list[Wrong]) -> dict[str, dict]:
    """By name, what compiling those of class gpu says, in a process of its own."""
    return dict(_lines("compile", [kernel for kernel in kernels if kernel.kind == "gpu"], 0))


def _lines(engine: str, kernels: list[Wrong], seed: int) -> Iterator[tuple[str, dict]]:
    """Names and results from a process of its own, as they come."""
    if not kernels:
        return
    environment = device.environment(True)
    command = [sys.executable, __file__, "--as", engine, "--seed", str(seed), *(kernel.name for kernel in kernels)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, cwd=catalog.ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            name, result = json.loads(line)
            yield name, result
        code = process.wait()
        errors.seek(0)
        assert code == 0, errors.read()[-2000:]


def table(kernels: list[Wrong], found: dict[str, dict]) -> str:
    """Tried and found, class by class."""
    rows = [("class", "tried", "found")]
    for kind in CLASSES:
        mine = [found[kernel.name]["status"] for kernel in kernels if kernel.kind == kind]
        if mine:
            rows.append((kind, str(len(mine)), str(sum(status != "right" for status in mine))))
    rows.append(("all", str(len(kernels)), str(sum(one["status"] != "right" for one in found.values()))))
    return "\n".join(f"{name:10} {tried:>6} {caught:>6}" for name, tried, caught in rows)


def _say(kernel: Wrong, result: dict) -> None:
    kind, message = result["findings"][0] if result["status"] != "right" else ("passes", kernel.says)
    place = f"{kernel.kind} {kernel.name} ({result['cases']} cases, {result['seconds']:.1f} s)"
    print(f"{place}: {result['case']}: {kind}: {message[:200]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="classes, or kernels by name (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn shapes and operands")
    parser.add_argument("--details", action="store_true", help="say of each kernel what found it")
    parser.add_argument("--as", dest="engine", choices=("trace", "compile"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    kernels = [one for one in corpus() if not options.names or {one.name, one.kind} & set(options.names)]
    if options.engine:
        for kernel in kernels:
            result = verdict(kernel, options.seed) if options.engine == "trace" else compiled(kernel)
            print(json.dumps([kernel.name, result]), flush=True)
        return 0
    found = judge(kernels, options.seed, device.processors(), _say if options.details else lambda *_: None)
    print(table(kernels, found))
    for kernel in kernels:
        if found[kernel.name]["status"] == "right":
            print(f"passes: {kernel.name} ({kernel.kind}): {kernel.says}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

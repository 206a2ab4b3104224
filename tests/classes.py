"""How many wrong kernels of each class the check finds: python tests/classes.py [NAME or CLASS ...].

Every kernel of ``tests/mutants`` that has a class goes through a check without a GPU as
:mod:`common.check.plan` has it, up to the first case that is not right; what passes is compiled, as a check does.
Prints those that pass, and a table of classes with kernels tried and found.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mutants
from msgspec.structs import replace
from mutants import Mutant

from common.catalog import catalog, device, problems
from common.check import plan, run
from common.run import child
from common.run.messages import Check, Compile, StepResult, Task

CLASSES = ("shapes", "values", "state", "order", "zero", "sound", "gpu", "refusal")
# How many kernels there are of each, and which of them a check without a GPU lets pass.
SIZES = {"shapes": 115, "values": 53, "state": 14, "order": 3, "zero": 8, "sound": 62, "gpu": 18, "refusal": 9}
PASSING = {
    # threads or blocks store one element twice, and equal values: a waste, and conv2d_register_tiled and
    # conv2d_layer_dispatch do so, too, where a tile reaches beyond the output
    "conv3d_pixels_by_two_blocks", "gemm_idle_threads_repeat_the_last", "gemm_overlapping_blocks",
    "gemm_two_blocks_for_each_tile",
}  # fmt: skip
ENDED = ("right", "refused")  # what a case says of a kernel that may be right


def corpus() -> list[Mutant]:
    """All wrong kernels that have a class."""
    return [one for one in mutants.everything().values() if one.kind]


def verdict(kernel: Mutant, seed: int) -> dict:
    """What the first case that is not right says, in this process; ``cases`` counts those up to it."""
    began, cases = time.process_time(), plan.cases(kernel.ladder, False, seed)
    for number, case in enumerate(cases, 1):
        result = ask(asked(kernel, case))
        if result.status not in ENDED and own_reason(kernel, result):
            return _told(result, case, number, began)
    return {"status": "right", "cases": len(cases), "case": "all", "seconds": time.process_time() - began}


def own_reason(kernel: Mutant, result: StepResult) -> bool:
    """Not that a grid is too large for the widest shapes, where the mistake is another one."""
    return kernel.of_limits or "LaunchLimitError" not in (result.message or "")


def asked(kernel: Mutant, case: Check) -> Check:
    """A case of the plan, of this kernel."""
    return replace(case, path=str(kernel.path), algorithm=kernel.algorithm, repeats=1)


def ask(task: Task) -> StepResult:
    with contextlib.redirect_stdout(io.StringIO()):
        result = child.attempt(task)
    assert "ModuleNotFoundError" not in (result.message or ""), result
    return run.judged(task.problem, result)


def _told(result: StepResult, case: Check, number: int, began: float) -> dict:
    findings = [(finding.kind, finding.message) for finding in result.findings]
    return {
        "status": result.status,
        "cases": number,
        "case": f"{case.engine} {case.depth} {case.problem}",
        "findings": findings or [(result.status, result.message or "")],
        "seconds": time.process_time() - began,
    }


def compiled(kernel: Mutant) -> dict:
    """What compiling it says."""
    began, shape = time.process_time(), problems.FIRST[kernel.ladder].shape()
    place = {"path": str(kernel.path), "ladder": kernel.ladder, "shape": shape}
    result = ask(Compile(**place, architectures=[run.CODE_ARCHITECTURE]))
    if result.status == "right":
        return {"status": "right", "seconds": time.process_time() - began}
    return {
        "status": result.status,
        "cases": 1,
        "case": "compiled",
        "findings": [(result.status, result.message or "")],
        "seconds": time.process_time() - began,
    }


def compiled_elsewhere(kernels: list[Mutant]) -> dict[str, dict]:
    """By name, what compiling those of class gpu says, in a process of its own: this one may trace meanwhile."""
    names = [kernel.name for kernel in kernels if kernel.kind == "gpu"]
    if not names:
        return {}
    command = [sys.executable, __file__, "--compile", *names]
    environment = device.environment(True)
    done = subprocess.run(command, cwd=catalog.ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(line) for line in done.stdout.splitlines())


def table(kernels: list[Mutant], found: dict[str, dict]) -> str:
    """Tried and found, class by class."""
    rows = [("class", "tried", "found")]
    for kind in CLASSES:
        mine = [found[kernel.name]["status"] for kernel in kernels if kernel.kind == kind]
        if mine:
            rows.append((kind, str(len(mine)), str(sum(status != "right" for status in mine))))
    rows.append(("all", str(len(kernels)), str(sum(one["status"] != "right" for one in found.values()))))
    return "\n".join(f"{name:10} {tried:>6} {caught:>6}" for name, tried, caught in rows)


def _say(kernel: Mutant, result: dict) -> None:
    kind, message = result["findings"][0] if result["status"] != "right" else ("passes", kernel.mistake)
    place = f"{kernel.kind} {kernel.name} ({result['cases']} cases, {result['seconds']:.1f} s)"
    print(f"{place}: {result['case']}: {kind}: {message[:200]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="classes, or kernels by name (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawn shapes and operands")
    parser.add_argument("--details", action="store_true", help="say of each kernel what found it")
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kernels = [one for one in corpus() if not options.names or {one.name, one.kind} & set(options.names)]
    if options.compile:
        for kernel in kernels:
            print(json.dumps([kernel.name, compiled(kernel)]), flush=True)
        return 0
    found = compiled_elsewhere(kernels)
    for kernel in kernels:
        if found.get(kernel.name, {"status": "right"})["status"] == "right":
            found[kernel.name] = verdict(kernel, options.seed)
        if options.details or found[kernel.name]["status"] == "right":
            _say(kernel, found[kernel.name])
    print(table(kernels, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

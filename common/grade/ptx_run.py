"""Runs plans on the GPU: kernels that came as PTX, on operands made here, checked and timed here.

What a result and a time are worth rests on this:

- No Python of the submission runs in this process, only its kernels; they reach the GPU's memory and nothing else.
- Operands are drawn here, from a seed that the submission's process never had. The input is another one at every
  launch, the output is overwritten with NaN before it, and what lies in workspaces and prepared arrays is put back,
  so that nothing is gained by keeping results anywhere.
- All kernels of a launch run on one stream, between two events of that stream. There is no other.
- A sample of the output is compared after every batch of timed launches.

A kernel may still be written by something else than Numba: a plan says what to run, not who wrote it. And kernels
are built from PTX, while Numba itself links with optimisation at link time where it can: times may differ a little.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.catalog import device, problems, reference
from common.catalog.problems import Problem
from common.check import check, inputs
from common.check.arrays import Guarded
from common.grade import ptx_plan
from common.grade.messages import PtxFinding, PtxResult, PtxRun
from common.grade.ptx_plan import Plan, PlanBuffer, PlanLaunch
from common.machine_code import launching, tensormaps
from common.timing import timing

RUNS, RUN_LENGTH = 48, 32  # pieces of the output that are compared after a batch, and their elements
SLACK = 1 << 16  # places at which the input may start in its pool
MAX_SECONDS = 2.0


class Kernels:
    """Kernels of plans, linked for this GPU as they are first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._functions: dict[str, Any] = {}
        self._shared: dict[str, int] = {}  # the most that a launch of a kernel asks for, in bytes
        self._maps: list[Any] = []  # which launches read as long as they are made

    def bound(self, entry: PlanLaunch, addresses: list[int]) -> Callable[[], None]:
        """A launch of a plan, ready to be made, given where each buffer lies."""
        from numba.cuda import dispatcher
        from numba.cuda.cudadrv import driver

        function, stream = self._function(entry["kernel"]), driver._to_core_stream(0)
        # launches are bound before any is made: what one needs of a kernel must not take back what another does
        most = self._shared[entry["kernel"]] = max(entry["shared"], self._shared.get(entry["kernel"], 0))
        if entry["shared"]:
            launching.allow(function, most)
        grid, block = tuple(entry["grid"]), tuple(entry["block"])
        config = launching.configuration(function, grid, block, entry["shared"], entry["cluster"])
        kernel, maps = function.kernel, maps_of(entry, addresses)
        arguments = arguments_of(entry, addresses, maps)
        self._maps += maps
        return lambda: dispatcher.launch(stream, config, kernel, *arguments)

    def _function(self, digest: str) -> Any:
        if digest not in self._functions:
            from numba import cuda

            context = cuda.current_context()
            text = Path(self.folder, f"{digest}.ptx").read_text(encoding="utf-8")
            code, name = link(text, context.device.compute_capability)
            module = context.create_module_image(code)
            if module.get_function(name).attrs.shared % alignment(text):
                module = context.create_module_image(for_driver(text))
            self._functions[digest] = module, module.get_function(name)
        return self._functions[digest][1]


def link(text: str, compute_capability: tuple[int, int]) -> tuple[Any, str]:
    """A plan's PTX as code for a GPU, and the kernel's symbol."""
    from numba.cuda.cudadrv import driver

    name, registers = ptx_plan.entry(text)
    own = ("a",) if re.search(r"^\.target sm_\d+a\b", text, re.MULTILINE) else ()  # of this compute capability alone
    linker = driver._Linker(max_registers=registers or None, cc=(*compute_capability, *own), lto=False)
    linker.add_ptx(text.encode())
    return linker.complete(), name


def alignment(text: str) -> int:
    """The bytes at a multiple of which a plan's PTX wants its dynamic shared memory to begin."""
    return max([1, *map(int, re.findall(r"^\.extern \.shared \.align (\d+)", text, re.MULTILINE))])


def for_driver(text: str) -> Any:
    """A plan's PTX as the driver itself compiles it.

    CUDA 13.0's linker lets dynamic shared memory begin right behind the static one, however it is to be aligned;
    that of 13.5 does not (seen in what both made of one kernel, by nvdisasm and readelf).
    """
    from numba.cuda.cudadrv import driver

    _, registers = ptx_plan.entry(text)
    if registers:
        start = text.index(".entry")
        text = text[:start] + re.sub(r"^\{", f".maxnreg {registers}\n{{", text[start:], count=1, flags=re.MULTILINE)
    return driver.ObjectCode.from_ptx(text.encode())


def maps_of(entry: PlanLaunch, addresses: list[int]) -> list[Any]:
    """A launch's tensor maps, encoded here, given where each buffer of the plan lies."""
    return [
        tensormaps.encoded(described, addresses[place] + offset)
        for kind, *rest in entry["arguments"] if kind == "map"
        for place, offset, described in [rest]
    ]  # fmt: skip


def arguments_of(entry: PlanLaunch, addresses: list[int], maps: Sequence[Any] = ()) -> list[Any]:
    """A launch's arguments as Numba's kernels take them, given where each buffer of the plan lies, and its maps."""
    found: list[Any] = []
    described = iter(maps)
    for kind, *rest in entry["arguments"]:
        if kind == "array":
            place, offset, shape, strides, itemsize = rest
            # meminfo, parent, size, itemsize, data, then the extents and the strides in bytes
            found += [0, 0, math.prod(shape), itemsize, addresses[place] + offset, *shape, *strides]
        elif kind == "map":
            start = next(described).__cuda_array_interface__["data"][0]
            found += [0, 0, tensormaps.BYTES, 1, start, tensormaps.BYTES, 1]
        elif kind == "boolean":
            found.append(bool(rest[0]))
        else:
            found.append(getattr(ctypes, _C_TYPES[kind])(rest[0]))
    return found


_C_TYPES = {
    **{f"{sign}int{bits}": f"c_{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "c_float",
    "float64": "c_double",
}


class PlanBench:
    """Plans of one problem as :mod:`common.check.check` wants a bench; each ``load`` takes the next one."""

    def __init__(self, problem: Problem, found: list[Plan], folder: Path, kernels: Kernels) -> None:
        self.problem, self.folder, self.kernels = problem, folder, kernels
        self.x, self.weight, self.y = (Guarded(shape, dtype=dtype) for shape, dtype in problem.operands)
        self._waiting = list(found)
        self._buffers: list[Any] = []
        self._pristine: list[Any] = []
        self._launches: list[Callable[[], None]] = []

    def load(self, x: Any, weight: Any) -> None:
        """New operands: bind the next plan to them and run what ``prepare`` started."""
        from numba import cuda

        plan = self._waiting.pop(0)
        self.x.set(x)
        self.weight.set(weight)
        own = {"x": self.x.array, "weight": self.weight.array, "y": self.y.array}
        roles = [buffer["role"] for buffer in plan["buffers"]]
        arrays = [own[one["role"]] if one["role"] in own else self._allocated(one) for one in plan["buffers"]]
        self._buffers = list(zip(roles, arrays, strict=True))
        addresses = [int(array.__cuda_array_interface__["data"][0]) for _, array in self._buffers]
        for entry in plan["prepare"]:
            self.kernels.bound(entry, addresses)()
        cuda.synchronize()
        self._pristine = [
            cuda.to_device(array.copy_to_host()) if role == "prepared" else None for role, array in self._buffers
        ]
        self._launches = [self.kernels.bound(entry, addresses) for entry in plan["launch"]]

    def launch(self) -> None:
        for launch in self._launches:
            launch()

    def run(self) -> None:
        from numba import cuda

        self.restore()
        self.launch()
        cuda.synchronize()

    def restore(self) -> None:
        """Put back what lay in prepared arrays, and leave nothing in workspaces."""
        from numba.cuda.cudadrv.driver import device_memset

        for (role, array), pristine in zip(self._buffers, self._pristine, strict=True):
            if role == "prepared":
                array.copy_to_device(pristine)
            elif role == "workspace":
                device_memset(array, 0xFF, array.nbytes)

    def _allocated(self, buffer: PlanBuffer) -> Any:
        """An array for what is none of the operands."""
        from numba import cuda

        made = cuda.device_array(max(1, buffer["bytes"]), np.uint8)
        if buffer["data"] is not None:
            made.copy_to_device(np.fromfile(Path(self.folder, buffer["data"]), np.uint8))
        return made


class Refreshed:
    """Gives a bench another input before each launch, and compares samples of the output with the oracle."""

    def __init__(self, bench: PlanBench, x: Any, more: Any, weight: Any, seed: int) -> None:
        from numba import cuda

        self.bench, self.weight = bench, weight
        slack = min(SLACK, x.size)
        self._pool = np.concatenate((x.reshape(-1), more.reshape(-1)[:slack]))
        self._on_device = cuda.to_device(self._pool)
        self._slack, self._start = slack, 0
        self._random = np.random.default_rng(seed)
        self.wrong = 0

    def refresh(self) -> None:
        from numba.cuda.cudadrv.driver import device_memset

        bench = self.bench
        self._start = int(self._random.integers(0, self._slack))
        flat = bench.x.array.reshape(bench.x.size)
        flat.copy_to_device(self._on_device[self._start : self._start + bench.x.size])
        device_memset(bench.y.array, 0xFF, bench.y.array.nbytes)
        bench.restore()

    def compare(self) -> None:
        bench, problem = self.bench, self.bench.problem
        flat = bench.y.array.reshape(bench.y.size)
        length = min(RUN_LENGTH, bench.y.size)
        starts = self._random.integers(0, bench.y.size - length + 1, RUNS)
        got = np.concatenate([flat[start : start + length].copy_to_host() for start in starts])
        places = (starts[:, None] + np.arange(length)).reshape(-1)
        positions = np.unravel_index(places, problem.output_shape)
        x = self._pool[self._start : self._start + bench.x.size].reshape(problem.input_shape)
        right = reference.stored(problem, reference.at(problem, x, self.weight, positions))
        self.wrong += int(np.count_nonzero(got != right))


def run(task: PtxRun) -> PtxResult:
    """Check plans at ragged shapes, then time one at full size."""
    folder, ladder, seed = Path(task.folder), task.ladder, task.seed
    kernels = Kernels(folder)
    findings: list[PtxFinding] = []
    compared = 0
    for number, shape in enumerate(task.shapes):
        problem = problems.from_shape(ladder, shape)
        found = [_read(folder, f"{number}-{part}") for part in range(3)]
        bench = PlanBench(problem, found, folder, kernels)
        verdict = check.check_bench(bench, seed, precision=task.precision, algorithm=task.algorithm)
        compared += verdict.elements_compared
        findings += [{"kind": one.kind, "message": one.message, "shape": shape} for one in verdict.findings]
        if findings:
            break
    result: PtxResult = {"status": "right", "findings": findings, "elements_compared": compared}
    if task.timed and not findings:
        result.update(_timed(problems.from_shape(ladder, task.timed), folder, kernels, seed))
    result["status"] = "wrong" if result["findings"] else "right"
    return result


def _timed(problem: Problem, folder: Path, kernels: Kernels, seed: int) -> PtxResult:
    plan = _read(folder, "timed")
    bench = PlanBench(problem, [plan, plan], folder, kernels)
    verdict = check.sample_bench(bench, seed)
    if not verdict.right:
        wrong: list[PtxFinding] = [{"kind": one.kind, "message": one.message} for one in verdict.findings]
        return {"status": "wrong", "findings": wrong}
    x, weight = inputs.integers(problem, seed)
    bench.load(x, weight)
    refreshed = Refreshed(bench, x, inputs.integers(problem, seed + 1)[0], weight, seed)
    stopwatch = timing.Stopwatch(device.current_gpu().l2_bytes)
    measured = stopwatch.measure(
        bench.launch, before=refreshed.refresh, after=refreshed.compare, max_seconds=MAX_SECONDS
    )
    found: list[PtxFinding] = []
    if refreshed.wrong:
        text = f"{refreshed.wrong} sampled elements are wrong when timed, with another input at each launch"
        found.append({"kind": "stale", "message": f"{text}: something is kept between launches"})
    return {"status": "wrong" if found else "right", "timing": measured, "findings": found}


def _read(folder: Path, name: str) -> Plan:
    plan: Plan = json.loads(Path(folder, f"{name}.json").read_text(encoding="utf-8"))
    return plan

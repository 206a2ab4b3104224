"""The memory microscope: runs chosen blocks of a step's kernels on the CPU and reports every access to memory.

Needs neither a GPU nor a driver: in the place of each kernel runs :class:`common.trace.lanes.Machine`;
``prepare``, ``workspace`` and ``launch`` run as they are, on host arrays. The process may compile the same kernels.
"""

from __future__ import annotations

import atexit
import inspect
import linecache
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from common.catalog import catalog, device, lessontext
from common.catalog.boundstep import BoundStep
from common.catalog.catalog import Step
from common.catalog.limits import require_kernel, require_launch
from common.catalog.problems import Conv2d, Conv3d, Convolution, Gemm, Problem, on_ladder, parse_shape
from common.check import inputs
from common.explain.faults import Fault, telling
from common.machine_code import capture, loops
from common.run import isolate
from common.run.messages import at
from common.trace import messages
from common.trace.bulk import LEFT_OVER, Map
from common.trace.lanes import Argument, Machine, Point, TraceError
from common.trace.memory import MOST_PRINTED, SECTOR_BYTES, Ints, Ledger, Request
from common.trace.messages import Traced, TracedAccess, TracedEvent, TracedKernel, TracedSpan
from common.trace.spaces import Global, View, poison, poisoned

# Small enough to trace every block in a second or two, large enough for a block that touches no edge. The two conv2d
# shapes are the ECE408 layers with four images.
SHAPES: dict[str, tuple[Problem, ...]] = {
    "gemm": (Gemm(M=384, N=384, K=256),),
    "conv2d": (
        Conv2d(N=4, C=1, H=70, W=70, K=12, R=5, S=5),
        Conv2d(N=4, C=12, H=33, W=33, K=24, R=5, S=5),
    ),
    "conv3d": (Conv3d(N=1, C=32, D=4, H=14, W=14, K=64, T=3, R=3, S=3, pad_d=1, pad_h=1, pad_w=1),),
}
SHAPES |= {
    ladder: tuple(on_ladder(ladder, problem) for problem in SHAPES[base])
    for base, ladder in (("gemm", "hgemm"), ("conv3d", "hconv3d"), ("conv3d", "dgrad"), ("conv3d", "wgrad"))
}

SECONDS = 120.0  # for one trace in a child process
_READ = {
    "global": ("read", "copy", "tma"), "shared": ("read", "copy", "wgmma", "tma store"), "constant": ("read",),
    "local": ("read",),
}  # fmt: skip
_WRITTEN = {"global": ("write", "atomic", "tma store"), "shared": ("write", "atomic", "tma")} | dict.fromkeys(
    ("constant", "local"), ("write", "atomic")
)
_MOVED = ("read", "copy", "write", "tma", "tma store", "wgmma")
_ALIGNMENT = 256  # of an allocation's first byte (CUDA C++ Programming Guide, "Device Memory Accesses")
_LANES_AT_ONCE = 16384  # blocks run together up to here; beyond it NumPy gains nothing
_FOLLOWING = ("per_request", "ideal_per_request", "efficiency", "lanes_per_address", "bytes_moved")  # of an Access
_LANES_OF_TEAMS = 2048  # the same where warps take turns: what is known of shared memory takes much room


def shapes(step: Step) -> tuple[Problem, ...]:
    """What a step is traced at by itself: its ladder's shapes, unless its lesson names another."""
    usual = lessontext.usual(catalog.LESSONS, step.name)
    return (parse_shape(step.ladder, usual.shape),) if usual else SHAPES[step.ladder]


@dataclass(frozen=True)
class Access:
    """One array, accessed in one line in one direction and width.

    ``moved``, ``ideal`` and ``distinct`` are as in :class:`common.trace.memory.Cost`; ``accesses`` counts
    threads.
    ``sample``: the first request's element offsets by lane. ``seen``: the first requests, where they are kept.
    """

    line: int
    text: str
    space: str
    op: str
    array: str
    bits: int
    accesses: int
    requests: int
    moved: int
    ideal: int
    distinct: int
    sample: list[int | None] | None = None
    seen: tuple[Request, ...] = ()

    @property
    def per_request(self) -> float:
        return self.moved / self.requests if self.requests else 0.0

    @property
    def ideal_per_request(self) -> float:
        return self.ideal / self.requests if self.requests else 0.0

    @property
    def lanes_per_address(self) -> float:
        """How many threads of a request share an address: above 1, the value is broadcast."""
        return self.accesses / self.distinct if self.distinct else 0.0

    @property
    def bytes_moved(self) -> int:
        """Whole sectors, from global memory or to it; 0 for other memories."""
        return self.moved * SECTOR_BYTES if self.space == "global" else 0

    @property
    def efficiency(self) -> float:
        """The share of what moved that had to."""
        return self.ideal / self.moved if self.moved else 1.0

    def as_dict(self) -> TracedAccess:
        told = {**vars(self), **{name: getattr(self, name) for name in _FOLLOWING}}
        seen = [request._asdict() for request in told.pop("seen")]
        return cast(TracedAccess, told | ({"seen": seen} if seen else {}))


@dataclass(frozen=True)
class KernelTrace:
    """What one kernel did in the traced blocks. ``file`` is the one whose lines are counted."""

    name: str
    file: str
    grid: Point
    block: Point
    launches: int
    blocks: int
    first_block: Point
    accesses: list[Access]
    fma: int
    fma_lines: dict[int, int]
    branches: dict[int, tuple[int, int]]  # line: branches of warps that split, all
    faults: list[Fault]
    notes: dict[str, int]
    events: list[TracedEvent] = field(default_factory=list)
    pipeline: list[TracedSpan] = field(default_factory=list)  # of the first block
    printed: list[str] = field(default_factory=list)  # the first lines
    prints: int = 0  # and how many there were
    under_way: int = 0  # the most groups of copies that a wait left on their way

    def select(self, space: str, *ops: str) -> list[Access]:
        return [a for a in self.accesses if a.space == space and (not ops or a.op in ops)]

    def totals(self) -> dict[str, int]:
        """Sums over all lines, named as in :data:`common.timing.profiler.METRICS` where the hardware counts them."""
        # the hardware counts an asynchronous copy as a load
        read, write = self.select("global", "read", "copy"), self.select("global", "write")
        loads, stores = self.select("shared", "read"), self.select("shared", "write")
        return {
            "load_requests": sum(a.requests for a in read),
            "load_sectors": sum(a.moved for a in read),
            "store_requests": sum(a.requests for a in write),
            "store_sectors": sum(a.moved for a in write),
            "copy_requests": sum(a.requests for a in self.select("global", "copy")),
            "copy_sectors": sum(a.moved for a in self.select("global", "copy")),
            "shared_load_requests": sum(a.requests for a in loads),
            "shared_load_wavefronts": sum(a.moved for a in loads),
            "shared_store_requests": sum(a.requests for a in stores),
            "shared_store_wavefronts": sum(a.moved for a in stores),
            "shared_conflicts": sum(a.moved - a.ideal for a in loads + stores),
            "ffma_threads": self.fma,
        }

    def per_fma(self) -> dict[str, dict[str, float]]:
        """By memory: load and store instructions, and 32-bit values moved, for each multiply-add of a thread."""
        if not self.fma:
            return {}
        found = {}
        for space in ("global", "shared", "constant", "local"):
            reads, writes = self.select(space, *_READ[space]), self.select(space, *_WRITTEN[space])
            found[space] = {
                "loads": sum(a.accesses for a in reads) / self.fma,
                "loaded_values": sum(a.accesses * a.bits for a in reads) / 32 / self.fma,
                "stores": sum(a.accesses for a in writes) / self.fma,
                "stored_values": sum(a.accesses * a.bits for a in writes) / 32 / self.fma,
            }
        return found

    def as_dict(self) -> TracedKernel:
        told = {
            **vars(self),
            "faults": [fault.as_dict() for fault in self.faults],
            "branches": {str(line): counts for line, counts in self.branches.items()},
            "fma_lines": {str(line): count for line, count in self.fma_lines.items()},
            "accesses": [access.as_dict() for access in self.accesses],
            "totals": self.totals(),
            "per_fma": self.per_fma(),
        }
        return cast(TracedKernel, told)


@dataclass(frozen=True)
class Trace:
    """A step's kernels at one problem, in launch order, and the output as far as the traced blocks wrote it."""

    problem: Problem
    kernels: list[KernelTrace]
    output: NDArray[Any]

    @property
    def faults(self) -> list[Fault]:
        return [fault for kernel in self.kernels for fault in kernel.faults]

    def as_dict(self) -> Traced:
        kernels = [kernel.as_dict() for kernel in self.kernels]
        return {"ladder": self.problem.ladder, "shape": self.problem.shape(), "kernels": kernels}

    @property
    def main(self) -> KernelTrace:
        """The main kernel."""
        return loops.main_kernel(self.kernels, lambda kernel: kernel.fma)


@dataclass(frozen=True)
class Launch:
    function: Callable[..., Any]
    grid: Point
    block: Point
    shared_bytes: int
    arguments: tuple[Any, ...]
    bounds: tuple[int, ...] = ()  # launch_bounds: threads, resident blocks, blocks of a cluster

    @property
    def cluster(self) -> int:
        return self.bounds[2] if len(self.bounds) > 2 else 1


class DeviceArray(np.ndarray[Any, Any]):
    """Stands in for a device array. ``storage`` is the allocation that it, or what it is a view of, was made with."""

    storage: Global | None

    def __array_finalize__(self, other: Any) -> None:
        self.storage = getattr(other, "storage", None)

    def copy_to_host(self, ary: Any = None, stream: Any = None) -> NDArray[Any]:
        if ary is None:
            return np.array(self)
        np.copyto(ary, np.asarray(self))
        return np.asarray(ary)

    def copy_to_device(self, ary: Any, stream: Any = None) -> None:
        self[...] = np.asarray(ary)

    def __setitem__(self, index: Any, value: Any) -> None:
        np.asarray(self)[index] = np.asarray(value)
        self._mark(index, True)

    def poison(self) -> None:
        """From now on nothing has written here: what a launch reads before it writes it is at fault."""
        values = np.asarray(self)
        values[...] = poisoned(1, values.dtype)[0]
        if self.storage is not None and self.storage.written is None:
            self.storage.written = np.ones(len(self.storage.data), np.bool_)
        self._mark((), False)

    def _mark(self, index: Any, written: bool) -> None:
        if self.storage is not None and self.storage.written is not None:
            start = (self.__array_interface__["data"][0] - self.storage.address) // self.dtype.itemsize
            steps = tuple(stride // self.dtype.itemsize for stride in self.strides)
            flags = np.lib.stride_tricks.as_strided(self.storage.written[start:], self.shape, steps)
            flags[index] = written

    # the rest of what Numba's device arrays have, and NumPy's do not
    stream = 0

    @property
    def alloc_size(self) -> int:
        return self.nbytes

    def bind(self, stream: Any = 0) -> DeviceArray:
        return self

    def getitem(self, index: Any, stream: Any = 0) -> Any:
        return self[index]

    def setitem(self, index: Any, value: Any, stream: Any = 0) -> None:
        self[index] = value

    def is_c_contiguous(self) -> bool:
        return bool(self.flags.c_contiguous)

    def is_f_contiguous(self) -> bool:
        return bool(self.flags.f_contiguous)


_allocations: weakref.WeakValueDictionary[int, Global] = weakref.WeakValueDictionary()  # by address


def _allocate(shape: Any, dtype: Any, values: Any = None) -> DeviceArray:
    """Device memory that holds ``values``, or what nobody has written."""
    shape = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    kind = np.dtype(dtype)
    count = math.prod(shape)
    raw = np.empty(count * kind.itemsize + _ALIGNMENT, np.uint8)
    address = raw.__array_interface__["data"][0]
    skip = -address % _ALIGNMENT
    data = raw[skip : skip + count * kind.itemsize].view(kind)
    if values is None:
        poison(data)
    else:
        data[:] = np.asarray(values, kind).reshape(-1)
    array: DeviceArray = data.reshape(shape).view(DeviceArray)
    array.storage = Global(data, None if values is not None else np.zeros(count, np.bool_), address + skip)
    _allocations[address + skip] = array.storage
    return array


def _view(array: NDArray[Any], name: str) -> View | None:
    """The array as a kernel sees it; None if it lies in the host's memory."""
    storage = array.storage if isinstance(array, DeviceArray) else _around(array.__array_interface__["data"][0])
    if storage is None or storage.dtype != array.dtype:
        return None
    size = array.dtype.itemsize
    start, beyond = divmod(array.__array_interface__["data"][0] - storage.address, size)
    strides = tuple(stride // size for stride in array.strides)
    last = start + sum((extent - 1) * stride for extent, stride in zip(array.shape, strides, strict=True))
    if beyond or not 0 <= start <= len(storage.data):
        return None
    return View(storage, start, array.shape, strides, name, bounded=0 <= last < len(storage.data))


def _around(address: int) -> Global | None:
    """The allocation that an address lies in."""
    for start, storage in _allocations.items():
        if start <= address < start + storage.data.nbytes:
            return storage
    return None


class Tracer:
    """Stands in for a GPU: ``with Tracer() as tracer: ...``.

    Meanwhile device arrays are the tracer's (:class:`DeviceArray`) and a kernel that is launched runs at once, all
    blocks. A kernel keeps the globals that it had at its first launch with arguments of some types, as long as the
    tracer lives. ``order`` of blocks and of threads that write one element: "forward", "backward" or a seed; it may
    be changed between launches. Without ``recording`` faults are found, but no accesses counted: that is quicker.
    """

    def __init__(self, order: str | int = "forward", recording: bool = False) -> None:
        self.order, self.recording = order, recording
        self.watched: frozenset[str] = frozenset()
        self.merged: dict[str, int] = {}
        self.kept = 0
        self.ledgers: dict[Callable[..., Any], Ledger] = {}
        self._launched: dict[Callable[..., Any], list[tuple[Point, Point]]] = {}
        self._machines: dict[Any, Machine] = {}
        self._stack: list[Any] = []

    def __enter__(self) -> Tracer:
        context = in_place_of_the_device(self.run)
        context.__enter__()
        self._stack.append(context)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.pop().__exit__(*error)

    def stay(self) -> None:
        """Stand in until this process ends, and then say on standard error what was unsound."""
        self.__enter__()
        atexit.register(self._say)

    def _say(self) -> None:
        for report in self.reports():
            for fault in report.faults:
                print(f"{Path(report.file).name}:{fault.line}: {fault.placed}", file=sys.stderr)

    def forget(self) -> None:
        """Begin to report anew; kernels stay compiled."""
        self.ledgers, self._launched = {}, {}

    def reports(self) -> list[KernelTrace]:
        """What each kernel did in all launches since the last ``forget``."""
        return [_report(function, self._launched[function], ledger) for function, ledger in self.ledgers.items()]

    def faults(self) -> list[Fault]:
        return [fault for report in self.reports() for fault in report.faults]

    def printed(self) -> tuple[list[str], int]:
        """The first lines that kernels printed, and how many there were."""
        ledgers = list(self.ledgers.values())
        return [line for one in ledgers for line in one.printed][:MOST_PRINTED], sum(one.prints for one in ledgers)

    def run(self, launch: Launch, blocks: Ints | None = None, quiet: bool = False) -> None:
        """Carry a launch out, or some blocks of it. ``quiet``: without recording."""
        function = launch.function
        ledger = self.ledgers.setdefault(function, Ledger())
        ledger.watched, ledger.merged, ledger.kept = self.watched, self.merged, self.kept
        ledger.recording = self.recording and not quiet
        if not quiet:
            self._launched.setdefault(function, []).append((launch.grid, launch.block))
        names = list(inspect.signature(function).parameters)
        back: list[tuple[Any, DeviceArray]] = []
        arguments = [_argument(a, name, back) for a, name in zip(launch.arguments, names, strict=False)]
        if len(launch.arguments) != len(names):
            given = len(launch.arguments)
            raise TypeError(f"Signature mismatch: {given} argument types given, but function takes {len(names)}")
        key = (function, *map(_type, arguments))
        machine = self._machines.get(key)
        if machine is None:
            machine = self._machines[key] = Machine(
                function, launch.grid, launch.block, ledger, launch.shared_bytes, launch.bounds
            )
        else:
            machine.configure(launch.grid, launch.block, ledger, launch.shared_bytes, launch.bounds)
        ledger.in_turn = machine.has_engines
        lanes = _LANES_OF_TEAMS if machine.has_engines else _LANES_AT_ONCE
        machine.run(arguments, blocks, max(1, lanes // (machine.lanes_per_block * machine.cluster)), self.order)
        for host, copied in back:
            np.copyto(host, np.asarray(copied))


def run(
    module: ModuleType,
    problem: Problem,
    block: Point | None = None,
    every: bool = False,
    tile: dict[str, int] | None = None,
    watched: Iterable[str] = (),
    merged: dict[str, int] | None = None,
    kept: int = 0,
    seed: int = 0,
    order: str | int = "forward",
    recording: bool = True,
) -> Trace:
    """Trace a step on integers drawn with ``seed``.

    Of each kernel's first launch ``block`` is traced (default: one in the middle of the grid), with the others of its
    cluster, or with ``every`` all blocks of all launches. A kernel whose output another one needs runs whole all the
    same. ``watched``: names of arrays whose every access by the first block is kept. ``merged``: shared arrays whose
    32-bit reads are counted as the compiler is known to make them, so many words at a time. ``kept``: requests
    of each access that are kept, lane by lane. ``order`` and ``recording``: see :class:`Tracer`.
    Raises TraceError for what the tracer does not know, and for a block outside every grid.
    """
    tracer = Tracer(order, recording)
    tracer.watched, tracer.merged, tracer.kept = frozenset(watched), merged or {}, kept
    x, weight = inputs.integers(problem, seed)
    a, b = _allocate(x.shape, x.dtype, x), _allocate(weight.shape, weight.dtype, weight)
    y = _allocate(problem.output_shape, x.dtype)
    if every:
        with tracer:
            BoundStep(module, problem, tile).run(a, b, y)
        return Trace(problem, tracer.reports(), np.asarray(y))
    launches: list[Launch] = []
    with in_place_of_the_device(launches.append):
        BoundStep(module, problem, tile).run(a, b, y)
    if block is not None and not any(_inside(block, launch.grid) for launch in launches):
        grids = ", ".join(f"{launch.function.__name__} {launch.grid}" for launch in launches)
        raise TraceError(
            f"block {','.join(map(str, block))} lies outside every grid: {grids or 'nothing is launched'}"
        )
    traced: dict[Callable[..., Any], Point] = {}
    for number, launch in enumerate(launches):
        others = np.arange(math.prod(launch.grid))
        if launch.function not in traced:
            chosen = block if block and _inside(block, launch.grid) else _middle(launch.grid)
            traced[launch.function] = chosen
            at = chosen[0] + launch.grid[0] * (chosen[1] + launch.grid[1] * chosen[2])
            at -= at % launch.cluster  # blocks of a cluster run together
            tracer.run(launch, others[at : at + launch.cluster])
            others = np.delete(others, slice(at, at + launch.cluster))
        if any(later.function not in traced for later in launches[number + 1 :]):
            tracer.run(launch, others, quiet=True)
    kernels = []
    for report, (function, chosen) in zip(tracer.reports(), traced.items(), strict=True):
        times = sum(launch.function is function for launch in launches)
        width = next(launch.cluster for launch in launches if launch.function is function)
        first = chosen[0] - chosen[0] % width, *chosen[1:]
        kernels.append(replace(report, launches=times, blocks=width, first_block=first))
    return Trace(problem, kernels, np.asarray(y))


def task(step: Step, problem: Problem, file: Path | None = None, **options: Any) -> messages.Trace:
    """A child's task that traces a step, or ``file`` in its place, with the options of :func:`run`."""
    return messages.Trace(**at(step, problem, file), options=messages.TraceOptions(**options))


def results(tasks: list[messages.Trace]) -> Iterator[Traced]:
    """The traces of tasks, done in one child process. Raises TraceError naming the step that could not be traced."""
    for task_, (_, result) in zip(tasks, isolate.run(tasks, True, SECONDS), strict=False):
        if "trace" not in result:
            message = str(result["message"]).removeprefix(f"{task_.step}: ")  # a kernel may be named as its step
            raise TraceError(f"{task_.step}: {message}")
        yield result["trace"]


def main_kernel(found: Traced) -> TracedKernel:
    """The main kernel of a trace's dictionary."""
    return loops.main_kernel(found["kernels"], lambda kernel: kernel["fma"])


def loads_per_fma(found: Traced) -> dict[str, float]:
    """By memory: loads for each multiply-add of the main kernel of a trace's dictionary; empty without any."""
    by_space = main_kernel(found)["per_fma"]
    return {space: round(by_space[space]["loads"], 4) for space in ("global", "shared", "constant") if by_space}


def traffic(found: Traced) -> dict[str, dict[str, float]]:
    """The memory figures of a resource card for each kernel of a trace's dictionary, by kernel; see cards.TRAFFIC."""
    return {kernel["name"]: _traffic(kernel) for kernel in found["kernels"]}


def _traffic(kernel: TracedKernel) -> dict[str, float]:
    """Those that there are: nothing is told for each of what does not occur."""

    def total(key: Literal["requests", "moved", "ideal"], space: str, *ops: str) -> int:
        return sum(a[key] for a in kernel["accesses"] if a["space"] == space and a["op"] in ops)

    figures = {}
    if requests := total("requests", "global", "read", "copy"):
        figures["sectors_per_request"] = round(total("moved", "global", "read", "copy") / requests, 3)
    if ideal := total("ideal", "shared", "read", "write"):
        figures["conflicts"] = round(total("moved", "shared", "read", "write") / ideal, 3)
    if fma := kernel["fma"]:
        accesses = [a for a in kernel["accesses"] if a["space"] == "global" and a["op"] in _MOVED]
        figures["bytes_per_fma"] = round(sum(a["accesses"] * a["bits"] // 8 for a in accesses) / fma, 4)
    return figures


def worst(found: Traced) -> dict[str, float]:
    """``sectors`` and ``turns`` (wavefronts) for a request, of the access with most, in a trace's dictionary."""
    accesses = [access for kernel in found["kernels"] for access in kernel["accesses"]]

    def most(space: str) -> float:
        return max((float(a["per_request"]) for a in accesses if a["space"] == space), default=0.0)

    return {"sectors": most("global"), "turns": most("shared")}


def reduced(problem: Problem) -> Problem:
    """The problem with at most four images, and matrices of at most a few blocks, their remainders kept."""
    if isinstance(problem, Gemm):
        small = {key: 384 + value % 128 if value > 512 else value for key, value in problem.shape().items()}
        return replace(problem, **small)
    assert isinstance(problem, Conv2d | Convolution)
    return replace(problem, N=min(problem.N, 4))


def _argument(value: Any, name: str, back: list[tuple[Any, DeviceArray]]) -> Argument:
    """An argument as a kernel sees it; an array of the host is copied to the device and, in ``back``, back."""
    found: Argument = np.float64(value) if isinstance(value, float) else value
    if isinstance(value, np.ndarray) and value.ndim:
        found = _seen(value, name, back)
    elif hasattr(value, "swizzle") and hasattr(value, "box"):  # a tensor map
        found = Map(_seen(np.asanyarray(value.array), name, back), value)
    elif isinstance(value, tuple):
        found = getattr(value, "_make", tuple)(_argument(part, name, back) for part in value)
    return found


def _seen(array: NDArray[Any], name: str, back: list[tuple[Any, DeviceArray]]) -> View:
    view = _view(array, name)
    if view is None:
        copied = _allocate(array.shape, array.dtype, array)
        back.append((array, copied))
        view = _view(copied, name)
        assert view is not None  # it lies in the device's memory
    return view


def _type(value: Any) -> Any:
    """What Numba compiles a kernel anew for."""
    if type(value) is View:
        return value.dtype.str, value.ndim, value.flat_order
    if type(value) is Map:
        return (Map,)
    if isinstance(value, tuple):
        return (type(value), *map(_type, value))
    return getattr(value, "dtype", type(value))


def _inside(block: Point, grid: Point) -> bool:
    return all(0 <= at < extent for at, extent in zip(block, grid, strict=True))


def _middle(grid: Point) -> Point:
    x, y, z = (extent // 2 for extent in grid)
    return x, y, z


@contextmanager
def in_place_of_the_device(carry_out: Callable[[Launch], None]) -> Iterator[None]:
    """Meanwhile device arrays are the tracer's, and launches that a GPU would take go to ``carry_out``."""

    def note(launched: Any, *arguments: Any, **named: Any) -> None:
        kernel, grid, block, shared = launched.dispatcher, launched.griddim, launched.blockdim, launched.sharedmem
        require_kernel(kernel.py_func.__name__, False, grid, named)
        require_launch(grid, block, shared, device.played(), capture.cluster(kernel))
        carry_out(Launch(kernel.py_func, grid, block, shared, arguments, capture.bounds(kernel)))

    def allocate(_: str, shape: Any, dtype: Any, values: Any) -> DeviceArray:
        return values if isinstance(values, DeviceArray) else _allocate(shape, dtype, values)

    functions = capture.arrays(allocate)
    functions |= dict.fromkeys(("mapped_array", "managed_array"), functions["device_array"])
    with (
        capture.no_device(),
        capture.launches(note),
        capture.host(**functions, as_cuda_array=lambda array, **_: array),
        capture.default_stream_only(),
    ):
        yield


def _worst_first(fault: Fault) -> tuple[tuple[int, int], bool, int]:
    """A key that sorts faults as they are told."""
    return telling(fault), fault.what.endswith(LEFT_OVER), fault.line or 0


def _report(function: Callable[..., Any], launches: list[tuple[Point, Point]], ledger: Ledger) -> KernelTrace:
    file = function.__code__.co_filename

    def text(line: int) -> str:
        return linecache.getline(file, line).strip()

    accesses = [
        Access(**key._asdict(), text=text(key.line), accesses=t.accesses, requests=t.requests, moved=t.moved,
               ideal=t.ideal, distinct=t.distinct, sample=t.sample, seen=tuple(t.seen))
        for key, t in sorted(ledger.tallies.items())
    ]  # fmt: skip
    faults = [
        replace(fault, code=text(fault.line or 0), count=ledger.counts[key], met=ledger.in_turn * ledger.met[key])
        for key, fault in ledger.faults.items()
    ]
    return KernelTrace(
        name=function.__name__,
        file=file,
        grid=launches[0][0],
        block=launches[0][1],
        launches=len(launches),
        blocks=sum(math.prod(grid) for grid, _ in launches),
        first_block=(0, 0, 0),
        accesses=accesses,
        fma=sum(ledger.fma.values()),
        fma_lines=dict(sorted(ledger.fma.items())),
        branches={line: (split, all_) for line, (split, all_) in sorted(ledger.diverged.items())},
        faults=sorted(faults, key=_worst_first),
        notes=ledger.notes,
        events=ledger.events,
        pipeline=ledger.pipeline,
        printed=ledger.printed,
        prints=ledger.prints,
        under_way=ledger.under_way,
    )

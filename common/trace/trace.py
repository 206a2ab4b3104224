"""The tracer: runs chosen blocks of a step's kernels on the CPU and reports every access to memory. In the place of
each kernel runs :class:`common.trace.executor.Executor`; its host code runs as it is."""

from __future__ import annotations

import atexit
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from common.catalog import catalog, device, inputs, limits
from common.catalog.catalog import Step
from common.catalog.problems import TRACED, Problem, parse_shape
from common.explain.faults import Fault
from common.machine_code import capture
from common.machine_code.capture import BoundStep, HostArray, order_of, replaced
from common.run import isolate
from common.run.messages import at
from common.trace import messages
from common.trace.cost import MOST_PRINTED, Ints, Ledger, report
from common.trace.executor import Argument, Executor, Order
from common.trace.functions import as_type
from common.trace.hopper.mbarriers import Map
from common.trace.memory import Global, Single, in_global, poison
from common.trace.messages import Point, Traced, TracedKernel
from common.trace.state import Launch, TraceError
from common.trace.views import View, of_device

SECONDS = 120.0  # for one trace in a child process
_ALIGNMENT = 256  # of an allocation's first byte (CUDA C++ Programming Guide, "Device Memory Accesses")
_LANES_AT_ONCE = 16384  # blocks run together up to here; beyond it NumPy gains nothing
_LANES_OF_TEAMS = 2048  # the same where warps take turns: what is known of shared memory takes much room


def shapes(step: Step) -> tuple[Problem, ...]:
    """What a step is traced at by itself: its ladder's shapes, unless its lesson names another."""
    usual = catalog.settings().usual.get(step.name)
    return (parse_shape(step.ladder, usual.shape),) if usual else TRACED[step.ladder]


# --- device arrays, and arguments of launches ---


class DeviceArray(HostArray):
    """Stands in for a device array. ``storage`` is the allocation that it, or what it is a view of, was made with;
    ``said``: what the user must know of copies to the host."""

    storage: Global | None
    said: ClassVar[set[str]] = set()

    def __array_finalize__(self, other: Any) -> None:
        self.storage = getattr(other, "storage", None)

    def split(self, section: int, stream: Any = 0) -> Iterator[Any]:
        return (self[begin : begin + section] for begin in range(0, self.size, section))

    def copy_to_host(self, ary: Any = None, stream: Any = None) -> Any:
        written = getattr(self.storage, "written", None)
        if written is not None and self.size == len(written) and not written.all():
            missing = np.flatnonzero(~written)
            first = f"{len(missing)} of {len(written)} elements, the first at {int(missing[0])}"
            self.said.add(f"a copy to the host holds elements that nothing has written: {first}")
        return super().copy_to_host(ary, stream)

    def __setitem__(self, index: Any, value: Any) -> None:
        np.asarray(self)[index] = np.asarray(value)
        self._mark(index, True)

    def poison(self) -> None:
        """From now on nothing has written here: what a launch reads before it writes it is at fault."""
        poison(np.asarray(self))
        if self.storage is not None and self.storage.written is None:
            self.storage.written = np.ones(len(self.storage.data), np.bool_)
        self._mark((), False)

    def _mark(self, index: Any, written: bool) -> None:
        if self.storage is None or self.storage.written is None or not self.size:
            return
        flags, size = self.storage.written, self.storage.dtype.itemsize
        if self.dtype.itemsize != size:  # a view as another type
            first, end = (at - self.storage.address for at in np.lib.array_utils.byte_bounds(np.asarray(self)))
            flags[first // size : -(-end // size)] = written
            return
        start = (self.__array_interface__["data"][0] - self.storage.address) // size
        steps = tuple(stride // size for stride in self.strides)
        np.lib.stride_tricks.as_strided(flags[start:], self.shape, steps)[index] = written


class DeviceNDArray(DeviceArray):
    """An array on the device, with the attributes and operators of Numba's and no others of NumPy's. NumPy's
    functions copy it to the host, and give an array of the host."""

    def __array_function__(self, function: Any, _: Any, given: Any, named: Any) -> Any:
        return function(*_on_host(given), **{name: _on_host([one])[0] for name, one in named.items()})

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **named: Any) -> Any:
        if any(isinstance(one, DeviceNDArray) for one in named.get("out", ())):
            raise TypeError("return arrays must be of ArrayType")
        return getattr(ufunc, method)(*_on_host(given), **named)

    def __getattribute__(self, name: str) -> Any:
        if name in numpy_only():
            raise AttributeError(f"'DeviceNDArray' object has no attribute {name!r}", name=name, obj=self)
        return super().__getattribute__(name)

    def __bool__(self) -> bool:  # Numba's have a length, and no truth of their own
        return len(self) > 0


def _on_host(given: Any) -> list[Any]:
    nested = [_on_host(one) if type(one) in (list, tuple) else one for one in given]
    return [np.asarray(one) if isinstance(one, DeviceNDArray) else one for one in nested]


# NumPy computes an operator on the host if the other operand is an array there, as it does for any foreign array
_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
for _name in (*(f"{way}{name}" for way in ("", "r", "i") for name in _OPERATORS), "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(DeviceNDArray, f"__{_name}__", lambda *_: NotImplemented)


@lru_cache(maxsize=1)
def numpy_only() -> frozenset[str]:
    """Methods of NumPy's arrays that Numba's device arrays do not have."""
    from numba.cuda.cudadrv import devicearray

    methods = {name for name, one in vars(np.ndarray).items() if callable(one) and not name.startswith("_")}
    return frozenset(methods - {*dir(devicearray.DeviceNDArray)})


def interface(array: DeviceArray) -> dict[str, Any]:
    """``__cuda_array_interface__``, with the array itself: no address leads back to it."""
    return {**array.__array_interface__, "version": 3, "strides": array.strides, "stream": None, "held": array}


class HostError(AttributeError):
    """The program asks the driver or the GPU for something that the tracer does not have: not the program's fault."""


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """The array whose interface an object gives, if it is one of the tracer's; raises HostError for any other."""
    given = getattr(obj, "__cuda_array_interface__", {})
    if isinstance(given.get("held"), DeviceArray):
        return given["held"]
    raise HostError(f"a {type(obj).__name__} lies in no memory that the tracer knows")


class Unset(np.ndarray[Any, Any]):
    """An array of the host that a launch is to fill: what it holds is not copied to the device."""


def allocate(shape: Any, dtype: Any, values: Any = None, order: Any = "C") -> Any:
    """Device memory that holds ``values``, or what nobody has written; values that lie there are it."""
    if isinstance(values, DeviceArray):
        return values
    shape = tuple(map(int, shape)) if isinstance(shape, Iterable) else (int(shape),)
    kind, count = np.dtype(dtype), math.prod(shape)
    raw = np.empty(count * kind.itemsize + _ALIGNMENT, np.uint8)
    address = raw.__array_interface__["data"][0]
    skip = -address % _ALIGNMENT
    data: Any = raw[skip : skip + count * kind.itemsize].view(kind)
    if values is None:
        poison(data)
    else:
        data[:] = np.asarray(values, kind).ravel(order)
    array = data.reshape(shape, order=order).view(DeviceArray)
    array.storage = in_global(data, None if values is not None else np.zeros(count, np.bool_), address + skip)
    return array


def argument(value: Any, name: str, back: list[tuple[Any, Any]]) -> Argument:
    """An argument as a kernel sees it; an array of the host is copied to the device and, in ``back``, back."""
    if hasattr(value, "swizzle") and hasattr(value, "box"):  # a tensor map
        described: Any = argument(np.asanyarray(value.array), name, back)
        return Map(described, value)
    if isinstance(value, np.void) and value.dtype.names:
        alone = np.array([value])
        held: Any = argument(alone, name, back)
        back.append((value, alone))
        return Single(held)
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(argument(part, name, back) for part in value)
    if not isinstance(value, np.ndarray):
        return np.float64(value) if isinstance(value, float) else value
    view = of_device(value, name)
    if view is None:
        held = None if isinstance(value, Unset) else np.asarray(value)
        copied = allocate(value.shape, value.dtype, held, order_of(value))
        if value.flags.writeable:
            back.append((value, copied))
        view = of_device(copied, name)
        assert view is not None  # it lies in the device's memory
    return view


def plain(argument: Any) -> Any:
    """An argument without the word for which way it is copied; another library's array as Numba's."""
    from numba import cuda
    from numba.cuda.args import ArgHint, In

    if isinstance(argument, ArgHint):
        way, argument = argument, argument.value
        if isinstance(argument, np.ndarray) and not isinstance(argument, DeviceArray):
            if isinstance(way, In):  # what lies on the device is not copied back
                argument = cuda.to_device(argument)
            elif not way.copy_input:
                argument = argument.view(Unset)
    if isinstance(argument, list | dict | set | str):
        raise NotImplementedError(
            f"a kernel takes no {type(argument).__name__}, but arrays, numbers and tuples of them"
        )
    foreign = hasattr(argument, "__cuda_array_interface__") and not isinstance(argument, np.ndarray)
    return as_cuda_array(argument) if foreign else argument


def fitted(argument: Any, kind: Any) -> Any:
    """An argument as a kernel sees it whose signature has the Numba type ``kind`` for it; raises TypeError for an
    array whose elements or axes do not fit."""
    from numba.cuda import types
    from numba.cuda.np.numpy_support import as_dtype

    if isinstance(kind, types.Array) and isinstance(argument, np.ndarray):
        wanted = as_dtype(kind.dtype)
        if argument.ndim != kind.ndim or argument.dtype.itemsize != wanted.itemsize:
            raise TypeError(f"the kernel's signature has {kind}, and it is given an array of {argument.ndim} axes of "
                            f"{argument.dtype}: a GPU takes its bytes for {wanted}")  # fmt: skip
        return argument if argument.dtype == wanted else argument.view(wanted)
    return argument if isinstance(argument, np.ndarray) else as_type(argument, kind)


def kind(value: Any) -> Any:
    """What Numba compiles a kernel anew for."""
    if type(value) is View:
        return value.dtype.str, value.ndim, value.flat_order
    if type(value) is Map:
        return (Map,)
    if isinstance(value, tuple):
        return (type(value), *map(kind, value))
    return getattr(value, "dtype", type(value))


class Tracer:
    """Stands in for a GPU, an H200 but for its ``multiprocessors``: meanwhile device arrays are the tracer's
    (:class:`DeviceArray`), and a kernel that is launched runs at once, all blocks, with the globals that it had at
    its first launch with arguments of these types. ``order``: of blocks, and of threads that write one element.
    Without ``recording``, which is quicker, no accesses are counted. ``asked``: for its multiprocessors?"""

    def __init__(
        self, order: Order = "forward", recording: bool = False, multiprocessors: int = capture.MULTIPROCESSORS
    ) -> None:
        self.order, self.recording, self.multiprocessors = order, recording, multiprocessors
        self.asked = False
        self.options = messages.TraceOptions()
        self.ledgers: dict[Callable[..., Any], Ledger] = {}
        self._executors: dict[Any, Executor] = {}
        self._stack: list[Any] = []

    def __enter__(self) -> Tracer:
        context = in_place_of_the_device(self.run, self.multiprocessors)
        self._stack.append((context, context.__enter__()))
        return self

    def __exit__(self, *error: Any) -> None:
        context, gpu = self._stack.pop()
        self.asked = self.asked or gpu.asked
        context.__exit__(*error)

    def stay(self) -> None:
        """Stand in until this process ends: print what kernels print, and at the end what was unsound, on standard
        error."""

        def run(launch: Launch) -> None:
            try:
                self.run(launch)
            finally:
                self.print(launch.function)

        def say() -> None:
            for kernel in self.reports():
                for fault in kernel.faults:
                    print(f"{Path(kernel.file).name}:{fault.line}: {fault.placed}", file=sys.stderr)

        context = in_place_of_the_device(run, self.multiprocessors)
        self._stack.append((context, context.__enter__()))  # as long as it is kept
        atexit.register(say)

    def forget(self) -> None:
        """Begin to report anew; kernels stay compiled."""
        self.ledgers = {}

    def reports(self) -> list[TracedKernel]:
        """What each kernel did in all launches since the last ``forget``."""
        return [report(function, ledger) for function, ledger in self.ledgers.items()]

    def faults(self) -> list[Fault]:
        return [fault for kernel in self.reports() for fault in kernel.faults]

    def printed(self) -> tuple[list[str], int]:
        found = self.ledgers.values()
        return [line for one in found for line in one.printed][:MOST_PRINTED], sum(one.prints for one in found)

    def print(self, function: Any) -> None:
        """Print what a kernel has printed since the last time: its first lines, and how many more there were."""
        ledger = self.ledgers.get(function)
        if ledger and ledger.prints:
            print(*ledger.printed, sep="\n")
            if more := ledger.prints - len(ledger.printed):
                print(f"... {more:,} more lines of {function.__name__}")
            ledger.printed, ledger.prints = [], 0

    def run(self, launch: Launch, blocks: Ints | None = None, quiet: bool = False, alone: bool = False) -> bool:
        """Carry a launch out, or some blocks of it; all, and at once, before a barrier of the grid: says whether all.
        ``quiet``: without recording; ``alone``: one block after the other."""
        function = launch.function
        ledger = self.ledgers.setdefault(function, Ledger())
        ledger.options, ledger.recording = self.options, self.recording and not quiet
        if not quiet:
            ledger.launches.append((launch.grid, launch.block))
        back: list[tuple[Any, Any]] = []
        names, given = list(inspect.signature(function).parameters), len(launch.arguments)
        if given != len(names):
            raise TypeError(f"Signature mismatch: {given} argument types given, but function takes {len(names)}")
        arguments = [argument(a, name, back) for a, name in zip(launch.arguments, names, strict=True)]
        key = (function, *map(kind, arguments))
        if key in self._executors:
            self._executors[key].configure(launch, ledger)
        else:
            self._executors[key] = Executor(launch, ledger)
        executor = self._executors[key]
        ledger.in_turn = executor.has_engines
        lanes = _LANES_OF_TEAMS if executor.has_engines else _LANES_AT_ONCE
        at_once = 1 if alone else max(1, lanes // (executor.lanes_per_block * executor.cluster))
        if executor.cooperative:
            blocks, at_once = None, math.prod(launch.grid)
            architecture, threads = device.played() or device.USUAL_CARD, math.prod(launch.block)
            most = limits.occupancy(architecture, threads, 0, launch.shared_bytes).blocks * self.multiprocessors
            if at_once > most:
                said = f"a barrier of the whole grid needs all {at_once} blocks resident at once"
                raise limits.LaunchLimitError(f"{said}: {self.multiprocessors} multiprocessors hold at most {most}")
        executor.run(arguments, blocks, at_once, self.order)
        for host, copied in back:
            for name in host.dtype.names or () if isinstance(host, np.void) else ():
                host[name] = copied[name][0]
            if isinstance(host, np.ndarray):
                host[...] = np.asarray(copied)
        return blocks is None


def run(
    module: ModuleType, problem: Problem, *, order: Order = "forward", recording: bool = True, **asked: Any
) -> Traced:
    """Trace a step on integers, as :class:`common.trace.messages.TraceOptions` are asked for; ``order`` and
    ``recording``: see :class:`Tracer`. Raises TraceError for what the tracer does not know."""
    tracer = Tracer(order, recording)
    options = tracer.options = messages.TraceOptions(**asked)
    step, block = BoundStep(module, problem, options.tile), options.block
    a, b = (allocate(one.shape, one.dtype, one) for one in inputs.integers(problem, 0))
    output = allocate(problem.output_shape, problem.output_dtype)
    launches: list[Launch] = []
    with tracer if options.every else in_place_of_the_device(launches.append):
        step.run(a, b, output)
    if options.every:
        return Traced(problem.ladder, problem.shape(), tracer.reports(), np.asarray(output))
    if block is not None and not any(launch.has(block) for launch in launches):
        grids = ", ".join(f"{launch.function.__name__} {launch.grid}" for launch in launches) or "nothing is launched"
        raise TraceError(f"block {','.join(map(str, block))} lies outside every grid: {grids}")
    traced: dict[Callable[..., Any], tuple[Point, int]] = {}  # by kernel: the first block, and how many
    for number, launch in enumerate(launches):
        others = np.arange(math.prod(launch.grid))
        if launch.function not in traced:
            middle = (extent // 2 for extent in launch.grid)
            x, y, z = block if block and launch.has(block) else middle
            x -= x % launch.cluster  # blocks of a cluster run together
            at = x + launch.grid[0] * (y + launch.grid[1] * z)
            own = slice(at, at + launch.cluster)
            if tracer.run(launch, others[own]):
                traced[launch.function] = (0, 0, 0), len(others)
                continue
            traced[launch.function] = (x, y, z), launch.cluster
            others = np.delete(others, own)
        if any(later.function not in traced for later in launches[number + 1 :]):
            tracer.run(launch, others, quiet=True)
    kernels = tracer.reports()
    for kernel, (function, (first, count)) in zip(kernels, traced.items(), strict=True):
        kernel.launches = sum(launch.function is function for launch in launches)
        kernel.first_block, kernel.blocks = first, count
    return Traced(problem.ladder, problem.shape(), kernels, np.asarray(output))


def task(step: Step, problem: Problem, file: Path | None = None, **options: Any) -> messages.Trace:
    """A child's task that traces a step, or ``file`` in its place."""
    return messages.Trace(**at(step, problem, file), options=messages.TraceOptions(**options))


def results(tasks: list[messages.Trace]) -> Iterator[Traced]:
    """The traces of tasks, done in one child process. Raises TraceError naming the step that could not be traced."""
    for task_, (_, result) in zip(tasks, isolate.run(tasks, True, SECONDS), strict=False):
        if result.trace is None:
            message = str(result.message).removeprefix(f"{task_.step}: ")  # a kernel may be named as its step
            raise TraceError(f"{task_.step}: {message}")
        yield result.trace


def launch_of(
    launched: Any, arguments: Sequence[Any], named: Any, clusters: bool = True, capability: str | None = None
) -> Launch:
    """What a call of ``kernel[grid, block]`` is to carry out. Raises LaunchLimitError for what no GPU takes, or none
    of that compute capability. Without ``clusters`` no launch has any: the kernel's bound is but the most of one."""
    kernel, grid, block, shared = launched.dispatcher, launched.griddim, launched.blockdim, launched.sharedmem
    limits.require_kernel(kernel.py_func.__name__, bool(kernel.targetoptions.get("device")), grid, named)
    bounds = capture.bounds(kernel)[: None if clusters else 2]
    launch = Launch(kernel.py_func, grid, block, shared, tuple(arguments), bounds)
    limits.require_launch(grid, block, shared, capability, launch.cluster)
    return launch


@contextmanager
def in_place_of_the_device(
    carry_out: Callable[[Launch], object], multiprocessors: int = capture.MULTIPROCESSORS
) -> Iterator[capture.Device]:
    """Meanwhile device arrays are the tracer's, and launches that a GPU would take go to ``carry_out``."""
    from numba import cuda

    def note(launched: Any, *arguments: Any, **named: Any) -> None:
        carry_out(launch_of(launched, arguments, named, capability=device.played()))

    arrays = replaced(cuda, **capture.arrays(allocate), as_cuda_array=lambda array, **_: array)
    with capture.no_device(multiprocessors) as gpu, capture.launches(note), arrays:
        yield gpu

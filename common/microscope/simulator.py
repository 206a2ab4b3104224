"""Numba's CUDA simulator, made faster and stricter; ``install`` changes the simulator of this process.

Faster: the simulator starts an operating system's thread for every CUDA thread and polls them all. Here CUDA threads
run one after the other until one waits at a barrier; then another goes on. Blocks of a cluster run at the same time,
with Hopper's barriers, copies and wgmma (:mod:`common.microscope.asynchronous`).

Stricter, as a GPU or a careful reader would be: a launch beyond a GPU's limits is refused, and so is more shared
memory than a block has. An index that is negative or too large ends the kernel and is named with its array. Memory
that a step did not write holds NaN, or integers that nobody takes for 0. Threads that wait at different barriers, and
lanes of a warp that wait for lanes that do not come, end the kernel. Globals are those of the first launch
(:mod:`common.microscope.frozen`). Blocks and threads run in an order that ``order`` sets and that changes from
launch to launch, and threads go on in reverse after each barrier, so that a missing one shows.

Import it only where the simulator is switched on.
"""

from __future__ import annotations

import copy
import itertools
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn

import greenlet
import numba
import numpy as np
from numba import cuda
from numba.core.types import abstract
from numba.cuda import types
from numba.cuda.np import numpy_support
from numba.cuda.simulator import kernel, kernelapi
from numba.cuda.simulator.args import ArgHint, InOut
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeShape, FakeWithinKernelCUDAArray

from common.book import device, limits, occupancy
from common.code import capture
from common.measure import check
from common.microscope import asynchronous, frozen, simulated_threads, warps

Point = tuple[int, ...]


class DivergentBarrierError(RuntimeError):
    """Threads of one block wait at different barriers, or end where others wait."""


def enforce_limits() -> None:
    """From now on the simulator refuses a launch that a GPU would refuse."""
    kernel.FakeCUDAKernel.__getitem__ = _configure


def install() -> None:
    """From now on kernels run this way in this process."""
    enforce_limits()
    # every kernel of a launch in one order, and those of the next in another
    check.order_of_launch = lambda number: order(ORDERS[number % len(ORDERS)])
    cuda.jit = _jit
    cuda.device_array, cuda.device_array_like = _device_array, _device_array_like
    cuda.mapped_array = cuda.managed_array = _device_array
    for name, stand_in in limits.STREAMS.items():
        setattr(cuda, name, stand_in)
    kernel.FakeCUDAKernel.__call__ = _call
    abstract.Type.__call__ = _cast  # type: ignore[method-assign]
    kernelapi.FakeCUDALocal.array = _local_array
    kernelapi.FakeCUDAShared.array = _shared_array
    kernelapi.FakeCUDAConst.array_like = _constant_array
    for name in _IN_KERNELS:
        if not hasattr(cuda, name):
            setattr(cuda, name, frozen.Stub(name))


# Options of cuda.jit that Python has no use for.
_COMPILED = ("extensions", "forceinline", "launch_bounds", "lineinfo", "lto", "max_registers")
_plain_jit = cuda.jit


def _jit(*arguments: Any, **options: Any) -> Any:
    made = _plain_jit(*arguments, **{key: value for key, value in options.items() if key not in _COMPILED})
    inlined = options.get("inline") in (True, "always")

    def decorate(function: Any) -> Any:
        decorated = made if isinstance(made, kernel.FakeCUDAKernel) else made(function)
        decorated.inlined, decorated.launch_bounds = inlined, options.get("launch_bounds")
        return decorated

    return decorate(None) if isinstance(made, kernel.FakeCUDAKernel) else decorate


_NUMBERS = frozenset((int, float, bool, *(np.dtype(code).type for code in "?bhilBHILefd")))
_plain_cast = abstract.Type.__call__
_casts: dict[int, tuple[Any, Callable[[Any], Any]]] = {}  # by type


def _cast(self: Any, *args: Any) -> Any:
    """``uint32(value)``, which kernels do more often than anything else: Numba asks first whether it is a type."""
    if len(args) != 1 or type(args[0]) not in _NUMBERS:
        return _plain_cast(self, *args)
    kept = _casts.get(id(self))
    if kept is None:
        plain = isinstance(self, (numba.types.Integer, numba.types.Float))
        kept = _casts[id(self)] = self, getattr(np, self.name) if plain else self.cast_python_value
    return kept[1](args[0])


# --- arrays as kernels see them ---

GLOBAL, SHARED, LOCAL = "global", "shared", "local"


class KernelArray:
    """An array inside a kernel: only whole indices from 0 to its extents, and slices."""

    __slots__ = ("_array", "shape")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self.shape = FakeShape(array.shape)

    def __getitem__(self, index: Any) -> Any:
        try:
            if type(index) is tuple:
                for i in index:
                    if i < 0:
                        self._refuse(index)
            elif index < 0:
                self._refuse(index)
            value = self._array[index]
        except TypeError:  # a slice
            value = self._array[index]
        except IndexError:
            self._refuse(index)
        return self._view(value) if type(value) is np.ndarray else value

    def __setitem__(self, index: Any, value: Any) -> None:
        try:
            if type(index) is tuple:
                for i in index:
                    if i < 0:
                        self._refuse(index)
            elif index < 0:
                self._refuse(index)
            self._array[index] = value
        except TypeError:
            self._array[index] = value
        except IndexError:
            self._refuse(index)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._array, name)
        return self._view(value) if type(value) is np.ndarray else value

    def __len__(self) -> int:
        return len(self._array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._array, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> Any:
        args = tuple(arg._array if isinstance(arg, KernelArray) else arg for arg in args)
        return getattr(ufunc, method)(*args, **options)

    @property
    def flat(self) -> _Flat:
        return _Flat(self)

    def reshape(self, *shape: Any) -> KernelArray:
        return self._view(self._array.reshape(*shape))

    def flat_read(self, start: int, stop: int) -> None:
        """Elements start to stop, in memory order, are about to be read."""

    def flat_write(self, start: int, stop: int, values: Any) -> None:
        """Elements start to stop, in memory order, are about to become ``values``."""

    def under_way(self, start: int, stop: int) -> None:
        """Copies to elements start to stop, in memory order, have begun; they end with a write, or arrive."""

    def arrived(self, start: int, stop: int) -> None:
        """What the copy engine brings to elements start to stop, in memory order, is there."""

    def _view(self, array: np.ndarray[Any, Any]) -> KernelArray:
        return KernelArray(array)

    def _refuse(self, index: Any) -> NoReturn:
        raise IndexError(_misplaced(self, index, self.shape)) from None


class _Flat:
    """The elements in memory order, for slices of known length."""

    __slots__ = ("_owner",)

    def __init__(self, owner: KernelArray) -> None:
        self._owner = owner

    def __getitem__(self, index: slice) -> Any:
        self._check(index)
        self._owner.flat_read(index.start, index.stop)
        return self._owner._array.flat[index]

    def __setitem__(self, index: slice, values: Any) -> None:
        self._check(index)
        self._owner.flat_write(index.start, index.stop, values)
        self._owner._array.flat[index] = values

    def _check(self, index: slice) -> None:
        size = self._owner._array.size
        if index.start < 0 or index.stop > size:
            wrong = index.start if index.start < 0 else int(index.stop) - 1
            raise IndexError(_misplaced(self._owner, wrong, (size,))) from None


def _misplaced(array: KernelArray, index: Any, shape: tuple[int, ...]) -> str:
    """Says which index of which array is not inside which shape."""
    indices = index if isinstance(index, tuple) else (index,)
    indices = tuple(int(i) if hasattr(i, "__index__") else i for i in indices)
    name = name_of(array)
    place = f"{name}[{', '.join('...' if isinstance(i, slice) else str(i) for i in indices)}]"
    if len(indices) > len(shape):
        return f"{place} has {len(indices)} indices, and {name} has shape {tuple(shape)}"
    for axis, (i, extent) in enumerate(zip(indices, shape, strict=False)):
        if isinstance(i, int) and not 0 <= i < extent:
            where = f" on axis {axis}" if len(shape) > 1 else ""
            what = "is negative, so it wraps around" if i < 0 else "is out of bounds"
            return f"{place}: index {i}{where} {what}: {name} has shape {tuple(shape)}"
    return f"{place} is no index of {name}, which has shape {tuple(shape)}"


def name_of(array: KernelArray) -> str:
    """What the kernel calls this array: its name in the outermost frame that has one."""
    found = "the array"
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _Block._work.__code__:
        if frame.f_code.co_filename != __file__:
            names = (name for name, value in frame.f_locals.items() if value is array)
            found = next(names, found)
        frame = frame.f_back
    return found


def _local_array(_: Any, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
    array, frame = _unwritten(shape, dtype), sys._getframe(1)
    thread = kernel._get_kernel_context().thread
    thread.arrays[frame.f_code, frame.f_lasti] = array
    return _make(array, LOCAL)


def _constant_array(_: Any, array: Any) -> Any:
    return _make(array, GLOBAL) if isinstance(array, np.ndarray) else array


def _shared_array(shared: Any, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
    """One array for each place in the code; all of dynamic shared memory is one."""
    if shape == 0:
        return shared._allocations.dynamic(_as_dtype(dtype))
    key = _place(sys._getframe(1))
    found = shared._allocations.get(key)
    return shared._allocations.put(key, _unwritten(shape, dtype)) if found is None else found


def _place(frame: FrameType | None) -> tuple[Any, ...]:
    """Where shared memory is asked for, as Numba tells it: a function has its arrays once for the types it is given.

    One that is inlined has them in each place that it is inlined into.
    """
    compiled = kernel._get_kernel_context().compiled
    place: list[Any] = []
    while frame is not None and frame.f_code is not _Block._work.__code__:
        code = frame.f_code
        if code.co_filename != __file__:
            place += (id(code), frame.f_lasti)
            if id(code) in compiled:
                given = frame.f_locals  # made anew each time that it is asked for
                place += [_kind(given[name]) for name in code.co_varnames[: code.co_argcount]]
                break
        frame = frame.f_back
    return tuple(place)


_PLAIN = frozenset({int, float, bool, type(None), FunctionType})


def _kind(value: Any) -> Any:
    """A value's type, as far as Python tells it from what Numba would infer."""
    if type(value) in _PLAIN:
        return type(value)
    value = value._array if isinstance(value, KernelArray) else value
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "ndim"):
        return type(value)
    # an index is an int here where it is an int32 there
    return (dtype, value.ndim) if value.ndim or dtype.kind not in "iu" else int


class _Allocations(dict[Any, KernelArray]):
    """A block's shared arrays by the place that made them; ``bytes`` is its dynamic shared memory."""

    def __init__(self, dynamic: int) -> None:
        super().__init__()
        self.bytes = np.empty(dynamic, np.uint8)
        self._dynamic: dict[Any, KernelArray] = {}
        self._require(0)

    def setdefault(self, _: Any, array: np.ndarray[Any, Any]) -> KernelArray:  # type: ignore[override]
        """The array of the place that calls, whatever it calls itself: what a lesson's helper uses."""
        place = _place(sys._getframe(1))
        return self[place] if place in self else self.put(place, array)

    def put(self, place: Any, array: np.ndarray[Any, Any]) -> KernelArray:
        """Make ``array`` that of a place. Raises LaunchLimitError if a block has no room for it."""
        self._require(array.nbytes + sum(item.nbytes for item in self.values()))
        _poison(array)
        self[place] = _make(array, SHARED)
        return self[place]

    def dynamic(self, dtype: np.dtype[Any]) -> KernelArray:
        """Dynamic shared memory as an array."""
        if dtype not in self._dynamic:
            count = self.bytes.size // dtype.itemsize
            self._dynamic[dtype] = _make(np.frombuffer(self.bytes.data, dtype, count), SHARED)
        return self._dynamic[dtype]

    def forget(self) -> None:
        """A block begins: its shared memory holds nothing that was written."""
        for array in self.values():
            _poison(array._array)
        _poison(self.bytes[: self.bytes.size // 2 * 2].view(np.uint16))

    def _require(self, static: int) -> None:
        limits.require_shared(static, self.bytes.size, device.played())


def _usual(array: np.ndarray[Any, Any], space: str) -> Any:
    # a thread's own arrays are used most and harm no other thread, so they stay NumPy's
    return array if space == LOCAL else KernelArray(array)


_make: Callable[[np.ndarray[Any, Any], str], Any] = _usual
_skipped: Callable[[_Block], None] | None = None


@contextmanager
def watched_by(make: Callable[[np.ndarray[Any, Any], str], Any], skipped: Callable[[_Block], None]) -> Iterator[None]:
    """Kernels launched meanwhile get their arrays from ``make(array, GLOBAL or SHARED or LOCAL)``.

    ``skipped`` is called with the block where threads wait at a barrier that others, ended by now, did not come to.
    """
    global _make, _skipped
    before, (_make, _skipped) = (_make, _skipped), (make, skipped)
    try:
        yield
    finally:
        _make, _skipped = before


# Halves of a word: made of one of these, a float of any width is NaN, and an integer neither 0 nor small. The sign of
# what was not written changes from one allocation or launch to the next.
_PATTERNS = (0x7FF9, 0xFFFB, 0x7FFD, 0xFFFA, 0x7FFB, 0xFFFD)
_pattern = _PATTERNS[0]
_made = 0  # allocations on the device


def _poison(array: np.ndarray[Any, Any]) -> None:
    """Let an array hold what memory holds that nobody wrote."""
    if array.dtype.kind == "f":
        array.fill(np.nan)
    elif array.dtype.kind == "b" or array.dtype.itemsize % 2:
        array.view(np.uint8).fill(1 if array.dtype.kind == "b" else _pattern & 0xFF)
    else:
        array.view(np.uint16).fill(_pattern)


def _unwritten(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    array = np.empty(shape, _as_dtype(dtype))
    _poison(array)
    return array


def _device_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C", **_: Any) -> Any:
    """``cuda.device_array``, which holds whatever was there before."""
    global _pattern, _made
    _made += 1
    _pattern = _PATTERNS[_made % len(_PATTERNS)]
    array = np.ndarray(shape, dtype, strides=strides, order=order)
    _poison(array.ravel("K") if array.flags.forc else array)
    return FakeCUDAArray(array)


def _device_array_like(array: Any, **_: Any) -> Any:
    columns_first = array.flags["F_CONTIGUOUS"] and not array.flags["C_CONTIGUOUS"]
    return _device_array(array.shape, array.dtype, order="F" if columns_first else "C")


def _as_dtype(dtype: Any) -> Any:
    if isinstance(dtype, types.Type):
        dtype = numpy_support.as_dtype(dtype)
    return np.dtype(dtype)


# --- launches ---

ORDERS = ("forward", "backward", "shuffled")

_launches = _with_engines = 0  # in this process
_order: str | None = None
# by kernel: how often it was launched, and by the types of its arguments what it was compiled with
_turns: weakref.WeakKeyDictionary[Any, Iterator[str]] = weakref.WeakKeyDictionary()
_kernels: weakref.WeakKeyDictionary[Any, dict[Any, frozen.Frozen]] = weakref.WeakKeyDictionary()
_functions: weakref.WeakKeyDictionary[Any, frozen.Frozen] = weakref.WeakKeyDictionary()


def launches() -> int:
    """How many kernels this process has started."""
    return _launches


def clusters_with_engines() -> int:
    """In how many clusters of blocks, in this process, a thread has used the asynchronous machine."""
    return _with_engines


@contextmanager
def order(direction: str) -> Iterator[None]:
    """Kernels launched meanwhile run their blocks and threads in this order, one of ``ORDERS``.

    Without it, each kernel takes one after the other.
    """
    global _order
    if direction not in ORDERS:
        raise ValueError(f"{direction=} must be one of {', '.join(ORDERS)}")
    before, _order = _order, direction
    try:
        yield
    finally:
        _order = before


def _numbers(count: int, direction: str) -> Iterator[int]:
    """The numbers below ``count`` in an order; a shuffle is never held as a whole."""
    if direction != "shuffled":
        return iter(range(count) if direction == "forward" else range(count - 1, -1, -1))
    step = next(i for i in range(int(count * 0.618) + 1, 2 * count + 1) if math.gcd(i, count) == 1)
    return ((count // 3 + i * step) % count for i in range(count))


def _threads(count: int, direction: str) -> Iterator[int]:
    """The numbers of a block's threads in an order: warp by warp, for a warp may run ahead of the others."""
    if direction != "shuffled":
        return _numbers(count, direction)
    groups = [range(first, min(first + occupancy.WARP, count)) for first in range(0, count, occupancy.WARP)]
    return itertools.chain.from_iterable(groups[i] for i in _numbers(len(groups), direction))


def _point(number: int, extents: Point) -> Point:
    """The point with this number, x fastest, as the hardware counts."""
    columns, rows, _ = extents
    return number % columns, number // columns % rows, number // (columns * rows)


def _configure(self: Any, configuration: Any) -> Any:
    """The kernel with a grid, a block, perhaps the default stream, and perhaps bytes of dynamic shared memory."""
    limits.require_unconfigured(self.fn.__name__, self.grid_dim)
    grid, block, dynamic = limits.require_configuration(self.fn.__name__, configuration)
    limits.require_launch(grid, block, dynamic, device.played(), capture.cluster(self))
    configured = copy.copy(self)
    configured.grid_dim, configured.block_dim, configured.dynshared_size = grid, block, dynamic
    return configured


def _call(self: Any, *args: Any, **keywords: Any) -> Any:
    """Run a kernel block by block; inside a kernel, call a device function."""
    context = kernel._get_kernel_context()
    if context is not None:
        return context.bound(self)(*args, **keywords)
    limits.require_kernel(self.fn.__name__, self._device, self.grid_dim, keywords)
    global _launches, _pattern
    _launches += 1
    _pattern = _PATTERNS[_launches % len(_PATTERNS)]
    turns = _turns.setdefault(self.fn, itertools.cycle(ORDERS))
    direction = _order or next(turns)
    copied_back: list[Callable[[], None]] = []
    values = [_argument(arg, copied_back) for arg in args]
    compiled = _kernels.setdefault(self.fn, {})
    types_given = frozen.signature(args)
    if types_given not in compiled:
        compiled[types_given] = frozen.Frozen(self.fn)
    module = _CudaModule(self, compiled[types_given])
    with kernel._push_kernel_context(module):
        function = module.start(self.fn)
        _run(module, function, values, direction)
    for copy_back in copied_back:
        copy_back()
    return None


def _run(module: _CudaModule, function: Callable[..., Any], values: list[Any], direction: str) -> None:
    """Run the blocks: those of a cluster together, clusters one after the other."""
    launched = module.launched
    columns, rows, layers = launched.grid_dim
    size = capture.cluster(launched)
    own = module.shared._allocations
    allocations = [own, *(_Allocations(launched.dynshared_size) for _ in range(size - 1))]
    for number in _numbers(columns // size * rows * layers, direction):
        first, row, layer = _point(number, (columns // size, rows, layers))
        blocks = []
        for rank, own in enumerate(allocations):
            own.forget()
            blocks.append(_Block(module, function, values, own, rank, (first * size + rank, row, layer)))
        _Cluster(module, blocks, direction).run()


def _argument(value: Any, copied_back: list[Callable[[], None]]) -> Any:
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(_argument(part, copied_back) for part in value)
    if isinstance(value, np.ndarray) and value.ndim > 0:
        value = InOut(value).to_device(copied_back)
    elif isinstance(value, ArgHint):
        value = value.to_device(copied_back)
    return _given(value)


def _given(value: Any) -> Any:
    """An array from outside, as a kernel sees it."""
    if isinstance(value, FakeCUDAArray):
        return FakeWithinKernelCUDAArray(value) if value._ary.dtype.names else _make(value._ary, GLOBAL)
    return _make(value, GLOBAL) if isinstance(value, np.ndarray) else value


# What only kernels have, and a module that imports it by its name.
_IN_KERNELS = (
    "threadIdx", "blockIdx", "blockDim", "gridDim", "laneid", "warpsize", "grid", "gridsize", "shared", "local",
    "const", "atomic", "fp16", "cg", "syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or",
    "threadfence", "threadfence_block", "threadfence_system", "popc", "fma", "cbrt", "brev", "clz", "ffs", "selp",
    "syncwarp", "activemask", "lanemask_lt", "shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync",
    "all_sync", "any_sync", "eq_sync", "ballot_sync", "match_any_sync", "match_all_sync", "nanosleep",
)  # fmt: skip


class _Now:
    """``threadIdx`` or ``blockIdx`` imported by its name: of the thread that runs now."""

    def __init__(self, module: _CudaModule, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, axis: str) -> Any:
        return getattr(getattr(self._module, self._name), axis)


class _CudaModule(kernelapi.FakeCUDAModule):  # type: ignore[misc]
    """What ``cuda`` is inside a kernel and the device functions it calls. ``thread`` is the one that runs now.

    ``compiled`` has the code of those functions that are not inlined into others.
    """

    thread: _Thread
    block: _Block

    def __init__(self, launched: Any, values: frozen.Frozen) -> None:
        super().__init__(launched.grid_dim, launched.block_dim, 0)
        self.launched = launched
        self.shared._allocations = _Allocations(launched.dynshared_size)
        self.compiled: set[int] = set()
        self._values = values
        self._bound: dict[Any, Any] = {}

    def start(self, function: Any) -> Callable[..., Any]:
        """The kernel itself."""
        self.compiled.add(id(function.__code__))
        return self._values.bound(self, _given)

    def bound(self, called: Any) -> Callable[..., Any]:
        """A device function as this kernel knows it."""
        function = called.fn
        if function not in self._bound:
            inlined = getattr(called, "inlined", False)
            known = self._values.inlined if inlined else _functions
            if function not in known:
                known[function] = frozen.Frozen(function)
            if not inlined:
                self.compiled.add(id(function.__code__))
            self._bound[function] = known[function].bound(self, _given)
        found: Callable[..., Any] = self._bound[function]
        return found

    def named(self, name: str) -> Any:
        """What ``from numba.cuda import name`` means."""
        return _Now(self, name) if name in ("threadIdx", "blockIdx") else getattr(self, name)

    @property
    def threadIdx(self) -> Any:  # noqa: N802
        return self.thread.index

    @property
    def blockIdx(self) -> Any:  # noqa: N802
        return self.block.index

    @property
    def laneid(self) -> int:
        return self.thread.number % occupancy.WARP

    @property
    def asynchronous(self) -> asynchronous.Machine:
        """The machine of the cluster that runs now; what ``lessons/hopper.py`` looks for."""
        return self.block.cluster.asynchronous()

    def syncthreads(self) -> None:
        self.block.wait(sys._getframe(1))

    def syncthreads_count(self, value: Any) -> int:
        return sum(self.block.votes(value, sys._getframe(1)))

    def syncthreads_and(self, value: Any) -> int:
        return int(all(self.block.votes(value, sys._getframe(1))))

    def syncthreads_or(self, value: Any) -> int:
        return int(any(self.block.votes(value, sys._getframe(1))))

    def nanosleep(self, _: Any) -> None:
        pass

    # --- of a warp ---

    def syncwarp(self, mask: int = warps.FULL) -> None:
        self.block.meet("syncwarp", mask, None, sys._getframe(1))

    def activemask(self) -> int:
        return sum(1 << lane for lane in self.block.meet(_ACTIVE, warps.FULL, None, sys._getframe(1)))

    def lanemask_lt(self) -> int:
        return (1 << self.laneid) - 1

    def _shuffle(self, call: str, mask: int, value: Any, source: int) -> Any:
        heard = self.block.meet(call, mask, value, sys._getframe(2))
        if not 0 <= source < occupancy.WARP:
            return value
        return heard[source] if source in heard else _unwritten((), np.asarray(value).dtype)[()]

    def shfl_sync(self, mask: int, value: Any, src_lane: int) -> Any:
        return self._shuffle("shfl_sync", mask, value, int(src_lane) % occupancy.WARP)

    def shfl_up_sync(self, mask: int, value: Any, delta: int) -> Any:
        return self._shuffle("shfl_up_sync", mask, value, self.laneid - int(delta) % occupancy.WARP)

    def shfl_down_sync(self, mask: int, value: Any, delta: int) -> Any:
        return self._shuffle("shfl_down_sync", mask, value, self.laneid + int(delta) % occupancy.WARP)

    def shfl_xor_sync(self, mask: int, value: Any, lane_mask: int) -> Any:
        return self._shuffle("shfl_xor_sync", mask, value, self.laneid ^ int(lane_mask) % occupancy.WARP)

    def all_sync(self, mask: int, predicate: Any) -> bool:
        return all(self.block.meet("all_sync", mask, bool(predicate), sys._getframe(1)).values())

    def any_sync(self, mask: int, predicate: Any) -> bool:
        return any(self.block.meet("any_sync", mask, bool(predicate), sys._getframe(1)).values())

    def eq_sync(self, mask: int, predicate: Any) -> bool:
        return len(set(self.block.meet("eq_sync", mask, bool(predicate), sys._getframe(1)).values())) == 1

    def ballot_sync(self, mask: int, predicate: Any) -> int:
        said = self.block.meet("ballot_sync", mask, bool(predicate), sys._getframe(1))
        return warps.signed(sum(1 << lane for lane, yes in said.items() if yes))

    def match_any_sync(self, mask: int, value: Any) -> int:
        said = self.block.meet("match_any_sync", mask, value, sys._getframe(1))
        return warps.signed(sum(1 << lane for lane, other in said.items() if warps.same(other, value)))

    def match_all_sync(self, mask: int, value: Any) -> tuple[int, bool]:
        said = self.block.meet("match_all_sync", mask, value, sys._getframe(1))
        equal = all(warps.same(other, value) for other in said.values())
        return warps.signed(sum(1 << lane for lane in said)) if equal else 0, equal

    # --- of bits, of both widths and signs ---

    def popc(self, value: Any) -> int:
        return warps.bits(value)[0].bit_count()

    def clz(self, value: Any) -> int:
        number, width = warps.bits(value)
        return width - number.bit_length()

    def ffs(self, value: Any) -> int:
        number, _ = warps.bits(value)
        return (number & -number).bit_length()

    def brev(self, value: Any) -> int:
        number, width = warps.bits(value)
        return int(f"{number:0{width}b}"[::-1], 2)


# --- threads and barriers ---

_ACTIVE = "activemask"  # whoever comes to this while nobody else can go on is active


class _Thread(greenlet.greenlet):  # type: ignore[misc]
    """Lends itself to one CUDA thread after the other, until one waits. ``arrays`` are its own, by place."""

    point: Point
    index: Any
    number: int
    clock: warps.Clock
    barrier: tuple[CodeType, int, int]
    arrays: dict[tuple[CodeType, int], np.ndarray[Any, Any]]


class _Cluster:
    """Blocks that run at the same time, one until it can go on no longer, then the next.

    What they use of Hopper's asynchronous machine is made when a thread asks for it.
    """

    def __init__(self, module: _CudaModule, blocks: list[_Block], direction: str) -> None:
        self.module, self.direction = module, direction
        self.blocks = [blocks[i] for i in _numbers(len(blocks), direction)]
        self.ranks = blocks
        self.machine: asynchronous.Machine | None = None
        for block in blocks:
            block.cluster = self

    def asynchronous(self) -> asynchronous.Machine:
        if self.machine is None:
            global _with_engines
            _with_engines += 1
            bounds = getattr(self.module.launched, "launch_bounds", None)
            self.machine = asynchronous.Machine(self.ranks, ORDERS.index(self.direction), bounds)
        return self.machine

    def run(self) -> None:
        """Run every thread to its end; raises what one of them raised, with its place."""
        for block in self.blocks:
            block.start(self.direction)
        while True:
            for block in self.blocks:
                while block.advance():
                    pass
            if any(block.ready for block in self.blocks):
                continue
            stuck = any(block.parked for block in self.blocks)
            if self.machine is None or not stuck:
                break
            if not self.machine.deliver():
                raise self.machine.deadlock()


class _Block:
    """A block whose threads are ``waiting`` to start, ``ready`` to go on, or ``blocked`` at the next barrier.

    Others wait in ``meetings`` for lanes of their warp, or are ``parked`` until someone wakes them. ``barriers``
    counts those that all threads have passed.
    """

    cluster: _Cluster

    def __init__(
        self,
        module: _CudaModule,
        function: Callable[..., Any],
        args: list[Any],
        allocations: _Allocations,
        rank: int,
        point: Point,
    ) -> None:
        self.module, self.function, self.args = module, function, args
        self.allocations, self.rank = allocations, rank
        self.point, self.index = point, kernelapi.Dim3(*point)
        self.extents = module.launched.block_dim
        self.size = math.prod(self.extents)
        self.barriers = 0
        self.ended: list[int] = []
        self.ready: deque[_Thread] = deque()
        self.blocked: deque[_Thread] = deque()
        self.parked: dict[_Thread, simulated_threads.Parked] = {}
        self.meetings: dict[warps.Place, warps.Meeting] = {}
        self.spare = 0  # registers that threads gave away
        self.asking: list[_Thread] = []  # for registers
        self._votes: dict[int, list[bool]] = {}

    def start(self, direction: str) -> None:
        """All threads wait to start, in this order."""
        self.waiting = deque(_threads(self.size, direction))

    def advance(self) -> bool:
        """Let a thread run until it waits; False if none can without what others do, or all have ended."""
        while True:
            # a warp whose lanes have met runs ahead of those that have not started
            if self.ready:
                thread = self.ready.popleft()
            elif self.waiting:
                thread = _Thread(self._work)
            elif self.meetings:
                if not self._meet_actively():
                    return False
                continue
            elif self.blocked and not self.parked:
                self._release()
                continue
            else:
                return False
            self.module.block, self.module.thread = self, thread
            self.module.shared._allocations = self.allocations
            thread.switch()
            return True

    def park(self, why: simulated_threads.Parked) -> None:
        """The current thread goes on when it is woken."""
        thread = self.module.thread
        self.parked[thread] = why
        thread.parent.switch()

    def wake(self, thread: _Thread) -> None:
        """A thread that is parked may go on; one that is not goes on anyway."""
        if self.parked.pop(thread, None):
            self.ready.append(thread)

    def place(self, number: int) -> Point:
        """The thread with this number."""
        return _point(number, self.extents)

    def _work(self) -> None:
        thread = greenlet.getcurrent()
        assert isinstance(thread, _Thread)
        with np.errstate(all="ignore"):  # as on a GPU
            while self.waiting and not self.ready:
                thread.number = self.waiting.popleft()
                thread.point = _point(thread.number, self.extents)
                thread.index, thread.arrays = kernelapi.Dim3(*thread.point), {}
                thread.clock = warps.FIRST_CLOCKS[thread.number % occupancy.WARP]
                try:
                    self.function(*self.args)
                except Exception as error:
                    raise self._placed(error, thread) from None
                self.ended.append(thread.number)
                if self.cluster.machine:
                    self.cluster.machine.ended(self, thread.number)
                if self.meetings:
                    self._end_meetings(thread.number // occupancy.WARP)

    def _placed(self, error: Exception, thread: _Thread) -> Exception:
        """The error with the thread's place in front, as the simulator words it."""
        text = f"tid={list(thread.index)} ctaid={list(self.index)}: {error}"
        try:
            return type(error)(text).with_traceback(error.__traceback__)
        except TypeError:  # an exception that takes other arguments
            return RuntimeError(text).with_traceback(error.__traceback__)

    def wait(self, frame: FrameType) -> None:
        """The current thread has come to the barrier where ``frame`` is."""
        thread = self.module.thread
        thread.barrier = frame.f_code, frame.f_lasti, frame.f_lineno
        self.blocked.append(thread)
        thread.parent.switch()

    def votes(self, value: Any, frame: FrameType) -> list[bool]:
        """What all threads that come to this barrier say."""
        said = self._votes.setdefault(self.barriers, [])
        said.append(bool(value))
        self.wait(frame)
        return said

    def _release(self) -> None:
        """All threads have come to a barrier or ended: those that wait may go on, the last first."""
        self.ready, self.blocked = deque(reversed(self.blocked)), deque()
        self.barriers += 1
        if self.cluster.machine:
            self.cluster.machine.synced(self)
        if len({thread.barrier[:2] for thread in self.ready}) > 1:
            raise DivergentBarrierError(self._divergence())
        if self.ended:
            if _skipped is None:
                raise DivergentBarrierError(self.skipping())
            _skipped(self)

    def skipping(self) -> str:
        """Who has ended where the others wait at a barrier."""
        first = _point(min(self.ended), self.extents)
        return (
            f"{len(self.ended)} of {self.size} threads of block {self.point}, such as {first}, end and never come to "
            f"the barrier at line {self.ready[0].barrier[2]} that the others wait at"
        )

    def _divergence(self) -> str:
        places: dict[int, list[_Thread]] = {}
        for thread in self.ready:
            places.setdefault(thread.barrier[2], []).append(thread)
        parts = [
            f"{len(threads)} threads, such as {min(thread.point for thread in threads)}, wait at line {line}"
            for line, threads in sorted(places.items())
        ]
        return f"threads of block {self.index} wait at different barriers: {'; '.join(parts)}"

    # --- lanes that meet ---

    def meet(self, call: str, mask: Any, value: Any, frame: FrameType) -> dict[int, Any]:
        """The current thread waits for the lanes of its warp that ``mask`` names; what each brought, by lane."""
        thread, named = self.module.thread, int(mask) & warps.FULL
        warp, lane = divmod(thread.number, occupancy.WARP)
        warps.require_named(call, named, lane, frame.f_lineno)
        place = warps.Place(warp, call, named, frame.f_code, frame.f_lasti, frame.f_lineno)
        meeting = self.meetings.setdefault(place, warps.Meeting(place))
        meeting.threads.append(thread)
        meeting.brought[lane] = value
        if call != _ACTIVE and self._complete(meeting):
            self._end(meeting)
        thread.parent.switch()
        return meeting.brought

    def _complete(self, meeting: warps.Meeting) -> bool:
        if len(meeting.brought) == meeting.place.mask.bit_count():
            return True
        fewer = self.ended or (meeting.place.warp + 1) * occupancy.WARP > self.size
        return bool(fewer) and not self._missing(meeting)

    def _missing(self, meeting: warps.Meeting) -> list[int]:
        first = meeting.place.warp * occupancy.WARP
        absent = range(self.size - first, occupancy.WARP)  # a block's last warp may have fewer lanes
        return meeting.missing([*(n - first for n in self.ended if 0 <= n - first < occupancy.WARP), *absent])

    def _end(self, meeting: warps.Meeting) -> None:
        """Those who have met go on, the last first."""
        del self.meetings[meeting.place]
        if meeting.place.call == "syncwarp":  # the others order no memory
            together = warps.merged([thread.clock for thread in meeting.threads])
            for thread in meeting.threads:
                thread.clock = warps.later(together, thread.number % occupancy.WARP)
            if self.cluster.machine:
                self.cluster.machine.lanes_synced(self, [thread.number for thread in meeting.threads])
        self.ready.extendleft(meeting.threads)

    def _end_meetings(self, warp: int) -> None:
        """A lane has ended: nobody waits for it any longer."""
        for meeting in list(self.meetings.values()):
            if meeting.place.warp == warp and meeting.place.call != _ACTIVE and not self._missing(meeting):
                self._end(meeting)

    def _meet_actively(self) -> bool:
        """Nobody can go on: those who ask which lanes are active are. Raises WarpSyncError if none asks.

        False while some are parked, who may come yet.
        """
        for meeting in list(self.meetings.values()):
            if meeting.place.call == _ACTIVE:
                self._end(meeting)
        if not self.ready and self.parked:
            return False
        if not self.ready:
            raise warps.WarpSyncError(self._astray(min(self.meetings.values(), key=lambda one: one.place.line)))
        return True

    def _astray(self, meeting: warps.Meeting) -> str:
        """Who waits for lanes that do not come, and where those are."""
        warp, call, mask, _, _, line = meeting.place
        elsewhere: dict[str, list[int]] = {}
        missing = self._missing(meeting)
        for other in self.meetings.values():
            if other.place.warp == warp and other is not meeting:
                _, where_call, other_mask, _, _, at = other.place
                where = f"at line {at}, {_named(where_call)} with the mask {other_mask:#010x}"
                elsewhere.setdefault(where, []).extend(set(other.brought) & set(missing))
        for thread in self.blocked:
            if thread.number // occupancy.WARP == warp:
                where = f"at line {thread.barrier[2]}, a barrier of the block"
                elsewhere.setdefault(where, []).append(thread.number % occupancy.WARP)
        places = "; ".join(f"{warps.told(lanes)} {where}" for where, lanes in elsewhere.items() if lanes)
        return (
            f"{_named(call)} at line {line}: {warps.told(meeting.brought)} of warp {warp} of block {self.point} "
            f"wait, with the mask {mask:#010x}, for {warps.told(missing)}, which wait elsewhere: {places}"
        )


def _named(call: str) -> str:
    """What lanes meet at, as a kernel names it."""
    return f"cuda.{call}" if call in _IN_KERNELS else call

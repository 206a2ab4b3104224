"""Numba's CUDA simulator, made faster and stricter; ``install`` changes the simulator of this process.

Faster: the simulator starts an operating system's thread for every CUDA thread and polls them all. Here CUDA threads
run one after the other until one waits at a barrier; then another goes on.

Stricter, as a GPU or a careful reader would be: a launch beyond a GPU's limits is refused, and so is more shared
memory than a block has. An index that is negative or too large ends the kernel and is named with its array. Shared
and local arrays start as NaN. Threads that wait at different barriers end the kernel. The order of the threads is
reversed after each barrier and at each launch, so that a missing barrier shows.

Import it only where the simulator is switched on.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NoReturn

import greenlet
import numpy as np
from numba import cuda
from numba.cuda import types
from numba.cuda.errors import normalize_kernel_dimensions
from numba.cuda.np import numpy_support
from numba.cuda.simulator import kernel, kernelapi
from numba.cuda.simulator.args import ArgHint, InOut
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeShape, FakeWithinKernelCUDAArray

from common import limits

Point = tuple[int, ...]


class DivergentBarrierError(RuntimeError):
    """Threads of one block wait at different barriers."""


def enforce_limits() -> None:
    """From now on the simulator refuses a launch that a GPU would refuse."""
    kernel.FakeCUDAKernel.__getitem__ = _configure


def install() -> None:
    """From now on kernels run this way in this process."""
    enforce_limits()
    cuda.jit = _jit
    kernel.FakeCUDAKernel.__call__ = _call
    kernelapi.FakeCUDALocal.array = _local_array
    kernelapi.FakeCUDAShared.array = _shared_array
    kernelapi.FakeCUDAConst.array_like = _constant_array


# Options of cuda.jit that Python has no use for.
_COMPILED = ("extensions", "forceinline", "launch_bounds", "lineinfo", "lto", "max_registers")
_plain_jit = cuda.jit


def _jit(*arguments: Any, **options: Any) -> Any:
    return _plain_jit(*arguments, **{key: value for key, value in options.items() if key not in _COMPILED})


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
    return _make(_blank(shape, dtype), LOCAL)


def _constant_array(_: Any, array: np.ndarray[Any, Any]) -> Any:
    return _make(array, GLOBAL)


def _shared_array(shared: Any, shape: Any, dtype: Any, alignment: int | None = None) -> Any:
    """One array for each place in the code, told by the calls that lead there."""
    if shape == 0:  # dynamic shared memory: all such arrays are one
        dtype = _as_dtype(dtype)
        count = shared._dynshared_size // dtype.itemsize
        return _make(np.frombuffer(shared._dynshared.data, dtype, count), SHARED)
    frame: FrameType | None = sys._getframe(1)
    place = []
    while frame is not None and frame.f_code is not _Block._work.__code__:
        place.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    key = tuple(place)
    found = shared._allocations.get(key)
    return shared._allocations.setdefault(key, _blank(shape, dtype)) if found is None else found


class _Allocations(dict[Any, KernelArray]):
    """A block's shared arrays by the place that made them."""

    def setdefault(self, place: Any, array: np.ndarray[Any, Any]) -> KernelArray:  # type: ignore[override]
        if place not in self:
            self[place] = _make(array, SHARED)
            total = sum(item.nbytes for item in self.values())
            if total > limits.MAX_SHARED:
                raise limits.LaunchLimitError(
                    f"the shared arrays take {total} bytes: a block has at most {limits.MAX_SHARED}"
                )
        return self[place]

    def forget(self) -> None:
        """A block begins: its shared memory holds nothing."""
        for array in self.values():
            if array.dtype.kind in "fc":
                array._array.fill(np.nan)


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


def _blank(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
    dtype = _as_dtype(dtype)
    return np.full(shape, np.nan, dtype) if dtype.kind in "fc" else np.empty(shape, dtype)


def _as_dtype(dtype: Any) -> Any:
    if isinstance(dtype, types.Type):
        dtype = numpy_support.as_dtype(dtype)
    return np.dtype(dtype)


# --- launches ---

_launches = 0  # in this process; every second one starts from the last thread of the last block


def launches() -> int:
    """How many kernels this process has started."""
    return _launches


def _configure(self: Any, configuration: Any) -> Any:
    self.grid_dim, self.block_dim = normalize_kernel_dimensions(*configuration[:2])
    if len(configuration) == 4:
        self.dynshared_size = configuration[3]
    limits.require_launch(self.grid_dim, self.block_dim)
    return self


def _call(self: Any, *args: Any) -> Any:
    """Run a kernel block by block; inside a kernel, call a device function."""
    global _launches
    context = kernel._get_kernel_context()
    if self._device or context:
        if context is not None:
            context.cuda_in(self.fn)
        return self.fn(*args)
    _launches += 1
    backwards = _launches % 2 == 0
    copied_back: list[Callable[[], None]] = []
    values = [_argument(arg, copied_back) for arg in args]
    module = _CudaModule(self.grid_dim, self.block_dim, self.dynshared_size)
    with kernel._push_kernel_context(module):
        try:
            module.cuda_in(self.fn)
            for point in np.ndindex(*self.grid_dim):
                if backwards:
                    point = tuple(extent - 1 - i for i, extent in zip(point, self.grid_dim, strict=True))
                module.shared._allocations.forget()
                module.block = _Block(module, self.fn, values)
                module.block.run(point, self.block_dim, backwards)
        finally:
            module.cuda_back()
    for copy in copied_back:
        copy()
    return None


def _argument(value: Any, copied_back: list[Callable[[], None]]) -> Any:
    if isinstance(value, np.ndarray) and value.ndim > 0:
        value = InOut(value).to_device(copied_back)
    elif isinstance(value, ArgHint):
        value = value.to_device(copied_back)
    if isinstance(value, FakeCUDAArray):
        return FakeWithinKernelCUDAArray(value) if value._ary.dtype.names else _make(value._ary, GLOBAL)
    return value


class _CudaModule(kernelapi.FakeCUDAModule):  # type: ignore[misc]
    """What ``cuda`` is inside a kernel and the device functions it calls. ``thread`` is the one that runs now."""

    thread: _Thread
    block: _Block

    def __init__(self, grid: Point, block: Point, dynamic_shared: int) -> None:
        super().__init__(grid, block, dynamic_shared)
        self.shared._allocations = _Allocations()
        self._swapped: dict[int, tuple[dict[str, Any], list[str]]] = {}

    def cuda_in(self, function: Any) -> None:
        """Let the module that defines ``function`` see this in place of ``numba.cuda``, until ``cuda_back``."""
        names = function.__globals__
        if id(names) not in self._swapped:
            found = [name for name, value in names.items() if value is cuda]
            self._swapped[id(names)] = names, found
            names.update(dict.fromkeys(found, self))

    def cuda_back(self) -> None:
        for names, found in self._swapped.values():
            names.update(dict.fromkeys(found, cuda))

    @property
    def threadIdx(self) -> Any:  # noqa: N802
        return self.thread.index

    @property
    def blockIdx(self) -> Any:  # noqa: N802
        return self.block.index

    @property
    def laneid(self) -> int:
        return self.thread.number % 32

    def syncthreads(self) -> None:
        self.block.wait(sys._getframe(1))

    def syncthreads_count(self, value: Any) -> int:
        return sum(self.block.votes(value, sys._getframe(1)))

    def syncthreads_and(self, value: Any) -> int:
        return int(all(self.block.votes(value, sys._getframe(1))))

    def syncthreads_or(self, value: Any) -> int:
        return int(any(self.block.votes(value, sys._getframe(1))))


# --- threads and barriers ---


class _Thread(greenlet.greenlet):  # type: ignore[misc]
    """Lends itself to one CUDA thread after the other, until one waits at a barrier."""

    point: Point
    index: Any
    number: int
    barrier: tuple[CodeType, int, int]


class _Block:
    """A block whose threads are ``waiting`` to start, ``ready`` after a barrier, or ``blocked`` at the next.

    ``barriers`` counts those that all threads have passed.
    """

    def __init__(self, module: _CudaModule, function: Callable[..., Any], args: list[Any]) -> None:
        self.module, self.function, self.args = module, function, args
        self.barriers = 0
        self.ended: list[Point] = []
        self.ready: deque[_Thread] = deque()
        self.blocked: deque[_Thread] = deque()
        self._votes: dict[int, list[bool]] = {}

    def run(self, point: Point, extents: Point, backwards: bool) -> None:
        """Run every thread of block ``point`` to its end; raises what one of them raised, with its place."""
        self.point, self.index = point, kernelapi.Dim3(*point)
        self.extents = extents
        threads = np.ndindex(*extents)
        self.waiting = deque(reversed(list(threads)) if backwards else threads)
        self.ended.clear()
        while True:
            if self.waiting:
                thread = _Thread(self._work)
            elif self.ready:
                thread = self.ready.popleft()
            elif self.blocked:
                self._release()
                continue
            else:
                return
            self.module.thread = thread
            thread.switch()

    def _work(self) -> None:
        thread = greenlet.getcurrent()
        assert isinstance(thread, _Thread)
        columns, rows, _ = self.extents
        while self.waiting:
            thread.point = x, y, z = self.waiting.popleft()
            thread.index, thread.number = kernelapi.Dim3(x, y, z), x + columns * (y + rows * z)
            try:
                self.function(*self.args)
            except Exception as error:
                raise self._placed(error, thread) from None
            self.ended.append(thread.point)

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
        if len({thread.barrier[:2] for thread in self.ready}) > 1:
            raise DivergentBarrierError(self._divergence())
        if self.ended and _skipped:  # a GPU lets those that have ended go
            _skipped(self)

    def _divergence(self) -> str:
        places: dict[int, list[_Thread]] = {}
        for thread in self.ready:
            places.setdefault(thread.barrier[2], []).append(thread)
        parts = [
            f"{len(threads)} threads, such as {min(thread.point for thread in threads)}, wait at line {line}"
            for line, threads in sorted(places.items())
        ]
        return f"threads of block {self.index} wait at different barriers: {'; '.join(parts)}"

"""What a program finds in ``numba.cuda`` where there is no GPU: device arrays, streams, events, devices, reductions.
Everything is done at once and in order, on the CPU; nothing is timed."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import itertools
import linecache
import math
import sys
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

from common.catalog import limits
from common.machine_code import capture
from common.machine_code.capture import replaced
from common.trace.trace import DeviceArray, allocate

NOT_TIMED = "no kernel was timed: cuda.event_elapsed_time gives nan here"


class HostError(AttributeError):
    """The program asks the driver or the GPU for what the tracer does not have."""


# --- arrays ---


class Array(DeviceArray):
    """A device array with what Numba's have beside NumPy's."""

    __cuda_ndarray__ = True

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:  # with the array itself: no address leads back to it
        return {**self.__array_interface__, "version": 3, "strides": self.strides, "stream": None, "held": self}

    def split(self, section: int, stream: Any = 0) -> Iterator[Any]:
        return (self[begin : begin + section] for begin in range(0, self.size, section))

    def copy_to_device(self, ary: Any, stream: Any = None) -> None:
        given = np.asarray(ary)
        if given.shape != self.shape or given.dtype != self.dtype:
            raise ValueError(f"array of shape {given.shape} and dtype {given.dtype} is copied to one of "
                             f"{self.shape} and {self.dtype}")  # fmt: skip
        self[...] = given


make = partial(allocate, of=Array)


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
    if to is not None:
        to.copy_to_device(obj)
        return to
    if isinstance(obj, Array):
        return obj
    from numba.cuda.cudadrv.devicearray import sentry_contiguous

    values = np.asanyarray(obj)
    sentry_contiguous(values)
    return make(values.shape, values.dtype, values, _order(values))


def _order(array: Any) -> str:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _shared_with_host(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", **_: Any) -> Any:
    return make(shape, dtype, np.zeros(shape, dtype), order)


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """The array whose interface an object gives, if it is one of the tracer's; raises HostError for any other."""
    given = getattr(obj, "__cuda_array_interface__", {})
    if isinstance(given.get("held"), Array):
        return given["held"]
    raise HostError(f"a {type(obj).__name__} lies in no memory that the tracer knows")


@contextmanager
def _mapped(*arrays: Any, **_: Any) -> Iterator[Any]:
    made = [to_device(array) for array in arrays]
    yield made[0] if len(made) == 1 else made
    for array, held in zip(arrays, made, strict=True):
        np.copyto(array, np.asarray(held))


# --- streams, events, devices ---


class Stream:
    handle = 0

    def __int__(self) -> int:
        return 0

    def synchronize(self, *_: Any) -> None:
        pass

    def auto_synchronize(self) -> Any:
        return contextlib.nullcontext(self)

    def add_callback(self, callback: Any, arg: Any = None) -> None:
        callback(self, 0, arg)


class Event:
    def __init__(self, said: set[str]) -> None:
        self._said = said

    def record(self, *_: Any) -> None:
        pass

    synchronize = wait = record

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        self._said.add(NOT_TIMED)
        return math.nan


_Memory = namedtuple("_Memory", "free total")  # in bytes


class Gpu(capture.Device):
    """The GPU that programs are told of, its context, and the list of all GPUs."""

    MAX_BLOCK_DIM_X, MAX_BLOCK_DIM_Y, MAX_BLOCK_DIM_Z = limits.MAX_BLOCK
    MAX_GRID_DIM_X, MAX_GRID_DIM_Y, MAX_GRID_DIM_Z = limits.MAX_GRID
    MAX_THREADS_PER_MULTI_PROCESSOR, MAX_REGISTERS_PER_BLOCK = 2048, limits.REGISTERS
    TOTAL_CONSTANT_MEMORY, CAN_MAP_HOST_MEMORY, UNIFIED_ADDRESSING = limits.MAX_CONSTANT, 1, 1
    CLOCK_RATE, MEMORY_CLOCK_RATE, GLOBAL_MEMORY_BUS_WIDTH = 1_980_000, 2_619_000, 5120
    COOPERATIVE_LAUNCH, CONCURRENT_MANAGED_ACCESS, MANAGED_MEMORY, PCI_BUS_ID, PCI_DEVICE_ID = 1, 1, 1, 0, 0
    supports_float16 = supports_bfloat16 = True

    def __init__(self) -> None:
        super().__init__(capture.MULTIPROCESSORS)
        self.deallocations, self.lst = SimpleNamespace(clear=lambda: None), [self]

    def __getitem__(self, number: int) -> Gpu:
        if number != 0:
            raise IndexError("there is one GPU here")
        return self

    def __len__(self) -> int:
        return 1

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def get_memory_info(self) -> _Memory:
        return _Memory(free=140 << 30, total=141 << 30)

    get_primary_context, current = __enter__, property(__enter__)


class Reduce:
    """``cuda.reduce``: the function is applied to one element after the other."""

    def __init__(self, functor: Any) -> None:
        self.functor = getattr(functor, "py_func", functor)

    def __call__(self, arr: Any, size: int | None = None, res: Any = None, init: Any = 0, stream: Any = 0) -> Any:
        if arr.ndim != 1:
            raise TypeError("only support 1D array")
        values = np.array(arr[:size])
        with np.errstate(all="ignore"):
            total = values.dtype.type(reduce(self.functor, values, values.dtype.type(init)))
        if res is None or not len(values):
            return total
        res[:1].copy_to_device(np.array([total], values.dtype))
        return None


_numbers, _exec = itertools.count(), exec


def _remembered(source: Any, scope: Any = None, names: Any = None, /, **options: Any) -> None:
    """``exec``, after which the text of a kernel that a program, or Numba's ``vectorize``, writes can be read."""
    if isinstance(source, str):
        file = f"<text that is executed, {next(_numbers)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        source = compile(source, file, "exec", dont_inherit=True)
    frame = sys._getframe(1)
    scope, names = (frame.f_globals, frame.f_locals) if scope is None else (scope, scope if names is None else names)
    _exec(source, scope, names, **options)
    for name, made in list(scope.items()) if "__core__" in scope and "__cuda__" in scope else ():
        if name.startswith(("__vectorized_", "__gufunc_")):  # by vectorize: lines are told of the user's function
            made.home = scope["__core__"].py_func.__code__.co_filename


def _spread(self: Any, array: Any, shape: Any) -> Any:
    """An argument of an element-wise function, as if it had this shape."""
    return np.broadcast_to(array, shape, subok=True)


def _copying(said: set[str]) -> Any:
    """``copy_to_host``, which notes in ``said`` what a copy holds that nothing has written."""
    copy = Array.copy_to_host

    def copy_to_host(self: Array, ary: Any = None, stream: Any = None) -> Any:
        written = getattr(self.storage, "written", None)
        if written is not None and self.size == len(written) and not written.all():
            missing = np.flatnonzero(~written)
            first = f"{len(missing)} of {len(written)} elements, the first at {int(missing[0])}"
            said.add(f"a copy to the host holds elements that nothing has written: {first}")
        return copy(self, ary, stream)

    return copy_to_host


@contextmanager
def _under_the_successor_s_name() -> Iterator[None]:
    """Meanwhile Numba is found under the name of numba-cuda-mlir, too, whether that is installed or not."""
    for name in ("random", "libdevice", "extending"):
        importlib.import_module(f"numba.cuda.{name}")
    names = [name for name in sys.modules if name.partition(".")[0] in ("numba", "numba_cuda_mlir")]
    before = {name: sys.modules.pop(name) for name in names if name.startswith("numba_cuda_mlir")}
    added = {f"numba_cuda_mlir{name[5:]}": sys.modules[name] for name in names if name not in before}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@contextmanager
def in_place(said: set[str]) -> Iterator[Gpu]:
    """Meanwhile the functions of ``numba.cuda`` for the host are the tracer's; ``said``: what the user must know."""
    from numba import cuda
    from numba.cuda import api, dispatcher, vectorizers
    from numba.cuda.cudadrv import devices

    gpu, stream = Gpu(), Stream()
    nothing = lambda *_, **__: None  # noqa: E731
    functions: dict[str, Any] = {
        "device_array": lambda shape, dtype=np.float64, strides=None, order="C", **_: make(shape, dtype, None, order),
        "device_array_like": lambda ary, **_: make(ary.shape, ary.dtype, None, _order(ary)), "to_device": to_device,
        "_auto_device": lambda ary, stream=0, copy=True: (to_device(ary), False),
        "managed_array": _shared_with_host, "mapped_array": _shared_with_host,
        "mapped_array_like": lambda ary, **_: _shared_with_host(ary.shape, ary.dtype, order=_order(ary)),
        "pinned_array": lambda shape, dtype=np.float64, strides=None, order="C": np.zeros(shape, dtype, order),
        "pinned_array_like": np.zeros_like, "mapped": _mapped,
        "as_cuda_array": as_cuda_array, "is_cuda_array": lambda obj: isinstance(obj, Array),
        "stream": Stream, "external_stream": lambda ptr: Stream(),
        **{f"{kind}default_stream": lambda: stream for kind in ("", "legacy_", "per_thread_")},
        "event": lambda timing=True: Event(said), "event_elapsed_time": lambda start, end: start.elapsed_time(end),
        "gpus": gpu, "list_devices": lambda: gpu, "get_current_device": lambda: gpu, "select_device": lambda _: gpu,
        "current_context": lambda *_: gpu, "is_float16_supported": lambda: True, "is_supported_version": lambda: True,
        "is_bfloat16_supported": lambda: True, "cuda_error": nothing, "profile_start": nothing,
        "profile_stop": nothing, "detect": lambda: bool(print(f"Found 1 CUDA devices\nid 0    {gpu.name}")) or True,
        "profiling": contextlib.nullcontext, "reduce": Reduce, "Reduce": Reduce,
    }  # fmt: skip
    known = {name: value for name, value in functions.items() if hasattr(cuda, name)}
    with (
        capture.no_device(), replaced(cuda, **known), _under_the_successor_s_name(),
        replaced(api, **{name: value for name, value in known.items() if hasattr(api, name)}),
        replaced(dispatcher, get_current_device=lambda: gpu, get_context=lambda *_: gpu),
        replaced(devices, get_context=lambda *_: gpu, gpus=gpu),
        replaced(cuda.runtime, get_version=lambda: (12, 8)), replaced(builtins, exec=_remembered),
        replaced(Array, copy_to_host=_copying(said)),
        replaced(vectorizers.CUDAUFuncMechanism, broadcast_device=_spread),
        replaced(
            vectorizers.CUDAGeneralizedUFunc, _broadcast_scalar_input=_spread, _broadcast_add_axis=_spread
        ),
    ):  # fmt: skip
        yield gpu

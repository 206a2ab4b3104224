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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from common.machine_code import capture
from common.machine_code.capture import replaced
from common.trace.trace import DeviceArray, allocate

NOT_TIMED = "no kernel was timed: cuda.event_elapsed_time gives nan here"


class HostError(AttributeError):
    """The program asks the driver or the GPU for what the tracer does not have."""


# --- arrays ---


class Array(DeviceArray):
    """A device array with what Numba's have beside NumPy's. ``said``: what the user must know."""

    __cuda_ndarray__ = True
    said: ClassVar[set[str]] = set()

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

    def copy_to_host(self, ary: Any = None, stream: Any = None) -> Any:
        written = getattr(self.storage, "written", None)
        if written is not None and self.size == len(written) and not written.all():
            missing = np.flatnonzero(~written)
            first = f"{len(missing)} of {len(written)} elements, the first at {int(missing[0])}"
            self.said.add(f"a copy to the host holds elements that nothing has written: {first}")
        return super().copy_to_host(ary, stream)


def _empty(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", **_: Any) -> Any:
    return allocate(shape, dtype, None, order, Array)


def _zeros(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", **_: Any) -> Any:
    return allocate(shape, dtype, np.zeros(shape, dtype), order, Array)


def _like(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ary, **_: make(ary.shape, ary.dtype, order=_order(ary))


def _order(array: Any) -> str:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
    from numba.cuda.cudadrv.devicearray import sentry_contiguous

    if to is not None:
        to.copy_to_device(obj)
        return to
    if isinstance(obj, Array):
        return obj
    values = np.asanyarray(obj)
    sentry_contiguous(values)
    return allocate(values.shape, values.dtype, values, _order(values), Array)


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """The array whose interface an object gives, if it is one of the tracer's; raises HostError for any other."""
    given = getattr(obj, "__cuda_array_interface__", {})
    if isinstance(given.get("held"), Array):
        return given["held"]
    raise HostError(f"a {type(obj).__name__} lies in no memory that the tracer knows")


@contextmanager
def _mapped(*arrays: Any, **_: Any) -> Iterator[Any]:
    made = [_to_device(array) for array in arrays]
    yield made[0] if len(made) == 1 else made
    for array, held in zip(arrays, made, strict=True):
        np.copyto(array, np.asarray(held))


# --- streams, events, reductions ---


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
    def record(self, *_: Any) -> None:
        pass

    synchronize = wait = record

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        Array.said.add(NOT_TIMED)
        return math.nan


def _reduction(functor: Any) -> Any:
    """``cuda.reduce``: the function is applied to one element after the other."""
    function = getattr(functor, "py_func", functor)

    def reduced(arr: Any, size: int | None = None, res: Any = None, init: Any = 0, stream: Any = 0) -> Any:
        if arr.ndim != 1:
            raise TypeError("only support 1D array")
        values = np.array(arr[:size])
        with np.errstate(all="ignore"):
            total = values.dtype.type(reduce(function, values, values.dtype.type(init)))
        if res is None or not len(values):
            return total
        res[:1].copy_to_device(np.array([total], values.dtype))
        return None

    return reduced


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


# --- all together ---


@contextmanager
def _under_the_successor_s_name() -> Iterator[None]:
    """Meanwhile Numba is found under the name of numba-cuda-mlir, too, whether that is installed or not."""
    for name in ("random", "libdevice", "extending"):
        importlib.import_module(f"numba.cuda.{name}")
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "numba_cuda_mlir"}
    numba = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "numba"}
    added = {f"numba_cuda_mlir{name[5:]}": module for name, module in numba.items()}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@contextmanager
def in_place(said: set[str]) -> Iterator[None]:
    """Meanwhile the functions of ``numba.cuda`` for the host are the tracer's; ``said``: what the user must know."""
    from numba import cuda
    from numba.cuda import dispatcher, vectorizers
    from numba.cuda.cudadrv import devices

    gpu, stream = capture.Device(), Stream()
    yes, nothing, context = (lambda *_: True), (lambda *_, **__: None), (lambda *_: gpu)
    functions: dict[str, Any] = {
        "device_array": _empty, "device_array_like": _like(_empty), "to_device": _to_device,
        "_auto_device": lambda ary, stream=0, copy=True: (_to_device(ary), False),
        "managed_array": _zeros, "mapped_array": _zeros, "mapped_array_like": _like(_zeros), "mapped": _mapped,
        "pinned_array": lambda shape, dtype=np.float64, strides=None, order="C": np.zeros(shape, dtype, order),
        "pinned_array_like": np.zeros_like,
        "as_cuda_array": as_cuda_array, "is_cuda_array": lambda obj: isinstance(obj, Array),
        "stream": Stream, "external_stream": lambda ptr: Stream(),
        **{f"{kind}default_stream": lambda: stream for kind in ("", "legacy_", "per_thread_")},
        "event": lambda timing=True: Event(), "event_elapsed_time": lambda start, end: start.elapsed_time(end),
        "gpus": gpu, "list_devices": context, "get_current_device": context, "select_device": context,
        "current_context": context, "detect": lambda: print(f"Found 1 CUDA devices\nid 0    {gpu.name}") is None,
        "is_float16_supported": yes, "is_bfloat16_supported": yes, "is_supported_version": yes,
        "cuda_error": nothing, "profile_start": nothing, "profile_stop": nothing,
        "profiling": contextlib.nullcontext, "reduce": _reduction, "Reduce": _reduction,
    }  # fmt: skip
    with (
        capture.no_device(), replaced(cuda, **functions), _under_the_successor_s_name(), replaced(Array, said=said),
        replaced(dispatcher, get_current_device=context, get_context=context),
        replaced(devices, get_context=context, gpus=gpu),
        replaced(cuda.runtime, get_version=lambda: (12, 8)), replaced(builtins, exec=_remembered),
        replaced(vectorizers.CUDAUFuncMechanism, broadcast_device=_spread),
        replaced(
            vectorizers.CUDAGeneralizedUFunc, _broadcast_scalar_input=_spread, _broadcast_add_axis=_spread
        ),
    ):  # fmt: skip
        yield

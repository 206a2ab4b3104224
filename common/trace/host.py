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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np

from common.machine_code import capture
from common.machine_code.capture import replaced
from common.trace.trace import DeviceArray, allocate

NOT_TIMED = "no kernel was timed: cuda.event_elapsed_time gives nan here"


class HostError(AttributeError):
    """The program asks the driver or the GPU for what the tracer does not have."""


def _interface(array: DeviceArray) -> dict[str, Any]:
    """``__cuda_array_interface__``, with the array itself: no address leads back to it."""
    return {**array.__array_interface__, "version": 3, "strides": array.strides, "stream": None, "held": array}


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """The array whose interface an object gives, if it is one of the tracer's; raises HostError for any other."""
    given = getattr(obj, "__cuda_array_interface__", {})
    if isinstance(given.get("held"), DeviceArray):
        return given["held"]
    raise HostError(f"a {type(obj).__name__} lies in no memory that the tracer knows")


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
        DeviceArray.said.add(NOT_TIMED)
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
def _mapped(*arrays: Any, **_: Any) -> Iterator[Any]:
    made = [allocate(array.shape, array.dtype, array) for array in arrays]
    yield made[0] if len(made) == 1 else made
    for array, held in zip(arrays, made, strict=True):
        np.copyto(array, np.asarray(held))


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
    made = capture.arrays(allocate)
    functions: dict[str, Any] = {
        **made, "mapped": _mapped, "_auto_device": lambda ary, stream=0, copy=True: (made["to_device"](ary), False),
        "as_cuda_array": as_cuda_array, "is_cuda_array": lambda obj: isinstance(obj, DeviceArray),
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
        capture.no_device(), replaced(cuda, **functions), _under_the_successor_s_name(),
        replaced(DeviceArray, said=said, __cuda_ndarray__=True, __cuda_array_interface__=property(_interface)),
        replaced(dispatcher, get_current_device=context, get_context=context),
        replaced(devices, get_context=context, gpus=gpu),
        replaced(cuda.runtime, get_version=lambda: (12, 8)), replaced(builtins, exec=_remembered),
        replaced(vectorizers.CUDAUFuncMechanism, broadcast_device=_spread),
        replaced(
            vectorizers.CUDAGeneralizedUFunc, _broadcast_scalar_input=_spread, _broadcast_add_axis=_spread
        ),
    ):  # fmt: skip
        yield

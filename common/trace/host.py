"""What a program finds in ``numba.cuda`` on the host, without a GPU: arrays, streams and events, reductions. All is
done at once and in order, on the CPU; nothing is timed."""

import importlib
import itertools
import linecache
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from typing import Any

import numpy as np
from numba.cuda.cudadrv import devicearray
from numpy.lib.stride_tricks import as_strided

from common.machine_code import capture
from common.trace.trace import DeviceArray, allocate


class HostError(AttributeError):
    """The program asks the driver or the GPU for something that the tracer does not have: not the program's fault."""


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
        if name in NUMPY_ONLY:
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
# methods of NumPy's arrays that Numba's device arrays do not have
_METHODS = {name for name, one in vars(np.ndarray).items() if callable(one) and not name.startswith("_")}
NUMPY_ONLY = frozenset(_METHODS - {*dir(devicearray.DeviceNDArray)})


def interface(array: DeviceArray) -> dict[str, Any]:
    """``__cuda_array_interface__``, with the array itself: no address leads back to it."""
    return {**array.__array_interface__, "version": 3, "strides": array.strides, "stream": None, "held": array}


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """The array whose interface an object gives, if it is one of the tracer's; raises HostError for any other."""
    given = getattr(obj, "__cuda_array_interface__", {})
    if isinstance(given.get("held"), DeviceArray):
        return given["held"]
    raise HostError(f"a {type(obj).__name__} lies in no memory that the tracer knows")


class Stream:
    """A stream, or an event: whatever was asked for is done."""

    handle = 0

    def __int__(self) -> int:
        return 0

    def synchronize(self, *_: Any) -> None:
        pass

    record = wait = synchronize

    def auto_synchronize(self) -> Any:
        return nullcontext(self)

    def add_callback(self, callback: Any, arg: Any = None) -> None:
        callback(self, 0, arg)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        DeviceArray.said.add("no kernel was timed: cuda.event_elapsed_time gives nan here")
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


def remembered(source: Any, scope: Any = None, names: Any = None, /, **options: Any) -> None:
    """``exec`` that keeps the source for :mod:`linecache`: the tracer reads a kernel's source, and a program, or
    Numba's ``vectorize``, may make a kernel from a string."""
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


def spread(self: Any, array: Any, shape: Any) -> Any:
    """An argument of a function of ``vectorize`` or ``guvectorize``, broadcast to this shape: a view of it."""
    wanted = np.broadcast_to(np.asarray(array), shape)
    return as_strided(array, wanted.shape, wanted.strides, subok=True)


@contextmanager
def _mapped(*arrays: Any, **_: Any) -> Iterator[Any]:
    """``cuda.mapped``: arrays of the host as arrays on the device, copied back at the end."""
    made = [allocate(array.shape, array.dtype, array) for array in arrays]
    yield made[0] if len(made) == 1 else made
    for array, held in zip(arrays, made, strict=True):
        np.copyto(array, np.asarray(held))


@contextmanager
def as_numba_cuda_mlir() -> Iterator[None]:
    """Meanwhile ``import numba_cuda_mlir``, the name of Numba CUDA's successor, imports Numba, whether the successor
    is installed or not."""
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


def functions(gpu: capture.Device) -> dict[str, Any]:
    """What stands in for the functions of ``numba.cuda`` that would ask the driver, by their names."""
    stream, made = Stream(), capture.arrays(allocate)
    for name in ("device_array", "device_array_like", "to_device"):
        made[name] = partial(lambda make, *given, **named: make(*given, **named).view(DeviceNDArray), made[name])
    nothing = lambda *_, **__: None  # noqa: E731
    return {
        **made, "mapped": _mapped, "as_cuda_array": as_cuda_array, "gpus": gpu,
        **{f"{kind}default_stream": lambda: stream for kind in ("", "legacy_", "per_thread_")},
        "stream": Stream, "external_stream": lambda ptr: Stream(), "event": lambda timing=True: Stream(),
        "event_elapsed_time": lambda start, end: start.elapsed_time(end), "cuda_error": nothing,
        "profile_start": nothing, "profile_stop": nothing, "profiling": nullcontext,
        "detect": lambda: print(f"Found 1 CUDA devices\nid 0    {gpu.name}") is None,
        "reduce": _reduction, "Reduce": _reduction,
    }  # fmt: skip

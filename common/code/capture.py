"""What a step asks of Numba CUDA on the host, answered by others: the arrays that it makes, the kernels it launches.

The same for real Numba CUDA and for its simulator, whichever this process has. Nothing is replaced but while one of
these contexts is open, and each puts back what it found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from common.book import limits
from common.book.patching import replaced, replaced_items


def host(**functions: Any) -> AbstractContextManager[None]:
    """While open, these stand in the places of functions of ``numba.cuda``: ``host(synchronize=...)``."""
    from numba import cuda

    return replaced(cuda, **functions)


def arrays(allocate: Callable[[str, Any, Any, Any], Any]) -> dict[str, Callable[..., Any]]:
    """``device_array``, ``device_array_like`` and ``to_device`` for :func:`host`: all call ``allocate``.

    It gets ``(name, shape, dtype, values)``: the name of the function that the step called, the shape and dtype that
    it asked for, and the array that it gave to ``to_device``, or None for memory that holds nothing yet.
    ``to_device(array, to=...)`` makes none: it is the other's ``copy_to_device(array)``.
    """

    def device_array(shape: Any, dtype: Any = np.float64, *_: Any, **__: Any) -> Any:
        return allocate("device_array", shape, dtype, None)

    def device_array_like(array: Any, *_: Any, **__: Any) -> Any:
        return allocate("device_array_like", array.shape, array.dtype, None)

    def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
        if to is not None:
            to.copy_to_device(obj)
            return to
        values = np.asanyarray(obj)
        return allocate("to_device", values.shape, values.dtype, values)

    return {"device_array": device_array, "device_array_like": device_array_like, "to_device": to_device}


def default_stream_only() -> AbstractContextManager[None]:
    """While open, the default stream is the only one: see :data:`common.book.limits.STREAMS`.

    Afterwards ``numba.cuda`` holds what it held before, whatever the step did to it.
    """
    from numba import cuda

    return replaced_items(vars(cuda), **limits.STREAMS)


@contextmanager
def launches(called: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """While open, calling a kernel on the host is ``called(launched, *arguments)``; gives what calling it was before.

    ``launched`` is what Numba makes of ``kernel[grid, block]``. Of real Numba CUDA that is a launch configuration,
    with ``dispatcher``, ``griddim``, ``blockdim``, ``stream`` and ``sharedmem`` in bytes. In the simulator it is the
    kernel, with ``fn``, ``grid_dim``, ``block_dim`` and ``dynshared_size`` in bytes; device functions are called the
    same way there, and a kernel that has no grid yet.
    """
    owner = _launched()
    before = owner.__call__
    with replaced(owner, __call__=called):
        yield before


def cluster(kernel: Any) -> int:
    """Blocks along x that run as a cluster, as a kernel declares: ``launch_bounds=(threads, blocks, cluster)``.

    ``kernel`` is real Numba CUDA's dispatcher, or the simulator's kernel, on which the workbook's simulator leaves
    the option.
    """
    options = getattr(kernel, "targetoptions", None) or vars(kernel)
    return limits.cluster_of(options.get("launch_bounds"))


def without_driver() -> AbstractContextManager[None]:
    """While open, real Numba CUDA configures launches without asking the driver: ``launched.stream`` is as given."""
    from numba.cuda import dispatcher

    return replaced(dispatcher._LaunchConfiguration, __init__=_configure)


def _configure(self: Any, kernel: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: Any = 0) -> None:
    self.dispatcher, self.griddim, self.blockdim = kernel, griddim, blockdim
    self.stream, self.sharedmem = stream, sharedmem


def _launched() -> Any:
    """The class of what is called to launch a kernel."""
    from numba.cuda.core import config

    if config.ENABLE_CUDASIM:
        from numba.cuda.simulator.kernel import FakeCUDAKernel

        return FakeCUDAKernel
    from numba.cuda.dispatcher import _LaunchConfiguration

    return _LaunchConfiguration

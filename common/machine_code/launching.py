"""What a kernel must be told before a launch, and Numba does not: more than 48 KiB of shared memory, and clusters.

CUDA C++ Programming Guide, "Shared Memory" of compute capability 8.x and 9.0: kernels that rely on more than 48 KiB
for each block use dynamic shared memory and opt in, by ``cudaFuncSetAttribute`` there and ``cuKernelSetAttribute``
here. "Thread Block Clusters": blocks of a cluster run at the same time, and reach each other's shared memory. A
kernel declared with ``launch_bounds=(threads, blocks, cluster)`` is launched in clusters of so many blocks along x.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from common.catalog import device, limits
from common.catalog.patching import replaced


def opt_in() -> None:
    """From now on, kernels are launched with more than 48 KiB, and in clusters; needs real Numba CUDA.

    A launch that the GPU cannot make raises LaunchLimitError.
    """
    from numba.cuda import dispatcher

    launch = dispatcher._Kernel.launch
    if getattr(launch, "opts_in", False):
        return

    def launched(self: Any, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
        cluster = limits.cluster_of(getattr(self, "launch_bounds", None))
        if not sharedmem and cluster == 1:
            return launch(self, args, griddim, blockdim, stream, sharedmem)
        function = self._codelibrary.get_cufunc()
        capability = device.bounds("{}.{}".format(*function.device.compute_capability))  # or what is played
        limits.require_shared(function.attrs.shared, sharedmem, capability)
        if function.attrs.shared + sharedmem > limits.MAX_SHARED:
            _tell(function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", sharedmem)
        if cluster == 1:
            return launch(self, args, griddim, blockdim, stream, sharedmem)
        limits.require_cluster(tuple(griddim), cluster, capability)
        with _gathered(function, cluster):
            return launch(self, args, griddim, blockdim, stream, sharedmem)

    launched.opts_in = True  # type: ignore[attr-defined]
    dispatcher._Kernel.launch = launched


@contextmanager
def _gathered(function: Any, cluster: int) -> Iterator[None]:
    """Launch configurations made meanwhile for this kernel have clusters of so many blocks along x."""
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv.driver import CudaAPIError

    make = dispatcher.LaunchConfig

    def in_clusters(grid: tuple[int, ...], **others: Any) -> Any:
        return make(grid=(grid[0] // cluster, *grid[1:]), cluster=(cluster, 1, 1), **others)

    try:
        for axis, blocks in (("WIDTH", cluster), ("HEIGHT", 1), ("DEPTH", 1)):
            _tell(function, f"REQUIRED_CLUSTER_{axis}", blocks)
    except CudaAPIError:  # a driver that wants to hear it at the launch, and counts the grid in clusters
        with replaced(dispatcher, LaunchConfig=in_clusters):
            yield
    else:
        yield


def _tell(function: Any, attribute: str, value: int) -> None:
    from numba.cuda.cudadrv import driver

    named = getattr(driver.binding.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{attribute}")
    driver.driver.cuKernelSetAttribute(named, value, function.handle, function.device.id)

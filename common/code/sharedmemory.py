"""More than 48 KiB of shared memory: a kernel must be told before a launch that asks for it.

CUDA C++ Programming Guide, "Shared Memory" of compute capability 8.x and 9.0: kernels that rely on more than 48 KiB
for each block use dynamic shared memory and opt in, by ``cudaFuncSetAttribute`` there and ``cuKernelSetAttribute``
here. Numba does not.
"""

from __future__ import annotations

from typing import Any

from common.book import limits


def opt_in() -> None:
    """From now on, kernels that are launched with more than 48 KiB are told so; needs real Numba CUDA.

    A launch that asks for more than the GPU has raises LaunchLimitError.
    """
    from numba.cuda import dispatcher

    launch = dispatcher._Kernel.launch
    if getattr(launch, "opts_in", False):
        return

    def launched(self: Any, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
        if sharedmem:
            allow(self._codelibrary.get_cufunc(), sharedmem)
        return launch(self, args, griddim, blockdim, stream, sharedmem)

    launched.opts_in = True  # type: ignore[attr-defined]
    dispatcher._Kernel.launch = launched


def allow(function: Any, dynamic: int) -> None:
    """Let a kernel, as Numba's driver has it, be launched with so many bytes of dynamic shared memory.

    Raises LaunchLimitError if the GPU has less.
    """
    from numba.cuda.cudadrv import driver

    major, minor = function.device.compute_capability
    limits.require_shared(function.attrs.shared, dynamic, f"{major}.{minor}")
    if function.attrs.shared + dynamic > limits.MAX_SHARED:
        attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.driver.cuKernelSetAttribute(attribute, dynamic, function.handle, function.device.id)

"""A whole training step as one CUDA graph: the driver is told of its kernels once, then launches them all at once."""

from common.machine_code.capture import replaced


def _checked(answer):
    """What a function of cuda.bindings returns after its error code; raises RuntimeError naming the code."""
    error, *found = answer
    if int(error):
        raise RuntimeError(f"CUDA graph: the driver answers {error.name}")
    return found[0] if found else None


class Graph:
    """``work``, a function that only launches ``kernels``, so many; calling the graph launches all of them.

    ``work`` runs once before, so that its kernels are compiled: undo what that does.
    """

    def __init__(self, work):
        from cuda.bindings import driver
        from numba import cuda
        from numba.cuda import dispatcher
        from numba.cuda.cudadrv.driver import _to_core_stream

        work()
        cuda.synchronize()
        self._driver, self._default, self.kernels = driver, driver.CUstream(0), 0
        self._stream = cuda.stream()  # the default stream cannot be captured
        core, launch = _to_core_stream(self._stream), dispatcher._Kernel.launch

        def launch_on_stream(kernel, args, griddim, blockdim, _=0, sharedmem=0):
            self.kernels += 1
            return launch(kernel, args, griddim, blockdim, core, sharedmem)

        handle, mode = driver.CUstream(int(core.handle)), driver.CUstreamCaptureMode
        _checked(driver.cuStreamBeginCapture(handle, mode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            with replaced(dispatcher._Kernel, launch=launch_on_stream):
                work()
        finally:
            graph = _checked(driver.cuStreamEndCapture(handle))
        self._executable = _checked(driver.cuGraphInstantiate(graph, 0))
        _checked(driver.cuGraphDestroy(graph))

    def __call__(self):
        _checked(self._driver.cuGraphLaunch(self._executable, self._default))

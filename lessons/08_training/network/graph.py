"""A whole training step as one CUDA graph: the driver is told of its kernels once, then launches them all at once.

A launch costs the CPU more than many of these kernels take. While a stream is captured, launches on it are not run
but noted, each with its arguments; so buffers must stay where they are, and what changes from step to step must be
read from memory: the batch, the rate, the number of the step.
"""

from contextlib import contextmanager

from common.machine_code.capture import replaced


def _checked(answer):
    """What a function of cuda.bindings returns after its error code; raises RuntimeError naming the code."""
    error, *found = answer
    if int(error):
        raise RuntimeError(f"CUDA graph: the driver answers {error.name}")
    return found[0] if found else None


@contextmanager
def _launches_on(stream):
    """While open, every launch of Numba's goes to that stream."""
    from numba.cuda import dispatcher

    launch = dispatcher._Kernel.launch

    def launched(self, args, griddim, blockdim, _=0, sharedmem=0):
        return launch(self, args, griddim, blockdim, core, sharedmem)

    core = _core(stream)
    with replaced(dispatcher._Kernel, launch=launched):
        yield


def _core(stream):
    from numba.cuda.cudadrv import driver

    return driver._to_core_stream(stream)


class Graph:
    """``work``, a function that only launches kernels, captured; calling it launches all of them.

    ``work`` runs once before, so that its kernels are compiled: undo what that does. ``kernels`` is how many there
    are.
    """

    def __init__(self, work):
        from cuda.bindings import driver
        from numba import cuda

        work()
        cuda.synchronize()
        self._driver = driver
        self._stream = cuda.stream()  # the default stream cannot be captured
        handle = driver.CUstream(int(_core(self._stream).handle))
        _checked(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            with _launches_on(self._stream):
                work()
        finally:
            graph = _checked(driver.cuStreamEndCapture(handle))
        self.kernels = self._count(graph)
        self._executable = _checked(driver.cuGraphInstantiate(graph, 0))
        _checked(driver.cuGraphDestroy(graph))
        self._default = driver.CUstream(0)

    def _count(self, graph):
        driver = self._driver
        error, _, count = driver.cuGraphGetNodes(graph, 0)
        _checked((error,))
        error, nodes, count = driver.cuGraphGetNodes(graph, count)
        _checked((error,))
        kernel = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        return sum(_checked(driver.cuGraphNodeGetType(node)) == kernel for node in nodes[:count])

    def __call__(self):
        _checked(self._driver.cuGraphLaunch(self._executable, self._default))

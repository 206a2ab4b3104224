"""Each epilogue two ways, to be timed: in the kernel of a convolution, and in a kernel of its own after it."""

from functools import lru_cache
from importlib import import_module

import numpy as np
from numba import cuda, float32, uint32

from lessons.toolkit.memory import HALVES, VECTOR, aligned, store4, store8_rounded
from lessons.toolkit.mma import to_half
from lessons.toolkit.tiles import require_offsets

epilogues = import_module("lessons.08_training.helpers.epilogues")
moments = import_module("lessons.08_training.helpers.moments")
THREADS = 256


@lru_cache
def specialise(apply, read, read_y, to_float16, WIDTH):
    """Kernel: out[i] = what `apply` makes of y[i], the last operand; a thread has WIDTH neighbours of one row."""
    store = epilogues.store4_rounded if to_float16 else store4
    rounded = to_half if to_float16 else float32

    @cuda.jit
    def elementwise(out, K, operands):
        values, held = cuda.local.array(WIDTH, float32), cuda.local.array(WIDTH, float32)
        i = uint32((cuda.blockIdx.x * THREADS + cuda.threadIdx.x) * WIDTH)
        if i < out.size:
            m, n = i // uint32(K), i % uint32(K)
            last_n = uint32(n + uint32(WIDTH - 1))
            read_y(values, operands, m, n, last_n)
            read(held, operands, m, n, last_n)
            for v in range(WIDTH):
                values[v] = apply(values[v], m, uint32(n + uint32(v)), operands, held[v])
            if WIDTH == HALVES:
                store8_rounded(out, i, values, 0)
            elif WIDTH == VECTOR:
                store(out, i, values, 0)
            else:
                out[i] = rounded(values[0])

    return elementwise


def apart(epilogue, y, out):
    """out = the elementwise epilogue of y [N, O, P, Q, K]; float16 gives float16, float32 either."""
    epilogue.check(out)
    require_offsets("y", y.size)
    rows, operands = epilogues.matrix(y), epilogue.operands
    width = (HALVES if y.dtype == np.float16 else VECTOR) if aligned(rows) else 1
    read_y = epilogues.reader(len(operands), width, y.dtype.name if width > 1 else "singly")
    kernel = specialise(epilogue.apply, epilogue.reads(width), read_y, out.dtype == np.float16, width)
    blocks = -(-y.size // (THREADS * width))
    kernel[blocks, THREADS](out.reshape(out.size), rows.shape[1], (*operands, rows))


class Way:
    """One epilogue: `fused()` and `separate()` leave the same in `found`.

    Fusing saves `saved_bytes`: y is not written and read once more, or, where columns are described, not read.
    """

    def __init__(self, fused, separate, found, saved_bytes):
        self.fused, self.separate, self.found, self.saved_bytes = fused, separate, found, saved_bytes


def ways(launch, y, seed=5):
    """By name, each epilogue of the convolution that `launch(y, epilogue)` computes; None: the convolution alone."""
    rng = np.random.default_rng(seed)
    K, shape = y.shape[4], tuple(y.shape)
    bias = cuda.to_device(rng.standard_normal(K, dtype=np.float32))
    residual = cuda.to_device(rng.standard_normal(shape, dtype=np.float32).astype(y.dtype))
    out, rounded = cuda.device_array(shape, y.dtype), cuda.device_array(shape, np.float16)

    def elementwise(epilogue, found):
        def fused():
            launch(found, epilogue)

        def separate():
            launch(y, None)
            apart(epilogue, y, found)

        return Way(fused, separate, found, 2 * y.nbytes)

    def described():
        launch(y, None)
        moments.moments_of_columns(epilogues.matrix(y), partials, found)

    found, partials = cuda.device_array((2, K), np.float32), moments.moment_workspace(shape)
    beside = moments.ColumnMoments(found, partials)
    return {
        "add_bias": elementwise(epilogues.add_bias(bias), out),
        "bias_relu": elementwise(epilogues.bias_relu(bias), out),
        "scale": elementwise(epilogues.scale(np.float32(0.5)), rounded),
        "add_residual": elementwise(epilogues.add_residual(residual), out),
        "column_moments": Way(lambda: launch(y, beside), described, found, y.nbytes),
    }

"""An epilogue as a kernel of its own, which reads y once more and writes it once more: what fusing saves."""

from functools import lru_cache
from importlib import import_module

import numpy as np
from numba import cuda, float32, uint32
from numba.types import float16

from lessons.toolkit.memory import HALVES, VECTOR, aligned, load4, load8, store4, store8_rounded
from lessons.toolkit.mma import to_half
from lessons.toolkit.tiles import require_offsets
from lessons.toolkit.unroll import inlined

epilogues = import_module("lessons.08_training.helpers.epilogues")
THREADS = 256


@inlined
def load8_halves(values, half, y, at):
    """values[:8] = y[at:at+8], float16."""
    load8(half, 0, y, at)
    for v in range(HALVES):
        values[v] = float32(half[v])


@lru_cache
def specialise(apply, read, to_float16, WIDTH):
    """Kernel: out[i] = what `apply` makes of y[i], both flat; each thread has WIDTH neighbours, of one row."""
    store = epilogues.store4_rounded if to_float16 else store4
    rounded = to_half if to_float16 else float32

    @cuda.jit
    def elementwise(y, out, K, operands):
        values = cuda.local.array(WIDTH, float32)
        held = cuda.local.array(WIDTH, float32)
        half = cuda.local.array(HALVES, float16)
        i = uint32((cuda.blockIdx.x * THREADS + cuda.threadIdx.x) * WIDTH)
        if i < y.size:
            m, n = i // uint32(K), i % uint32(K)
            if WIDTH == HALVES:
                load8_halves(values, half, y, i)
            elif WIDTH == VECTOR:
                load4(values, 0, y, i)
            else:
                values[0] = float32(y[i])
            read(held, operands, m, n, uint32(n + uint32(WIDTH - 1)))
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
    rows, from_half, to_float16 = epilogues.matrix(y), y.dtype == np.float16, out.dtype == np.float16
    width = (HALVES if aligned(rows) else 1) if from_half else VECTOR if aligned(rows) else 1
    kernel = specialise(epilogue.apply, epilogue.reads(width), to_float16, width)
    blocks = -(-y.size // (THREADS * width))
    kernel[blocks, THREADS](y.reshape(y.size), out.reshape(out.size), rows.shape[1], epilogue.operands)

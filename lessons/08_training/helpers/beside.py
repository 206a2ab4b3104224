"""Each epilogue two ways, to be timed: in the kernel of a convolution, and in a kernel of its own after it."""

from importlib import import_module

import numpy as np
from numba import cuda

apart = import_module("lessons.08_training.helpers.apart").apart
columns = import_module("lessons.08_training.helpers.columns")
epilogues = import_module("lessons.08_training.helpers.epilogues")
moments = import_module("lessons.08_training.helpers.moments")


class Way:
    """One epilogue: `fused()` and `separate()` leave the same in `found`; `saved_bytes` are those that fusing saves.

    Those are what goes to global memory and back only because another kernel follows: y once there and once back, and
    where the columns of y are summed, once back. Partial sums are too few to count.
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
    sums, partials = cuda.device_array(K, np.float32), columns.column_workspace(shape)

    def elementwise(epilogue, found):
        def fused():
            launch(found, epilogue)

        def separate():
            launch(y, None)
            apart(epilogue, y, found)

        return Way(fused, separate, found, 2 * y.nbytes)

    def summed():
        launch(y, None)
        columns.sum_columns(epilogues.matrix(y), partials, sums)

    def described():
        launch(y, None)
        moments.moments_of_columns(epilogues.matrix(y), two_partials, found)

    beside = epilogues.ColumnSums(sums, partials)
    found, two_partials = cuda.device_array((2, K), np.float32), moments.moment_workspace(shape)
    described_beside = moments.ColumnMoments(found, two_partials)
    return {
        "add_bias": elementwise(epilogues.add_bias(bias), out),
        "bias_relu": elementwise(epilogues.bias_relu(bias), out),
        "scale": elementwise(epilogues.scale(np.float32(0.5)), rounded),
        "add_residual": elementwise(epilogues.add_residual(residual), out),
        "column_sums": Way(lambda: launch(y, beside), summed, sums, y.nbytes),
        "column_moments": Way(lambda: launch(y, described_beside), described, found, y.nbytes),
    }

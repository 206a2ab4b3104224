"""An epilogue of your own: a function of one sum that runs inside two kernels. Change it, and in_numpy, run it again.

It may read at most two operands; one that is LIKE_Y comes last.
Run: python -m lessons.08_training.start.epilogue
"""

from importlib import import_module

import numpy as np
from numba import cuda, float32

from common.catalog import inputs, reference
from common.catalog.problems import Conv3d, on_ladder

epilogues = import_module("lessons.08_training.helpers.epilogues")
KERNELS = {
    "conv3d": import_module("lessons.05_implicit_gemm.conv3d_implicit_gemm_precomputed"),
    "hconv3d": import_module("lessons.06_tensor_cores.hconv3d_mma"),
}
LAYER = Conv3d(N=1, C=8, D=1, H=7, W=7, K=8, T=1, R=3, S=3, pad_h=1, pad_w=1)


@epilogues.epilogue(bias=epilogues.PER_FILTER)
def bias_leaky_relu(value, m, n, bias):
    total = value + bias[n]
    return total if total > float32(0.0) else total * float32(0.125)  # a mere 0.125 would be float64


def in_numpy(sums, bias):
    """The same, of all sums at once."""
    total = sums + bias
    return np.where(total > 0, total, total * 0.125)


def main():
    bias = np.arange(LAYER.K, dtype=np.float32) * 3 - 10
    for ladder, kernel in KERNELS.items():
        layer = on_ladder(ladder, LAYER)
        dtype = layer.operands[2][1]
        x, filt = inputs.integers(layer, 0)
        y = cuda.to_device(np.full(layer.output_shape, np.nan, dtype))
        scratch = [kernel.workspace(layer)] if hasattr(kernel, "workspace") else []
        kernel.launch(
            cuda.to_device(x), kernel.prepare(cuda.to_device(filt), layer), y, layer.geometry, *scratch,
            finish=bias_leaky_relu(cuda.to_device(bias)),
        )  # fmt: skip
        expected = in_numpy(reference.full(layer, x, filt), bias)
        # the kernel rounds each operation, NumPy once, at the end; what is not a number is near nothing
        right = np.isclose(y.copy_to_host(), expected.astype(dtype), rtol=4 * np.finfo(dtype).eps, atol=0)
        print(f"{kernel.__name__.rpartition('.')[2]}, {dtype}: {(~right).sum()} of {right.size} outputs are wrong")


if __name__ == "__main__":
    main()

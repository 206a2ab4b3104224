"""An epilogue of your own: a function of one sum that runs inside two kernels. Change it, and in_numpy, run it again.

It may read at most two operands; one that is LIKE_Y comes last.
Run: python -m lessons.08_training.start.epilogue
"""

from importlib import import_module

import numpy as np
from numba import cuda, float32

from common.catalog import inputs, reference
from common.catalog.problems import Conv3d, on_ladder
from lessons.toolkit.unroll import inlined

epilogues = import_module("lessons.08_training.helpers.epilogues")
KERNELS = {
    "conv3d": import_module("lessons.05_implicit_gemm.conv3d_implicit_gemm_precomputed"),
    "hconv3d": import_module("lessons.06_tensor_cores.hconv3d_mma"),
}
# Units of the last place that a right output may be off. The kernel rounds each operation to float32, NumPy once, at
# the end; sums of small integers are exact in both.
UNITS = 4
LAYER = Conv3d(N=1, C=8, D=1, H=7, W=7, K=8, T=1, R=3, S=3, pad_h=1, pad_w=1)


@inlined
def leaky(value):
    return value if value > float32(0.0) else value * float32(0.125)  # a mere 0.125 would be float64


@epilogues.epilogue(bias=epilogues.PER_FILTER)
def bias_leaky_relu(value, m, n, bias):
    return leaky(value + bias[n])


def in_numpy(sums, bias):
    """The same, of all sums at once."""
    total = sums + bias
    return np.where(total > 0, total, total * 0.125)


def count_wrong(got, expected):
    """How many outputs are further from NumPy's than rounding explains; NaN is."""
    unit = np.spacing(np.abs(expected)).astype(np.float64)
    return int((~(np.abs(got.astype(np.float64) - expected) <= UNITS * unit)).sum())


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
        expected = in_numpy(reference.full(layer, x, filt), bias).astype(dtype)
        wrong = count_wrong(y.copy_to_host(), expected)
        print(f"{kernel.__name__.rpartition('.')[2]}, {dtype}: {wrong} of {expected.size} outputs are wrong")


if __name__ == "__main__":
    main()

"""Layers with epilogues, against NumPy in float64: for tests in the tracer, and as a script on a GPU."""

import functools
import importlib
import json

import numpy as np
from numba import cuda

from common.catalog import catalog, reference
from common.catalog.problems import Conv3d, on_ladder

epilogues = importlib.import_module("lessons.08_training.helpers.epilogues")
moments = importlib.import_module("lessons.08_training.helpers.moments")
beside = importlib.import_module("lessons.08_training.helpers.beside")

FP32, FP16 = "conv3d_implicit_gemm_precomputed", "hconv3d_mma"
KINDS = ("add_bias", "bias_relu", "scale", "add_residual", "bias_residual_relu")
# Nothing divides: not four filters, not eight channels, no tile; then wide access, and several blocks both ways; then
# several tiles along gemm_k, too
RAGGED = Conv3d(N=2, C=3, D=3, H=5, W=6, K=5, T=2, R=3, S=3, pad_h=1, stride_w=2, dilation_d=2)
WIDE = Conv3d(N=1, C=8, D=1, H=6, W=13, K=40, T=1, R=3, S=1, pad_h=1)
DEEP = Conv3d(N=1, C=8, D=1, H=8, W=13, K=40, T=1, R=3, S=3, pad_h=1)
ACROSS = Conv3d(N=1, C=8, D=1, H=6, W=5, K=72, T=1, R=1, S=1)  # two warps side by side in a tile of hconv3d_mma
TALL = Conv3d(N=1, C=8, D=1, H=11, W=13, K=139, T=1, R=1, S=1)  # the widest tile of hconv3d_mma, two of them, ragged
HIGH = Conv3d(N=2, C=8, D=1, H=20, W=23, K=40, T=1, R=3, S=3)  # many rows: a variance needs its digits
MANY_ROWS = Conv3d(N=1, C=8, D=1, H=40, W=41, K=5, T=1, R=1, S=1)  # seven tiles of hconv3d_mma
MANY = Conv3d(N=3, C=8, D=2, H=19, W=21, K=136, T=1, R=3, S=3, pad_h=1)
SPLIT = {"BLOCK_M": 64, "BLOCK_N": 32, "THREAD_M": 16, "THREAD_N": 4, "BLOCKS_PER_SM": 2, "SPLIT_K": 3}


@functools.cache
def module(name):
    return catalog.load(catalog.find(name).path, name.split("_")[0])


class Layer:
    """A convolution of integers, whose sums are too large for float16 to hold all of them, and what may follow."""

    def __init__(self, name, shape, seed=1):
        self.step, self.problem = module(name), on_ladder(name.split("_")[0], shape)
        rng = np.random.default_rng(seed)
        self.dtype = (
            self.problem.output_dtype if hasattr(self.problem, "output_dtype") else self.problem.operands[2][1]
        )
        x, filt = (rng.integers(-40, 41, shape).astype(dtype) for shape, dtype in self.problem.operands[:2])
        self.sums = reference.full(self.problem, x, filt)  # exact, in float64
        self.x, self.filt = cuda.to_device(x), cuda.to_device(filt)
        K = self.problem.K
        self.bias = (rng.integers(-3000, 3000, K) / 2).astype(np.float32)
        self.residual = rng.integers(-2000, 2000, self.sums.shape).astype(self.dtype)

    def launch(self, epilogue, dtype=None, **tile):
        y = cuda.to_device(np.full(self.sums.shape, np.nan, dtype or self.dtype))
        weights = self.step.prepare(self.filt, self.problem, **tile)
        scratch = [self.step.workspace(self.problem, **tile)] if hasattr(self.step, "workspace") else []
        self.step.launch(self.x, weights, y, self.problem.geometry, *scratch, finish=epilogue, **tile)
        return y.copy_to_host()

    def bound(self, kind):
        """The epilogue, and what becomes of the sums in float64."""
        made, sums = getattr(epilogues, kind), self.sums
        bias, residual = cuda.to_device(self.bias), cuda.to_device(self.residual)
        return {
            "add_bias": (lambda: made(bias), sums + self.bias),
            "bias_relu": (lambda: made(bias), np.maximum(sums + self.bias, 0)),
            "scale": (lambda: made(np.float32(0.25)), sums / 4),
            "add_residual": (lambda: made(residual), sums + self.residual),
            "bias_residual_relu": (lambda: made(bias, residual), np.maximum(sums + self.bias + self.residual, 0)),
        }[kind]  # fmt: skip


def column_moments(layer):
    found = cuda.to_device(np.full((2, layer.problem.K), np.nan, np.float32))
    return found, moments.ColumnMoments(found, moments.moment_workspace(layer.sums.shape))


def expected_moments(y):
    """Mean and variance of the columns of y [..., K], in float64."""
    rows = np.asarray(y, np.float64).reshape(-1, y.shape[-1])
    return np.stack((rows.mean(axis=0), rows.var(axis=0)))


def wrong(name, shape, **tile):
    """By epilogue, how many elements of one kernel's are wrong, fused and in a kernel of its own."""
    layer, found = Layer(name, shape), {}
    for kind in KINDS:
        make, expected = layer.bound(kind)
        fused = layer.launch(make(), **tile)
        y = cuda.to_device(layer.sums.astype(layer.dtype))
        out = cuda.to_device(np.full(layer.sums.shape, np.nan, layer.dtype))
        beside.apart(make(), y, out)
        layer.sums = layer.sums.astype(layer.dtype).astype(np.float64)  # as the separate kernel finds them
        apart = out.copy_to_host() != layer.bound(kind)[1].astype(layer.dtype)
        layer = Layer(name, shape)
        found[kind] = [int((fused != expected.astype(layer.dtype)).sum()), int(apart.sum())]
    bits = []
    for _ in range(2):
        fused, epilogue = column_moments(layer)
        y = layer.launch(epilogue, **tile)
        bits.append(fused.copy_to_host())
    off = ~np.isclose(bits[0], expected_moments(layer.sums), rtol=1e-5, atol=1e-2)
    moments.moments_of_columns(epilogues.matrix(cuda.to_device(y)), moments.moment_workspace(y.shape), fused)
    apart = ~np.isclose(fused.copy_to_host(), expected_moments(y), rtol=1e-5, atol=1e-2)
    found["column_moments"] = [int(off.sum() + (bits[0] != bits[1]).sum()), int(apart.sum())]
    return found


if __name__ == "__main__":
    from common.machine_code import capture
    from tests.sampling import one_of_each

    capture.opt_in()
    cases = [(name, shape, {}) for name in (FP32, FP16) for shape in (RAGGED, DEEP, MANY)]
    for name, shape, tile in one_of_each([*cases, (FP32, MANY, SPLIT)], lambda _: "a layer"):
        print(json.dumps([name, str(shape), tile, wrong(name, shape, **tile)]), flush=True)

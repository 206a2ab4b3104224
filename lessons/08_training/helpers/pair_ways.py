"""A convolution and one of 1 x 1 after it, to be timed: in one kernel, and as two launches of hconv3d_mma."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np
from numba import cuda

conv_pair = import_module("lessons.08_training.helpers.conv_pair")
step = import_module("lessons.06_tensor_cores.hconv3d_mma")

FEW = 32  # images: as many, and all that there are
EXPANSION = 4  # filters of the second convolution for one of the first, as in ResNet-50


class Way:
    """One pair: `fused()` and `separate()` leave the same in `found`, the last images; `alone()` is the first half.

    `images`, `filters` of the second convolution and a `relu` between them say what another library is to compute.
    """

    def __init__(self, images, relu, between, second, y, arguments):
        x, prepared, geometry = arguments
        x, between, y = x[:images], between[:images], y[:images]
        finish = conv_pair.relu() if relu else None
        N, O, P, Q, K = between.shape
        pointwise = type(geometry)()  # stride 1, no padding
        problem = SimpleNamespace(T=1, R=1, S=1, C=K, D=O, H=P, W=Q, K=y.shape[4], geometry=pointwise)
        prepared_second = step.prepare(second, problem)

        def fused():
            conv_pair.launch(x, prepared, second, y, geometry, finish)

        def alone():
            step.launch(x, prepared, between, geometry, finish)

        def separate():
            alone()
            step.launch(between, prepared_second, y, pointwise)

        self.fused, self.alone, self.separate = fused, alone, separate
        self.found, self.saved_bytes = y[max(0, images - FEW) :], 2 * between.nbytes
        self.images, self.filters, self.relu = images, y.shape[4], relu


def ways(launch, y, seed=5):
    """By name, pairs that begin with the convolution that `launch(y, None)` computes: of few images and of all."""
    x, prepared, _, geometry = launch(y, None, by=lambda *arguments, finish: arguments)
    N, *pixels, K = y.shape
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((EXPANSION * K, 1, 1, 1, K), dtype=np.float32) / np.float32(np.sqrt(K))
    second = cuda.to_device(values.astype(np.float16))
    result = cuda.device_array((N, *pixels, EXPANSION * K), np.float16)
    return {
        f"{'relu_' * relu}conv1x1_n{images}": Way(images, relu, y, second, result, (x, prepared, geometry))
        for images in sorted({min(FEW, N), N})
        for relu in (False, True)
    }

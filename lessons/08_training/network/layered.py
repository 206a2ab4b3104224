"""The network layer by layer: convolutions by steps of the lessons, a small kernel for each thing between them."""

from functools import cache
from importlib import import_module

import numpy as np
from numba import cuda

from common.catalog import catalog, problems
from common.machine_code.capture import BoundStep

from . import layers
from .parameters import Network

# for y, dx and dfilt
STEPS = ("conv3d_implicit_gemm_precomputed", "dgrad_implicit_gemm", "wgrad_split_k")
load = cache(catalog.load)  # once for all layers
epilogues = import_module("lessons.08_training.helpers.epilogues")
long_sums = import_module("lessons.08_training.helpers.long_sums")


class Convolution:
    """y [N, P, Q, K] from x [N, H, W, C], filt [K, 1, R, S, C] and, in the same kernel, bias [K] and maybe ReLU.

    ``extents`` are H, C, K, taps along an axis, padding; ``x`` and ``y`` are pairs of flat arrays, values and
    gradients; ``names`` are the filter's and the bias's among the parameters. The first layer's x has no gradient.
    """

    def __init__(self, network, extents, names, x, y, relu=True):
        H, C, K, TAPS, PAD = extents
        layer = problems.Conv3d(N=network.batch, C=C, D=1, H=H, W=H, K=K, T=1, R=TAPS, S=TAPS, pad_h=PAD, pad_w=PAD)
        p, (filt, bias) = network.parameters, names
        self.x, self.dx = (array if array is None else array.reshape(layer.input_shape) for array in x)
        self.y, self.dy = (array.reshape(layer.output_shape) for array in y)
        self.d_filt, self.d_bias = p.part(p.gradients, filt).reshape(layer.weight_shape), p.part(p.gradients, bias)
        self.flat_dy, self.N, self.pixels = y[1], network.batch, layer.P * layer.Q
        self.of_pixels = cuda.to_device(np.zeros(self.pixels * K, np.float32))
        self.after = (epilogues.bias_relu if relu else epilogues.add_bias)(network.weights[bias])
        found = [catalog.find(name) for name in STEPS]
        self.steps = [
            BoundStep(load(step.path, step.ladder), problems.on_ladder(step.ladder, layer)) for step in found
        ]
        weights = network.weights[filt].reshape(layer.weight_shape)
        # tables, which depend on the shape alone: filters are read where they lie
        for bound, operand in zip(self.steps, (weights, weights, self.dy), strict=True):
            bound.allocate()
            bound.prepare(operand)

    def forward(self):
        """y = x * filt, with what follows."""
        step = self.steps[0]
        step.module.launch(*step.arguments(self.x, self.y), finish=self.after)

    def backward(self):
        """The gradients of the filter and the bias, and that of x if there is one."""
        _, data, filt = self.steps
        filt.launch(self.x, self.d_filt)
        # all that the bias was added to, over images and then over pixels: always in the same order
        long_sums.add_up(self.flat_dy, self.of_pixels, self.N)
        long_sums.add_up(self.of_pixels, self.d_bias, self.pixels)
        if self.dx is not None:
            data.launch(self.dy, self.dx)


class Pool:
    """Max-pooling of a layer's y to ``pooled``, both pairs of values and gradients, and back through ReLU, too."""

    def __init__(self, network, layer, y, pooled):
        full, small = ((network.batch, extent, extent, layer.K) for extent in (layer.OUT, layer.WINDOWS))
        self.POOL, self.places = layer.POOL, network.array(*small[1:], dtype=layers.PLACE).reshape(small)
        self.y, self.dy = (array.reshape(full) for array in y)
        self.pooled, self.d_pooled = (array.reshape(small) for array in pooled)

    def forward(self):
        layers.launch(layers.max_pool, self.pooled.size, self.y, self.POOL, self.pooled, self.places)

    def backward(self):
        layers.launch(layers.max_pool_relu_backward, self.dy.size, self.d_pooled, self.places, self.POOL, self.dy)


class Layered(Network):
    """The network layer by layer; a pair is an array and its gradient."""

    def __init__(self, parameters, batch, **options):
        super().__init__(parameters, batch, **options)
        shape, first, second = self.shape, self.shape.first, self.shape.second
        sizes = [extent**2 * layer.K for layer in (first, second) for extent in (layer.OUT, layer.WINDOWS)]
        pairs = [(self.array(size), self.array(size)) for size in (*sizes, shape.HIDDEN, shape.CLASSES)]
        y1, pooled1, y2, pooled2, self.hidden, logits = pairs
        self.pool1, self.pool2 = Pool(self, first, y1, pooled1), Pool(self, second, y2, pooled2)
        convolution1, convolution2 = ((one.H, one.C, one.K, one.TAPS, one.PAD) for one in (first, second))
        dense3, dense4 = (1, shape.FEATURES, shape.HIDDEN, 1, 0), (1, shape.HIDDEN, shape.CLASSES, 1, 0)
        self.convolution1 = Convolution(self, convolution1, ("filt1", "bias1"), (self.x, None), y1)
        self.convolution2 = Convolution(self, convolution2, ("filt2", "bias2"), pooled1, y2)
        self.dense3 = Convolution(self, dense3, ("weight3", "bias3"), pooled2, self.hidden)
        self.dense4 = Convolution(self, dense4, ("weight4", "bias4"), self.hidden, logits, relu=False)
        self.logits, self.d_logits = (array.reshape((batch, shape.CLASSES)) for array in logits)
        self.partials = parameters.gradients.reshape((1, parameters.gradients.size))

    def forward(self):
        """Answers, losses, and the gradient of the logits."""
        for layer in (self.convolution1, self.pool1, self.convolution2, self.pool2, self.dense3, self.dense4):
            layer.forward()
        layers.launch(layers.softmax_cross_entropy, self.batch, self.logits, self.classes, self.counter,
                      self.d_logits, self.losses, self.said)  # fmt: skip

    def backward(self):
        """The gradients of all parameters: the chain rule, from the last layer to the first."""
        self.dense4.backward()
        hidden, d_hidden = self.hidden
        layers.launch(layers.relu_backward, d_hidden.size, hidden, d_hidden)
        for layer in (self.dense3, self.pool2, self.convolution2, self.pool1, self.convolution1):
            layer.backward()

"""The network layer by layer: convolutions by steps of the lessons, a small kernel for each thing between them."""

import numpy as np
from numba import cuda

from . import activation, pool
from .convolution import STEPS, Convolution
from .parameters import Network


class Layered(Network):
    """The network layer by layer; ``kernels`` name the convolution's step and its gradients'."""

    name = "layered"

    def __init__(self, parameters, batch, kernels=STEPS, **options):
        super().__init__(parameters, batch, **options)
        shape, array = self.shape, self.array
        first, second = shape.first, shape.second
        y1, dy1, a1, da1 = (
            array(layer, layer, first.K) for layer in (first.OUT, first.OUT, first.WINDOWS, first.WINDOWS)
        )
        y2, dy2, a2, da2 = (
            array(layer, layer, second.K) for layer in (second.OUT, second.OUT, second.WINDOWS, second.WINDOWS)
        )
        self.hidden, self.d_hidden, logits, d_logits = (
            array(extent) for extent in (shape.HIDDEN, shape.HIDDEN, shape.CLASSES, shape.CLASSES)
        )
        made = parameters, kernels
        self.layers = (
            _layer(made, (batch, first.H, 1, first.K, first.TAPS, first.PAD), 1, self.x, y1, dy1),
            _layer(made, (batch, second.H, second.C, second.K, second.TAPS, second.PAD), 2, a1, y2, dy2, da1),
            _layer(made, (batch, 1, shape.FEATURES, shape.HIDDEN, 1, 0), 3, a2, self.hidden, self.d_hidden, da2),
            _layer(
                made, (batch, 1, shape.HIDDEN, shape.CLASSES, 1, 0), 4, self.hidden, logits, d_logits, self.d_hidden
            ),
        )
        self.pools = tuple(
            _Pool(layer, batch, *arrays)
            for layer, arrays in ((first, (y1, a1, da1, dy1)), (second, (y2, a2, da2, dy2)))
        )
        self.logits, self.d_logits = (a.reshape((batch, shape.CLASSES)) for a in (logits, d_logits))
        self.partials = parameters.gradients.reshape((1, parameters.gradients.size))

    def forward(self):
        """Answers, losses, and the gradient of the logits."""
        convolution1, convolution2, dense3, dense4 = self.layers
        convolution1.forward()
        self.pools[0].forward()
        convolution2.forward()
        self.pools[1].forward()
        dense3.forward()
        dense4.forward()
        activation.launch_softmax(self.logits, self.classes, self.counter, self.d_logits, self.losses, self.said)

    def backward(self):
        """The gradients of all parameters: the chain rule, from the last layer to the first."""
        convolution1, convolution2, dense3, dense4 = self.layers
        dense4.backward()
        activation.launch_relu_backward(self.hidden, self.d_hidden)
        dense3.backward()
        self.pools[1].backward()
        convolution2.backward()
        self.pools[0].backward()
        convolution1.backward()


def _layer(made, extents, number, x, y, dy, dx=None):
    parameters, kernels = made
    names = (f"{'filt' if number < 3 else 'weight'}{number}", f"bias{number}")
    return Convolution(extents, parameters, names, x, y, dy, dx, relu=number < 4, steps=kernels)


class _Pool:
    def __init__(self, layer, batch, y, pooled, d_pooled, dy):
        full, small = (batch, layer.OUT, layer.OUT, layer.K), (batch, layer.WINDOWS, layer.WINDOWS, layer.K)
        self.size, self.y, self.dy = layer.POOL, y.reshape(full), dy.reshape(full)
        self.pooled, self.d_pooled = pooled.reshape(small), d_pooled.reshape(small)
        self.places = cuda.to_device(np.zeros(small, pool.PLACE))

    def forward(self):
        pool.launch(self.y, self.size, self.pooled, self.places)

    def backward(self):
        pool.launch_backward(self.d_pooled, self.places, self.size, self.dy)

"""The network in eight kernels for a step: each does all of a layer, or all of a gradient."""

import numpy as np
from numba import cuda

from . import conv_pool, head
from .layers import PLACE
from .parameters import Network

# Rows in which the parameters' gradients are added up: a constant, so that the sums are the same everywhere.
PARTS = 256


class Fused(Network):
    """The network as few kernels; ``partials`` has a row for each digit, or PARTS."""

    def __init__(self, parameters, batch, **options):
        super().__init__(parameters, batch, **options)
        shape, array = self.shape, self.array
        pooled1, pooled2 = (layer.WINDOWS**2 * layer.K for layer in (shape.first, shape.second))
        self.y1, self.places1, self.dy1 = array(pooled1), array(pooled1, dtype=PLACE), array(pooled1)
        self.y2, self.places2, self.dy2 = array(pooled2), array(pooled2, dtype=PLACE), array(pooled2)
        self.hidden, self.d_hidden, self.d_logits = array(shape.HIDDEN), array(shape.HIDDEN), array(shape.CLASSES)
        self.partials = cuda.to_device(np.zeros((min(batch, PARTS), shape.offsets["end"]), np.float32))

    def forward(self):
        """Answers and losses, and the gradients down to the second pool."""
        shape, p = self.shape, self.weights
        conv_pool.launch(shape.first, self.x, p["filt1"], p["bias1"], self.y1, self.places1)
        conv_pool.launch(shape.second, self.y1, p["filt2"], p["bias2"], self.y2, self.places2)
        head.launch(self)

    def backward(self):
        """The gradients of all parameters, in parts."""
        first, second, at, partials = self.shape.first, self.shape.second, self.shape.offsets, self.partials
        head.launch_weights(self)
        conv_pool.launch_filter(second, self.y1, self.dy2, self.places2, partials, at["filt2"], at["bias2"])
        conv_pool.launch_input(second, self.dy2, self.places2, self.weights["filt2"], self.dy1)
        conv_pool.launch_filter(first, self.x, self.dy1, self.places1, partials, at["filt1"], at["bias1"])

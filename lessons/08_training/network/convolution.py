"""A convolution with its two gradients, each a step of this book, bound to its arrays; a dense layer is one of 1x1.

The chain rule makes three convolutions of one: y = x * filt forward; the gradient of x from dy and filt; that of filt
from x and dy. ``STEPS`` names the step that computes each.
"""

from functools import lru_cache
from importlib import import_module

from common.catalog import catalog, problems
from common.machine_code.capture import BoundStep

STEPS = ("conv3d_implicit_gemm_precomputed", "dgrad_implicit_gemm", "wgrad_split_k")


@lru_cache
def _module(name):
    step = catalog.find(name)
    return catalog.load(step.path, step.ladder)


class Convolution:
    """y [N, P, Q, K] from x [N, H, W, C], filt [K, 1, R, S, C] and, in the same kernel, bias [K] and maybe ReLU.

    ``x``, ``y``, ``dx`` and ``dy`` are flat device arrays; ``names`` are the filter's and the bias's among the
    parameters. Without ``dx`` nothing asks for the gradient of x.
    """

    def __init__(self, extents, parameters, names, x, y, dy, dx=None, relu=True, steps=STEPS):
        N, H, C, K, TAPS, PAD = extents
        layer = problems.Conv3d(N=N, C=C, D=1, H=H, W=H, K=K, T=1, R=TAPS, S=TAPS, pad_h=PAD, pad_w=PAD)
        forward, backward, weights = (problems.on_ladder(catalog.find(name).ladder, layer) for name in steps)
        self.x, self.y = x.reshape(layer.input_shape), y.reshape(layer.output_shape)
        self.dy = dy.reshape(layer.output_shape)
        self.dx = dx.reshape(layer.input_shape) if dx is not None else None
        filt, bias = names
        self.filt = parameters.value(filt).reshape(layer.weight_shape)
        self.d_filt, self.d_bias = parameters.gradient(filt).reshape(layer.weight_shape), parameters.gradient(bias)
        epilogues = import_module("lessons.08_training.helpers.epilogues")
        self.columns = import_module("lessons.08_training.helpers.columns")
        self.after = (epilogues.bias_relu if relu else epilogues.add_bias)(parameters.value(bias))
        rows = dy.size // K, K
        self.rows, self.partials = dy.reshape(rows), self.columns.column_workspace(rows)
        self._forward, self._data, self._filter = (
            BoundStep(_module(name), problem)
            for name, problem in zip(steps, (forward, backward, weights), strict=True)
        )
        for bound in (self._forward, self._data, self._filter):
            bound.allocate()
        self._forward.prepare(self.filt)  # tables, which depend on the shape alone: filters are read where they lie
        self._data.prepare(self.filt)
        self._filter.prepare(self.dy)

    def forward(self):
        """y = x * filt, with what follows."""
        self._forward.module.launch(*self._forward.arguments(self.x, self.y), finish=self.after)

    def backward(self):
        """The gradients of the filter and the bias, and that of x if there is a ``dx``."""
        self._filter.launch(self.x, self.d_filt)
        self.columns.sum_columns(self.rows, self.partials, self.d_bias)
        if self.dx is not None:
            self._data.launch(self.dy, self.dx)

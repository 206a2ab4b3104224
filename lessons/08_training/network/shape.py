"""How large the network is, and where its parameters lie.

ECE408's network takes images of 86 x 86 without padding: of a digit of 28 x 28 that would leave one pixel.
"""

from dataclasses import dataclass
from math import prod

ALIGN = 4  # values: every parameter starts on a 16-byte boundary
NAMES = ("filt1", "bias1", "filt2", "bias2", "weight3", "bias3", "weight4", "bias4")


@dataclass(frozen=True)
class Layer:
    """A convolution of H x H images of C channels with K filters, ReLU, and max-pooling of POOL x POOL windows."""

    H: int
    C: int
    K: int
    TAPS: int
    PAD: int
    POOL: int

    def __post_init__(self):
        if self.OUT % self.POOL:
            raise ValueError(f"OUT={self.OUT} must be a multiple of POOL={self.POOL}: no pixel is left out")

    @property
    def OUT(self):  # noqa: N802
        return self.H + 2 * self.PAD - self.TAPS + 1

    @property
    def WINDOWS(self):  # noqa: N802
        """Along an axis."""
        return self.OUT // self.POOL


@dataclass(frozen=True)
class Shape:
    """The network's extents: two layers of convolution, and two dense ones."""

    first: Layer
    second: Layer
    HIDDEN: int = 32
    CLASSES: int = 10

    @property
    def FEATURES(self):  # noqa: N802
        return self.second.WINDOWS**2 * self.second.K

    @property
    def parameters(self):
        """The shape of each parameter, by name: filters as KTRSC with T = 1, dense layers as 1x1 filters."""
        filts = [(layer.K, 1, layer.TAPS, layer.TAPS, layer.C) for layer in (self.first, self.second)]
        weights = [*filts, (self.HIDDEN, 1, 1, 1, self.FEATURES), (self.CLASSES, 1, 1, 1, self.HIDDEN)]
        return dict(zip(NAMES, (shape for one in weights for shape in (one, one[:1])), strict=True))

    @property
    def offsets(self):
        """Where each parameter begins in the one array that holds them all, and under "end" that array's length."""
        found, at = {}, 0
        for name, shape in self.parameters.items():
            found[name] = at
            at += -(-prod(shape) // ALIGN) * ALIGN
        return {**found, "end": at}


MNIST = Shape(Layer(H=28, C=1, K=4, TAPS=7, PAD=3, POOL=2), Layer(H=14, C=4, K=16, TAPS=7, PAD=4, POOL=4))
# to be traced: images of 8 x 8, fewer taps and filters
SMALL = Shape(Layer(H=8, C=1, K=4, TAPS=3, PAD=1, POOL=2), Layer(H=4, C=4, K=4, TAPS=3, PAD=1, POOL=2), HIDDEN=16)

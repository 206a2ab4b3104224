"""How large the network is, and where its parameters lie.

ECE408's network (conv 7x7, ReLU, pool 2, conv 7x7, ReLU, pool 4, dense 32, ReLU, dense 10) takes images of 86 x 86
without padding. Of a digit of 28 x 28 that would leave one pixel. Padding 3 keeps the first convolution at 28 x 28;
padding 4 makes the second one 16 x 16, which windows of 4 x 4 cover without a rest: all pixels count.
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
    """The network's extents; images are SIZE x SIZE."""

    SIZE: int = 28
    CHANNELS: tuple = (4, 16)
    TAPS: int = 7
    PADS: tuple = (3, 4)
    POOLS: tuple = (2, 4)
    HIDDEN: int = 32
    CLASSES: int = 10

    @property
    def first(self):
        return Layer(self.SIZE, 1, self.CHANNELS[0], self.TAPS, self.PADS[0], self.POOLS[0])

    @property
    def second(self):
        return Layer(self.first.WINDOWS, *self.CHANNELS, self.TAPS, self.PADS[1], self.POOLS[1])

    @property
    def FEATURES(self):  # noqa: N802
        return self.second.WINDOWS**2 * self.CHANNELS[1]

    @property
    def parameters(self):
        """The shape of each parameter, by name: filters as KTRSC with T = 1, dense layers as 1x1 filters."""
        (K1, K2), TAPS, HIDDEN, CLASSES = self.CHANNELS, self.TAPS, self.HIDDEN, self.CLASSES
        shapes = (
            (K1, 1, TAPS, TAPS, 1), (K1,), (K2, 1, TAPS, TAPS, K1), (K2,),
            (HIDDEN, 1, 1, 1, self.FEATURES), (HIDDEN,), (CLASSES, 1, 1, 1, HIDDEN), (CLASSES,),
        )  # fmt: skip
        return dict(zip(NAMES, shapes, strict=True))

    @property
    def offsets(self):
        """Where each parameter begins in the one array that holds them all, and under "end" that array's length."""
        found, at = {}, 0
        for name, shape in self.parameters.items():
            found[name] = at
            at += -(-prod(shape) // ALIGN) * ALIGN
        return {**found, "end": at}


MNIST = Shape()
# to be traced: images of 8 x 8, fewer taps and filters
SMALL = Shape(SIZE=8, CHANNELS=(4, 4), TAPS=3, PADS=(1, 1), POOLS=(2, 2), HIDDEN=16)

"""Seeded operands: small integers (exact in float32), normals, and the photograph. Never zeros."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from common.problems import Problem

Array = NDArray[np.float32]

# Float32 holds every integer up to here, so sums below it are exact in any order.
EXACT_LIMIT = 2**24


def integers(problem: Problem, seed: int) -> tuple[Array, Array]:
    """Input and weight filled with non-zero integers whose every partial sum is exact in float32.

    No element is zero, so a dropped term changes the sum.
    """
    largest = max(1, min(8, math.isqrt(EXACT_LIMIT // problem.reduction)))
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> Array:
        values = rng.integers(1, largest, shape, dtype=np.int8, endpoint=True)
        values *= rng.integers(0, 1, shape, dtype=np.int8, endpoint=True) * np.int8(2) - np.int8(1)
        return values.astype(np.float32)

    return draw(problem.input_shape), draw(problem.weight_shape)


def normals(problem: Problem, seed: int) -> tuple[Array, Array]:
    """Input and weight drawn from the standard normal distribution."""
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal(problem.input_shape, dtype=np.float32),
        rng.standard_normal(problem.weight_shape, dtype=np.float32),
    )


def photograph() -> Array:
    """Luminance in 0..1 of the photograph that Matplotlib ships (Grace Hopper), shape (600, 512)."""
    from matplotlib import cbook
    from matplotlib.image import imread

    file = cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    rgb = np.asarray(imread(str(file)), dtype=np.float32) / 255
    return np.ascontiguousarray(rgb @ np.array([0.2126, 0.7152, 0.0722], dtype=np.float32))


def filter_bank() -> dict[str, Array]:
    """Twelve recognisable 5x5 filters by name, for cross-correlation.

    Edges are smoothed derivatives, the Laplacian of Gaussian has sigma 1, Gabor filters have wavelength 4
    and sigma 1.5 (Daugman 1985); blurs, identity, sharpen and emboss sum to 1, edge,
    Laplacian and Gabor filters to 0.
    """
    offset = np.arange(-2, 3, dtype=np.float64)
    row, col = np.meshgrid(offset, offset, indexing="ij")
    squared = row**2 + col**2
    gauss = np.exp(-squared / 2)
    gauss /= gauss.sum()
    delta = np.zeros((5, 5))
    delta[2, 2] = 1.0

    def balanced(filt: NDArray[np.float64]) -> NDArray[np.float64]:
        centred: NDArray[np.float64] = filt - filt.mean()
        return np.asarray(centred / np.abs(centred).sum(), dtype=np.float64)

    def gabor(degrees: float) -> NDArray[np.float64]:
        angle = math.radians(degrees)
        along = col * math.cos(angle) + row * math.sin(angle)
        return balanced(np.exp(-squared / (2 * 1.5**2)) * np.cos(2 * math.pi * along / 4))

    bank = {
        "identity": delta,
        "box blur": np.full((5, 5), 1 / 25),
        "gaussian blur": gauss,
        "motion blur": np.eye(5) / 5,
        "sharpen": 3 * delta - 2 * gauss,
        "edge, vertical": balanced(gauss * col),
        "edge, horizontal": balanced(gauss * row),
        "laplacian": balanced((squared - 2) * gauss),
        "emboss": delta + 2 * balanced(gauss * (row + col)),
        "gabor 0°": gabor(0),
        "gabor 45°": gabor(45),
        "gabor 90°": gabor(90),
    }
    return {name: filt.astype(np.float32) for name, filt in bank.items()}

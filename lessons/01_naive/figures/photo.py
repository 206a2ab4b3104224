"""The photograph through a bank of twelve 5x5 filters: run, hold to the oracle, draw."""

import math

import numpy as np

from common.catalog import reference
from common.catalog.problems import Conv2d
from common.check import check, loading
from common.report.canvas import MUTED, headings, new_figure, save
from common.run.messages import Check

# Of every tenth pixel where it is traced; the full photograph is 3.6 million threads.
TRACED_STRIDE = 10


def draw(step, without_gpu, device_name, folder) -> str:
    """Run ``step`` on the photograph, draw input, filters and feature maps into ``folder``; returns the PNG's path.

    To be called in a child process. Raises ValueError if the step exceeds its precision's error bound anywhere.
    """
    from common.trace.trace import Tracer

    image = photograph()
    if without_gpu:
        image = np.ascontiguousarray(image[::TRACED_STRIDE, ::TRACED_STRIDE])
    bank = filter_bank()
    x = image[None, None]
    filt = np.stack(list(bank.values()))[:, None]
    h, w = image.shape
    problem = Conv2d(N=1, C=1, H=h, W=w, K=len(bank), R=5, S=5)
    place = {"path": str(step.path), "ladder": step.ladder, "shape": problem.shape()}
    module = loading.load(Check(**place, engine="traced" if without_gpu else "gpu"))
    bench = check.Bench(module, problem, tracer=Tracer() if without_gpu else None)
    bench.load(x, filt)
    y = bench.result()
    sums, magnitude = reference.full(problem, x, filt), reference.full(problem, np.abs(x), np.abs(filt))
    wrong = ~(np.abs(y - sums) <= reference.error_bound(problem, magnitude, sums, step.precision))
    if wrong.any():
        raise ValueError(f"{int(wrong.sum())} pixels are wrong")
    caption = f"{step.name} on {device_name}; {w}×{h} photograph of Grace Hopper, shipped with Matplotlib"
    figure = feature_maps(image, bank, y[0], caption)
    return str(save(figure, folder / "photo-maps", photo=True))


def feature_maps(image, bank, maps, caption):
    """The input image, and per filter its 5x5 taps beside its feature map. ``maps`` has shape (K, P, Q)."""
    figure, axes = new_figure(9.6, 7.4, rows=3, columns=5)
    for axis in axes.flat:
        axis.axis("off")
    axes[0, 0].imshow(image, cmap="gray", vmin=0, vmax=1)
    axes[0, 0].set_title("input", fontsize=10, fontweight="bold")
    for axis, (name, taps), result in zip(axes[:, 1:].flat, bank.items(), maps, strict=True):
        signed = taps.sum() < 0.4
        limit = max(float(np.percentile(np.abs(result), 99.5)), 1e-6)
        axis.imshow(
            result, cmap="RdBu_r" if signed else "gray", vmin=-limit if signed else 0, vmax=limit if signed else 1
        )
        axis.set_title(name, fontsize=10)
        inset = axis.inset_axes((0.0, 0.0, 0.27, 0.23))
        reach = float(np.abs(taps).max())
        inset.imshow(taps, cmap="RdBu_r", vmin=-reach, vmax=reach)
        inset.set_xticks([])
        inset.set_yticks([])
    axes[1, 0].text(
        0, 0.5, "Inset: the filter's taps.\nRed is positive, blue\nnegative, white zero.\n\nMaps of filters that\n"
        "sum to 0 use the\nsame colours.", transform=axes[1, 0].transAxes, fontsize=9, color=MUTED, va="center",
    )  # fmt: skip
    headings(figure, "", caption)
    return figure


def photograph():
    """Luminance in 0..1 of the photograph that Matplotlib ships (Grace Hopper), shape (600, 512)."""
    from matplotlib import cbook
    from matplotlib.image import imread

    file = cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    rgb = np.asarray(imread(str(file)), dtype=np.float32) / 255
    return np.ascontiguousarray(rgb @ np.array([0.2126, 0.7152, 0.0722], dtype=np.float32))


def filter_bank():
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

    def balanced(filt):
        centred = filt - filt.mean()
        return centred / np.abs(centred).sum()

    def gabor(degrees):
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

"""The photograph through a bank of twelve 5x5 filters: run, hold to the oracle, draw."""

import tempfile
from pathlib import Path

import numpy as np

from common.catalog import reference
from common.catalog.problems import Conv2d
from common.check import inputs
from common.jobs import measuring
from common.report.canvas import MUTED, headings, new_figure, save

# Of every tenth pixel where it is traced; the full photograph is 3.6 million threads.
TRACED_STRIDE = 10


def draw(step, simulator, device_name, folder):
    """Run ``step`` on the photograph, draw input, filters and feature maps into ``folder``; returns the PNG's path.

    Raises ValueError if the step fails or exceeds the error bound of its precision anywhere.
    """
    image = inputs.photograph()
    if simulator:
        image = np.ascontiguousarray(image[::TRACED_STRIDE, ::TRACED_STRIDE])
    bank = inputs.filter_bank()
    x = image[None, None]
    filt = np.stack(list(bank.values()))[:, None]
    with tempfile.TemporaryDirectory(prefix="workbook-") as place:
        files = [Path(place, f"{name}.npy") for name in ("x", "filt", "y")]
        np.save(files[0], x)
        np.save(files[1], filt)
        outcome = measuring.convolve(step, files[0], files[1], files[2], simulator)
        if outcome.status != "right":
            raise ValueError(f"{step.name} on the photograph: {'; '.join(outcome.reasons)}")
        y = np.load(files[2])
    h, w = image.shape
    problem = Conv2d(N=1, C=1, H=h, W=w, K=len(bank), R=5, S=5)
    sums, magnitude = reference.full(problem, x, filt), reference.full(problem, np.abs(x), np.abs(filt))
    wrong = ~(np.abs(y - sums) <= reference.error_bound(problem, magnitude, sums, step.precision))
    if wrong.any():
        raise ValueError(f"{step.name} on the photograph: {int(wrong.sum())} pixels are wrong")
    caption = f"{step.name} on {device_name}; {w}×{h} photograph of Grace Hopper, shipped with Matplotlib"
    figure = feature_maps(image, bank, y[0], caption)
    return save(figure, folder / "photo-maps", svg=False)


def feature_maps(image, bank, maps, caption):
    """The input image, and per filter its 5x5 taps beside its feature map. ``maps`` has shape (K, P, Q)."""
    figure, axes = new_figure(9.6, 7.4, rows=3, columns=5)
    for axis in axes.flat:
        axis.axis("off")
    axes[0, 0].imshow(image, cmap="gray", vmin=0, vmax=1)
    axes[0, 0].set_title("input", fontsize=10, fontweight="bold")
    slots = [axis for axis in axes.flat if axis not in (axes[0, 0], axes[1, 0], axes[2, 0])]
    for axis, (name, taps), result in zip(slots, bank.items(), maps, strict=True):
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

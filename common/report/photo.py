"""The photograph through a bank of twelve 5x5 filters: run, hold to the oracle, draw."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from common.catalog import reference
from common.catalog.catalog import Step
from common.catalog.problems import Conv2d
from common.check import inputs
from common.jobs import measuring
from common.report import charts

# Of every tenth pixel where it is traced; the full photograph is 3.6 million threads.
TRACED_STRIDE = 10


class PhotoError(RuntimeError):
    """The step did not run, or its feature maps are not the oracle's."""


def draw(step: Step, simulator: bool, device_name: str, folder: Path) -> Path:
    """Run ``step`` on the photograph, draw input, filters and feature maps into ``folder``; returns the PNG's path.

    Raises PhotoError if the step fails or exceeds the error bound of its precision anywhere.
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
            raise PhotoError(f"{step.name} on the photograph: {'; '.join(outcome.reasons)}")
        y = np.load(files[2])
    h, w = image.shape
    problem = Conv2d(N=1, C=1, H=h, W=w, K=len(bank), R=5, S=5)
    sums, magnitude = reference.full(problem, x, filt), reference.full(problem, np.abs(x), np.abs(filt))
    wrong = ~(np.abs(y - sums) <= reference.error_bound(problem, magnitude, sums, step.precision))
    if wrong.any():
        raise PhotoError(f"{step.name} on the photograph: {int(wrong.sum())} pixels are wrong")
    caption = f"{step.name} on {device_name}; {w}×{h} photograph of Grace Hopper, shipped with Matplotlib"
    figure = charts.feature_maps(image, bank, y[0], caption)
    return charts.save(figure, folder / "photo-maps", svg=False)

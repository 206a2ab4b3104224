"""Charts without their pixels, which take as long as all else in them."""

import pytest
from matplotlib.figure import Figure
from PIL import Image


def without_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures as SVG, and of one pixel, until the caller ends it."""
    draw = Figure.savefig

    def savefig(figure: Figure, target, **options) -> None:
        if options["format"] == "svg":
            draw(figure, target, **options)
        else:
            Image.new("RGB", (1, 1)).save(target, "PNG")

    monkeypatch.setattr(Figure, "savefig", savefig)

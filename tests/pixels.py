"""Charts without their pixels, which take as long as all else in them; and the words that a chart has."""

import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image


def without_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay figures out, and save them as one pixel, until the caller ends it."""

    def savefig(figure: Figure, target, **options) -> None:
        figure.draw_without_rendering()
        Image.new("RGB", (1, 1)).save(target, "PNG")

    monkeypatch.setattr(Figure, "savefig", savefig)


def words(figure: Figure) -> str:
    """The texts of a figure in order; it is closed."""
    figure.draw_without_rendering()
    shown = (one.get_text() for one in figure.findobj(Text) if one.get_visible())
    plt.close(figure)
    return " | ".join(filter(None, shown))

"""The look of every picture of the workbook: colours, an empty figure, headings, and its files.

The ground is opaque, so that it reads on a dark page too; colours are Okabe and Ito's, for the colour-blind.
"""

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from common.catalog import store

BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442",
)  # fmt: skip
INK, MUTED, PAPER, GRID = "#1b1f24", "#57606a", "#ffffff", "#d8dee4"

_STYLE = Path(__file__).with_name("workbook.mplstyle")


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes in the workbook's style; sizes in inches."""
    from matplotlib import pyplot as plt

    plt.style.use(_STYLE)
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), layout="constrained", **options)
    return figure, axes


def gridded(axes: Any, axis: str = "both") -> None:
    """Lines at the ticks of one axis, or of both, behind what is drawn."""
    axes.grid(axis=axis, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def save(figure: Figure, stem: Path, photo: bool = False) -> Path:
    """Write ``stem``.png and close the figure; returns its path. A ``photo`` keeps all colours. Raises StoreError."""
    from matplotlib import pyplot as plt
    from PIL import Image

    path, picture = stem.with_name(f"{stem.name}.png"), io.BytesIO()
    figure.savefig(picture, format="png", dpi=110 if photo else 150, metadata={"Software": None})
    if not photo:  # lines and letters have few colours: a palette of 256 takes a third of the bytes
        image = Image.open(picture).convert("RGB")
        picture = io.BytesIO()
        image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(picture, "PNG")
    store.write(path, picture.getvalue())
    plt.close(figure)
    return path


def headings(figure: Figure, title: str, source: str, legend: int = 0) -> None:
    """Title and ``legend`` lines of legend (three entries each) above the axes, source below them."""
    height = figure.get_figheight()
    line = 0.3 / height
    top = 1 - 0.1 / height
    if title:
        figure.text(0.01, top, title, fontsize=13, fontweight="bold", ha="left", va="top")
        top -= line
    if legend:
        figure.legend(
            loc="upper left", bbox_to_anchor=(0.005, top + 0.05 / height), ncols=3,
            frameon=False, fontsize=10.5, handlelength=2.6, borderpad=0.2,
        )  # fmt: skip
        top -= legend * line
    figure.text(0.99, 0.05 / height, source, ha="right", va="bottom", fontsize=8.5, color=MUTED)
    engine: Any = figure.get_layout_engine()
    bottom = 0.25 / height
    engine.set(rect=(0, bottom, 1, top - bottom))


def footnote(figure: Figure, text: str, share: float, y: float = 0.01, size: float = 9.5) -> None:
    """A text below the axes, which leave it this ``share`` of the figure's height."""
    figure.text(0.5, y, text, ha="center", fontsize=size, color=MUTED)
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, share, 1, 1 - share))


def log_scale(axes: Any, axis: str, low: float, high: float) -> None:
    """The axis, x or y, logarithmic between these; ticks at 1, 2 and 5 of each decade, written plainly; only 1 when
    there are many decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set(**{f"{axis}scale": "log"})
    axes.set(**{f"{axis}lim": (low, high)})
    one = axes.xaxis if axis == "x" else axes.yaxis
    one.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1e3 else (1,)))
    one.set_minor_locator(NullLocator())
    one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))

"""The look of every picture of the workbook: colours, an empty figure, headings, and its files.

The ground is opaque, so that it reads on a dark page too; colours are Okabe and Ito's, for the colour-blind.
"""

import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from common.catalog import store

BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442",
)  # fmt: skip
INK, MUTED, PAPER, GRID = "#1b1f24", "#57606a", "#ffffff", "#d8dee4"

_TAG, _LONG = re.compile(r"<[^>]+>"), re.compile(r"-?\b\d+\.\d{3,}\b")

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "workbook",  # same figure, same file
    "svg.fonttype": "none",
}


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes in the workbook's style; sizes in inches."""
    from matplotlib import pyplot as plt

    mpl.rcParams.update(_STYLE)
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), layout="constrained", **options)
    return figure, axes


def gridded(axes: Any, axis: str = "both") -> None:
    """Lines at the ticks of one axis, or of both, behind what is drawn."""
    axes.grid(axis=axis, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def save(figure: Figure, stem: Path, svg: bool = True) -> Path:
    """Write ``stem``.png and, with ``svg``, .svg; close the figure; returns the PNG's path. Raises StoreError."""
    from matplotlib import pyplot as plt
    from PIL import Image

    png, vector = (stem.with_name(stem.name + suffix) for suffix in (".png", ".svg"))
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150 if svg else 110, metadata={"Software": None})
    if svg:  # lines and letters have few colours: a palette of 256 takes a third of the bytes
        image = Image.open(picture).convert("RGB")
        picture = io.BytesIO()
        image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(picture, "PNG")
    store.write(png, picture.getvalue())
    if svg:
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        text = drawn.getvalue()
        # clip paths get ids from memory addresses: number them, so that the same figure is the same file
        for number, name in enumerate(dict.fromkeys(re.findall(r"\bp[0-9a-f]{10}\b", text))):
            text = text.replace(name, f"clip{number}")
        # processors round differently: the sixth decimal is not the figure's
        text = _TAG.sub(lambda tag: _LONG.sub(lambda number: f"{round(float(number[0]), 2) + 0.0:.2f}", tag[0]), text)
        store.write(vector, "".join(f"{line.rstrip()}\n" for line in text.splitlines()))  # blanks at line ends
    plt.close(figure)
    return png


def headings(figure: Figure, title: str, source: str, legend: int = 0, columns: int = 3) -> None:
    """Title and ``legend`` lines of legend (``columns`` entries each) above the axes, source below them."""
    height = figure.get_figheight()
    line = 0.3 / height
    top = 1 - 0.1 / height
    if title:
        figure.text(0.01, top, title, fontsize=13, fontweight="bold", ha="left", va="top")
        top -= line
    if legend:
        figure.legend(
            loc="upper left", bbox_to_anchor=(0.005, top + 0.05 / height), ncols=columns,
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

"""Pictures made of cells, spans and words: no axes are shown, and rows are mostly counted downwards."""

from collections.abc import Callable
from typing import Any

from matplotlib.colors import to_rgba
from matplotlib.patches import FancyArrowPatch, Rectangle

from common.report.canvas import INK, MUTED, PAPER, VERMILION

Pair = tuple[float, float]


def frame(axes: Any, x_range: Pair, y_range: Pair, equal: bool = True) -> None:
    """What part of the plane is shown; ``equal``: a cell of 1 x 1 is a square."""
    axes.set(xlim=x_range, ylim=y_range)
    if equal:
        axes.set_aspect("equal")
    axes.axis("off")


def box(
    axes: Any, x: float, y: float, width: float, height: float, face: str = "none", alpha: float = 1.0,
    line: float = 1.0, edge: str | None = None, zorder: float = 1,
) -> None:  # fmt: skip
    """A rectangle, of which ``alpha`` makes the face pale; lines wider than 1 are dark."""
    colour: Any = "none" if face == "none" else to_rgba(face, alpha)
    look = {"facecolor": colour, "edgecolor": edge or (INK if line > 1 else MUTED), "linewidth": line}
    axes.add_patch(Rectangle((x, y), width, height, zorder=zorder, **look))


def grid(
    axes: Any, x: float, y: float, rows: int, columns: int, face: Callable[[int, int], Any],
    text: Callable[[int, int], str] | None = None, size: float = 9, alpha: float = 1.0, line: float = 0.8,
) -> None:  # fmt: skip
    """Cells of 1 x 1. ``face`` says the colour at a row and column, or it and ``alpha``; ``text`` what is there."""
    for i in range(rows):
        for j in range(columns):
            found = face(i, j)
            colour, own = found if isinstance(found, tuple) else (found, alpha)
            box(axes, x + j, y + i, 1, 1, face=colour, alpha=own, line=line)
            if text:
                label(axes, x + j + 0.5, y + i + 0.5, text(i, j), size=size)


def outline(
    axes: Any, x: float, y: float, width: float, height: float, colour: str = VERMILION, line: float = 2.2,
    zorder: float = 1,
) -> None:  # fmt: skip
    """The lines of a rectangle."""
    box(axes, x, y, width, height, line=line, edge=colour, zorder=zorder)


def arrow(axes: Any, start: Pair, stop: Pair, colour: str = INK) -> None:
    axes.add_patch(FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=14, color=colour, linewidth=1.4))


def label(
    axes: Any, x: float, y: float, text: str, size: float = 11, color: str = INK, weight: str = "normal",
    va: str = "center", ha: str = "center", card: bool = False,
) -> None:  # fmt: skip
    """A text about a point; on a ``card``, it hides what is below."""
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 2} if card else None
    axes.text(x, y, text, ha=ha, va=va, fontsize=size, color=color, fontweight=weight, bbox=behind)


def span(axes: Any, x: float, y: float, width: float, colour: str, text: str, card: bool = False) -> None:
    """A stretch of time in a row, and what is done in it."""
    box(axes, x, y, width, 1, face=colour, alpha=0.75, line=0.8)
    label(axes, x + width / 2, y + 0.5, text, size=9.5, card=card)


def titled(axes: Any, text: str, size: float = 11, loc: str = "center") -> None:
    axes.set_title(text, fontsize=size, fontweight="bold", loc=loc)

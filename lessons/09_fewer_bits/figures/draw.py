"""The picture of lesson 09: which bytes of A and B a lane holds."""

from pathlib import Path

from common.report import canvas
from common.report.canvas import GRID, MUTED, ORANGE, SKY
from common.report.cells import box, frame, label
from common.trace.helpers import K32

LANE = 5


def draw(folder: Path) -> list[Path]:
    """Write every picture into ``folder``; returns the PNG files."""
    return canvas.save_all(folder, fragments)


def fragments():
    """A, 16 x 32, and B, 32 x 8, with the bytes that one lane holds: the number in a cell is its place."""
    figure, axes = canvas.new_figure(9.6, 5.6)
    sides = (("A", K32.a, (16, 32), 0, 0, SKY), ("B", K32.b, (32, 8), 35, -8, ORANGE))
    for name, (rows, columns), (height, width), left, top, colour in sides:
        held = {(int(r), int(c)): i for i, (r, c) in enumerate(zip(rows[LANE], columns[LANE], strict=True))}
        for row in range(height):
            for column in range(width):
                place = held.get((row, column))
                face = colour if place is not None else "none"
                box(axes, left + column, top + row, 1, 1, face=face, edge=GRID, alpha=0.8, line=0.6)
                if place is not None:
                    label(axes, left + column + 0.5, top + row + 0.5, str(place), size=7)
        box(axes, left, top, width, height, line=1.2)
        label(axes, left + width / 2, top - 0.9, f"{name}, {height} x {width}", size=11)
    note = f"What lane {LANE} holds, in the order of its words: group {LANE // 4}, member {LANE % 4}."
    label(axes, 16, 20, note, size=9.5, color=MUTED)
    frame(axes, (-1, 44), (24.6, -10), equal=True)
    return figure

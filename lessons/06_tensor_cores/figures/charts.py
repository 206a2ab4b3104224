"""The chart of a card's record that lesson 06 shows: errors of products over the length of their sums."""

import math
from importlib import import_module

from common.records import current
from common.report import charts
from common.report.canvas import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    gridded,
    headings,
    new_figure,
    save,
)

accuracy = import_module("lessons.06_tensor_cores.figures.accuracy")
kinds = import_module("lessons.06_tensor_cores.figures.kinds")


def draw_card(record, folder):
    """Draw it into ``folder`` if errors were measured; returns the PNG files."""
    return [save(errors(record), folder / "accuracy")] if record.data.accuracy else []


def errors(record):
    """Root mean square error of each product of normals over K, both logarithmic; dashed: with FP16 sums."""
    found = kinds.wide(record.data.accuracy[accuracy.USUAL])
    figure, axes = new_figure(9.6, 5.4)
    colours = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW)
    older = {name for name, entry in found.items() if current.older(entry.code, name)}
    for (name, entry), colour, marker in zip(found.items(), colours * len(found), charts.MARKERS, strict=False):
        points = [(point.K, point.rms) for point in entry.points if point.rms]
        style = "--" if name == accuracy.SUMS else "-"
        look = {"linewidth": 6, "alpha": 0.4} if entry.library else {"linewidth": 2}  # steps stand on their libraries
        label = charts.signed(name, name in older)
        axes.plot(*zip(*points, strict=True), style, marker=marker, color=colour, label=label, **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    depths = sorted({point.K for entry in found.values() for point in entry.points})
    axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
    axes.set_xlabel(charts.labelled("K, the length of each sum (logarithmic)", found, bool(older)))
    axes.set_ylabel("error, of the results' root mean square")
    gridded(axes)
    run = record.run_of(next(iter(found.values())))
    headings(figure, "Errors of products of normals", f"{record.gpu_name}, {run.date}", math.ceil(len(found) / 3))
    return figure

"""How a network learned, and how fast, as charts: from a record of training alone."""

from importlib import import_module
from pathlib import Path

import numpy as np

from common.report import canvas
from common.report.canvas import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILION

records = import_module("lessons.08_training.network.record")
EAGER, GRAPH = records.EAGER, records.GRAPH

SHOWN = 24  # mistakes
_COLOURS = (BLUE, SKY, GREEN, ORANGE, PURPLE)
_OTHERS = {EAGER: (VERMILION, "-"), GRAPH: (VERMILION, "--")}


def draw_card(record, folder: Path) -> list[Path]:
    """Draw what the record of training on the record's GPU has, as ``training-...``; returns the PNG files."""
    found = records.load(record.slug, record.folder)
    written = draw_run(found.trained, found.gpu.name, folder) if found and found.trained else []
    if found and found.compared:
        written.append(canvas.save(speeds(found.compared, found.gpu.name), folder / "training-speed"))
    return written


def draw_run(run, where: str, folder: Path) -> list[Path]:
    """Draw the curves of a run, and the digits that it got wrong if there are any; returns the PNG files."""
    written = [canvas.save(curves(run, where), folder / "training-curves")]
    if run.mistakes:
        written.append(canvas.save(mistakes(run, where), folder / "training-mistakes"))
    return written


def curves(run, where: str):
    """Loss of the epochs, logarithmic, learned and held-out; and the share of held-out digits that were wrong."""
    figure, (left, right) = canvas.new_figure(9.6, 4.0, columns=2)
    epochs = np.arange(1, len(run.history) + 1)
    left.plot(epochs, [one.loss for one in run.history], color=BLUE, linewidth=2, label="while it learns")
    left.plot(epochs, [one.held_out_loss for one in run.history], color=ORANGE, linewidth=2, label="held-out digits")
    left.set_yscale("log")
    left.set_ylabel("loss")
    wrong = [100 * (1 - one.held_out_accuracy) for one in run.history]
    right.plot(epochs, wrong, color=ORANGE, linewidth=2)
    right.set_ylabel("held-out digits that are wrong, %")
    right.set_ylim(0, max(10.0, 1.2 * wrong[-1]))
    right.annotate(
        f"{wrong[-1]:.1f}%", (epochs[-1], wrong[-1]), xytext=(-4, 10), textcoords="offset points", ha="right",
        fontweight="bold",
    )  # fmt: skip
    for axes in (left, right):
        axes.set_xlabel("epoch")
        canvas.gridded(axes)
    title = f"{run.learned:,} digits, {len(run.history)} epochs in batches of {run.batch}"
    canvas.headings(figure, title, f"{where}, {run.run.date}", legend=1)
    return figure


def mistakes(run, where: str):
    """The held-out digits that were not recognised: what each is, and what the network said."""
    shown = run.mistakes[:SHOWN]
    columns = min(8, len(shown))
    rows = -(-len(shown) // columns)
    figure, grid = canvas.new_figure(9.6, 1.0 + 1.45 * rows, rows=rows, columns=columns, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, one in zip(grid.flat, shown, strict=False):
        axes.imshow(one.image(), cmap="gray_r", interpolation="nearest")
        axes.set_title(f"{one.label}, said {one.said}", fontsize=10, color=INK)
    count = f"{len(run.mistakes)} of {run.held_out:,} held-out digits are wrong"
    more = f"; {len(shown)} of them" if len(shown) < len(run.mistakes) else ""
    canvas.headings(figure, count + more, f"{where}, {run.run.date}")
    return figure


def speeds(compared, where: str):
    """Images learned each second over the size of a batch, both logarithmic."""
    figure, axes = canvas.new_figure(9.6, 5.4)
    names = list(dict.fromkeys(one.name for one in compared.speeds))
    own = dict(zip((name for name in names if name not in _OTHERS), _COLOURS, strict=False))
    for name in names:
        colour, style = _OTHERS.get(name) or (own[name], "-")
        points = sorted(
            (one.batch, 1e3 * one.batch / one.timing.median_ms) for one in compared.speeds if one.name == name
        )
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=style, marker="o", linewidth=2, label=name)
    sizes = sorted({one.batch for one in compared.speeds})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("digits in a batch")
    axes.set_ylabel("digits learned each second")
    canvas.gridded(axes)
    axes.tick_params(colors=MUTED)
    source = f"{where}, {compared.run.date}; {compared.library}"
    canvas.headings(figure, "A step of training, FP32", source, legend=-(-len(names) // 3))
    return figure

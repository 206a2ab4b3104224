"""A chart for several lessons, from traces: values read for each multiply-add, step by step."""

import numpy as np

from common.catalog import catalog
from common.report.canvas import BLUE, SKY, VERMILION, gridded, new_figure
from common.trace import trace

SPACES = {"global": BLUE, "constant": SKY, "shared": VERMILION}


def loads_per_fma(ladder="gemm", through=""):
    """Values read for each multiply-add, step by step, from global, constant and shared memory.

    With ``through``, of no lesson after that one.
    """
    steps = [step for step in catalog.steps() if step.ladder == ladder and (not through or step.lesson <= through)]
    found = list(trace.results([trace.task(step, trace.SHAPES[ladder][0]) for step in steps]))
    read = {space: [one.main.per_fma[space]["loaded_values"] for one in found] for space in SPACES}
    read = {space: values for space, values in read.items() if any(values)}
    figure, axes = new_figure(9.6, 1.4 + 0.24 * (len(read) + 0.8) * len(steps))
    height = 0.8 / len(read)
    least = min(value for values in read.values() for value in values if value) / 2
    for i, (space, values) in enumerate(read.items()):
        places = np.arange(len(steps)) + (i - (len(read) - 1) / 2) * height
        bars = axes.barh(places, np.maximum(values, least), height=0.9 * height, color=SPACES[space],
                         label=f"from {space} memory")  # fmt: skip
        axes.bar_label(bars, [f"{value:.3g}" if value else "none" for value in values], padding=4, fontsize=9)
    ticks = [tick for tick in (0.001, 0.01, 0.1, 1.0) if tick > least]
    axes.set(xscale="log", xlim=(least, 5), xlabel="floats read for each multiply-add of a thread (logarithmic)")
    axes.minorticks_off()
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(np.arange(len(steps)), [step.name for step in steps])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    gridded(axes, "x")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.4, 1.12), ncols=len(read))
    return figure

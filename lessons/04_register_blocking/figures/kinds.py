"""A figure of pages: the time that a step's loop allows."""

from common.report import figures
from common.report.figures import kind


@kind("allows")
def allowed(record, code, preset, step):
    """Milliseconds of the multiply loop's instructions, if each scheduler starts one with every clock."""
    floor, hot = figures.floor(record, preset), figures.hot_loop(code, step)
    if floor is None or hot is None:
        return None
    value = floor.value / hot.useful
    return figures.Figure(value, figures.milliseconds(value))

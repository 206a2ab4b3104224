"""A figure of pages: instructions of one kind for each multiply-add."""

from common.machine_code import sass
from common.report import figures
from common.report.figures import kind


@kind("kindfma")
def kind_per_multiply_add(code, step, group):
    """Instructions of one of :data:`sass.GROUPS` for each multiply-add; raises ValueError at another group."""
    if group not in sass.GROUPS:
        raise ValueError(f"kindfma: {group!r} is unknown: kinds of instructions are {', '.join(sass.GROUPS)}")
    hot = figures.hot_loop(code, step)
    value = hot.per_multiply_add(sass.by_group(hot.instructions)[group]) if hot else None
    return None if value is None else figures.of(value, ".1f" if value >= 1 else ".3f")

"""A figure of pages: warp instructions of a whole problem."""

from common.catalog import problems
from common.report import figures
from common.report.figures import kind


@kind("warps")
def warp_instructions(code, preset, step):
    """10⁹ warp instructions that the step's multiply loop takes for the whole problem."""
    hot = figures.hot_loop(code, step, preset)
    each = hot.per_multiply_add() if hot else None
    return None if each is None else figures.of(problems.preset(preset).flops / 2 * each / 32 / 1e9, "#.3g")

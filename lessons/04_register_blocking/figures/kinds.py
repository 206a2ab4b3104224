"""A table of pages: occupancy and the useful fraction of kernels."""

from common.machine_code.summaries import HotLoop
from common.records import records
from common.report import kinds
from common.report.figures import kind, with_preset
from common.report.table import Table


@kind("useful", kinds.TABLES)
def useful(code, *words):
    """``[PRESET] STEP ...``: occupancy and useful fraction of each step's main kernel."""
    preset, names = with_preset(words)
    rows, architecture = [], ""
    for name in names:
        kernel = records.main_kernel(code, name, preset)
        if kernel is None or kernel.occupancy is None:
            rows.append([f"`{name}`", *[kinds.UNCOMPILED] * 7])
            continue
        architecture, hot, fits = kernel.architecture, HotLoop.recorded(kernel), kernel.occupancy
        reads, floats = hot.multiply_adds_per_shared_load, hot.floats_per_multiply_add
        rows.append([
            f"`{name}`", str(kernel.registers), f"{100 * fits.fraction:.3g}", ", ".join(fits.limited_by),
            f"{hot.mix.get('multiply-add', 0)} of {hot.total}", f"{100 * hot.useful:.0f}",
            "" if reads is None else f"{reads:.3g}", f"{floats:.3g}" if floats else "",
        ])  # fmt: skip
    header = ["step", "registers", "occupancy %", "limited by", "multiply-adds", "useful %"]
    header += ["multiply-adds per shared load", "floats per multiply-add"]
    return Table(header, rows, kinds.compiled("The innermost multiply loop", architecture, code, preset))

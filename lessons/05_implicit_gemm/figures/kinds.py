"""Tables and figures of pages: kinds of instructions, tiles that a step chooses among."""

import ast

from common.catalog import catalog
from common.machine_code import sass
from common.machine_code.summaries import HotLoop
from common.records import records
from common.report import figures, kinds
from common.report.figures import kind
from common.report.table import Table


@kind("kindfma")
def kind_per_multiply_add(code, step, group):
    """Instructions of one of :data:`sass.GROUPS` for each multiply-add; raises ValueError at another group."""
    if group not in sass.GROUPS:
        raise ValueError(f"kindfma: {group!r} is unknown: kinds of instructions are {', '.join(sass.GROUPS)}")
    hot = figures.hot_loop(code, step)
    value = hot.per_multiply_add(sass.by_group(hot.instructions)[group]) if hot else None
    return None if value is None else figures.of(value, ".1f" if value >= 1 else ".3f")


@kind("mix", kinds.TABLES)
def mix(code, *names):
    """``STEP ...``: the multiply loop's instructions by what they do, for each multiply-add."""
    groups = list(sass.GROUPS)[1:]
    rows = []
    for name in names:
        kernel = records.main_kernel(code, name)
        if kernel is None:
            rows.append([f"`{name}`", *[kinds.UNCOMPILED] * len(sass.GROUPS)])
            continue
        shares = (kind_per_multiply_add(code, name, group) for group in groups)
        cells = ["?" if one is None else one.text for one in shares]
        rows.append([f"`{kernel.kernel}`", str(HotLoop.recorded(kernel).multiply_adds), *cells])
    note = "Instructions of the innermost multiply loop for each multiply-add."
    return Table(["kernel", "multiply-adds in the loop", *groups], rows, note)


@kind("tiles", kinds.TABLES)
def tiles(name):
    """The tiles that a step chooses among, as its ``TILES`` has them."""
    tree = ast.parse(catalog.find(name).path.read_text(encoding="utf-8"))
    assigned = (one for one in tree.body if isinstance(one, ast.Assign))
    values = [one.value for one in assigned if [ast.unparse(target) for target in one.targets] == ["TILES"]]
    if not values:
        raise ValueError(f"tiles {name}: the step has no TILES")
    rows = [
        [
            f"{t['BLOCK_M']} × {t['BLOCK_N']}", f"{t['THREAD_M']} × {t['THREAD_N']}", str(t["BLOCKS_PER_SM"]),
            f"{rate:g}",
        ]
        for rate, t in ast.literal_eval(values[0])
    ]  # fmt: skip
    header = ["outputs of a block", "of a thread", "blocks on a multiprocessor", "full, as a share of the best"]
    return Table(header, rows)

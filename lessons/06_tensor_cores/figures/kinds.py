"""Tables and figures of pages: what an instruction's rate allows, errors of products, one tile of a sweep."""

import math
from importlib import import_module

from common.catalog import problems
from common.records import records
from common.report import figures, tables
from common.report.figures import kind
from common.report.table import Table
from common.report.tables import UnmeasuredError

accuracy = import_module("lessons.06_tensor_cores.figures.accuracy")


@kind("bound")
def bound(record, preset, what):
    """Milliseconds of a preset's multiply-adds at a measured rate, such as ``mma_f16``."""
    rate = figures.ceiling(record, what)
    if rate is None:
        return None
    value = problems.preset(preset).flops / rate.value / 1e9
    return figures.Figure(value, figures.milliseconds(value))


_ERRORS = "Root mean square and largest error, in 10⁻⁶ of the exact results' root mean square"


@kind("accuracy", tables.TABLES)
def errors(record):
    """The errors of products of normals over K."""
    found = wide(record.data.accuracy.get(accuracy.USUAL, {}))
    if not found:
        raise UnmeasuredError("errors over K")
    depths = sorted({point.K for entry in found.values() for point in entry.points})
    note = f"{_ERRORS}; M = N = {accuracy.EXTENT}. On one {tables.machine(record, found.values())}."
    return Table(["product", *(f"K = {depth}" for depth in depths)], over(found, depths), note)


def wide(found):
    """The products that lesson 06 shows, by name."""
    return {name: entry for name, entry in found.items() if not accuracy.of_fewer_bits(name)}


def over(found, depths):
    """A row for each product, a column for each depth."""
    rows = []
    for name, entry in found.items():
        at = {point.K: point for point in entry.points}
        rows.append([named(name, entry), *(_errors(at.get(depth)) for depth in depths)])
    return rows


@kind("unfit", tables.TABLES)
def errors_of_unfit(record):
    """The same for operands beyond some precisions, a column for each kind of them."""
    others = accuracy.USUAL, accuracy.SHORT
    unfit = {name: wide(mine) for name, mine in record.data.accuracy.items() if name not in others}
    if not unfit:
        raise UnmeasuredError("operands beyond some precisions")
    products = {name: entry for mine in unfit.values() for name, entry in mine.items()}
    rows = [
        [named(name, entry), *(_errors(mine[name].points[0] if name in mine else None) for mine in unfit.values())]
        for name, entry in products.items()
    ]
    said = "; ".join(f"*{name}*: {accuracy.KINDS[name].said}" for name in unfit if name in accuracy.KINDS)
    note = f"{said}. K = {accuracy.UNFIT_DEPTH}. {_ERRORS}; *lost*: beyond what float16 holds."
    where = tables.machine(record, next(iter(unfit.values())).values())
    return Table(["product", *unfit], rows, f"{note} On one {where}.")


def named(name, entry):
    return tables.aged(f"`{name}`" if entry.source else f"*{name}*", records.older(entry, name))


def _errors(point):
    if point is None:
        return ""
    lost = f"{100 * point.lost:.3g}% lost" if point.lost else ""
    known = point.rms is not None and point.largest is not None
    said = ", ".join(millionths(one) for one in (point.rms, point.largest) if known and one is not None)
    return ", ".join(filter(None, [said, lost]))


@kind("swept")
def swept(record, preset, step, name, value):
    """Median milliseconds in the step's sweep of the tile that is shipped but for the constant ``name``."""
    sweep = record.sweep(preset, step)
    if sweep is None:
        return None
    if name not in sweep.shipped or not value.isdigit():
        raise ValueError(f"{name} {value}: must be one of {', '.join(sweep.shipped)}, and a number")
    tile = {**sweep.shipped, name: int(value)}
    found = next((point.median_ms for point in sweep.points if point.tile == tile), None)
    return None if found is None else figures.Figure(found, figures.milliseconds(found))


def millionths(value):
    """Two significant digits of 10⁶ times the value."""
    value *= 1e6
    digits = 1 - math.floor(math.log10(value)) if value else 0
    return f"{round(value, digits):,.{max(0, digits)}f}"

"""A table of the page: errors of products of fewer bits over K."""

from importlib import import_module

from common.records import records
from common.report import tables
from common.report.figures import kind
from common.report.table import Table
from common.report.tables import UnmeasuredError

accuracy = import_module("lessons.06_tensor_cores.figures.accuracy")
tensor_cores = import_module("lessons.06_tensor_cores.figures.kinds")

DEPTHS = 1024, 4096, 16384
SHOWN = "cuBLAS FP16", "hgemm_pipelined", "cuBLAS BF16"  # besides this lesson's steps


@kind("fewer_bits", tables.TABLES)
def errors(record, slug=None):
    """The errors of products of fewer bits over K, on another card by its record's name: of operands that each format
    rounds, and of others that none does."""
    if slug:
        record = records.other(slug) or records.nothing()
    found = {name: record.data.accuracy.get(name, {}) for name in (accuracy.USUAL, accuracy.SHORT)}
    products = [name for name in found[accuracy.USUAL] if name in SHOWN or accuracy.of_fewer_bits(name)]
    if not any(map(accuracy.of_fewer_bits, products)):
        raise UnmeasuredError("errors of fewer bits")
    rows = [[tensor_cores.named(name, found[accuracy.USUAL][name])] for name in products]
    for entries in found.values():
        for row, name in zip(rows, products, strict=True):
            at = {point.K: point for point in entries[name].points} if name in entries else {}
            row += [tensor_cores.millionths(at[depth].rms) if depth in at else "" for depth in DEPTHS]
    header = ["product", *(f"{said}, K = {depth}" for said in ("normals", "short") for depth in DEPTHS)]
    note = (
        "Root mean square error, in 10⁻⁶ of the exact results' root mean square; M = N = "
        f"{accuracy.EXTENT}. *Short*: {accuracy.KINDS[accuracy.SHORT].said}. "
        f"On one {tables.machine(record, found[accuracy.USUAL].values())}."
    )
    return Table(header, rows, note)

"""Tables and figures of pages: of training, and of epilogues."""

from importlib import import_module

from common.catalog import problems
from common.records.records import older
from common.report import figures, tables
from common.report.figures import kind
from common.report.table import OLDER, Table
from common.report.tables import UnmeasuredError

records = import_module("lessons.08_training.network.record")

OPEN = "(not measured yet)"
_OF_RUN = {
    "accuracy": lambda run: figures.of(100 * run.history[-1].held_out_accuracy, ".1f"),
    "epochs": lambda run: figures.of(len(run.history), ","),
    "seconds": lambda run: figures.of(sum(one.seconds for one in run.history), ".2g"),
}


@kind("training")
def figure(record, what, *words):
    """A figure of the record of training on the record's GPU; what was not measured is left open.

    ``accuracy``, ``epochs``, ``seconds``; ``apart NAME``; ``faster NAME BATCH [OTHER]``, times as fast as OTHER
    (default: PyTorch). Names have - in the place of a comma and a blank: ``fused-graph``.
    """
    found = records.load(record.slug, record.folder)
    compared = found and found.compared
    match [what, *(word.replace("-", ", ") for word in words)]:
        case [one] if one in _OF_RUN:
            return _OF_RUN[one](found.trained) if found and found.trained else OPEN
        case ["apart", name] if not compared or name in compared.losses:
            return figures.of(compared.apart(name), ".1e") if compared else OPEN
        case ["faster", name, batch, *other] if batch.isdigit() and len(other) < 2:
            both = [compared and compared.speed(one, int(batch)) for one in (name, *(other or [records.EAGER]))]
            return _times(*both) if all(both) else OPEN
    raise ValueError(f"training {' '.join([what, *words])}: is not in the record")


def _times(speed, beside):
    ratio = beside.timing.median_ms / speed.timing.median_ms
    return figures.of(ratio, ".2g" if ratio < 10 else ".0f")


@kind("training", tables.TABLES)
def table(record, *batches):
    """``[BATCH ...]``: microseconds of a training step, its launches, and times as fast as PyTorch."""
    found = records.load(record.slug, record.folder)
    compared = found and found.compared
    if not compared:
        raise UnmeasuredError("training")
    sizes = [int(word) for word in batches] or sorted({one.batch for one in compared.speeds})
    mark = "" if compared.code == records.code() else f" {OLDER}"
    rows = []
    for name in dict.fromkeys(one.name for one in compared.speeds):
        library = name in (records.EAGER, records.GRAPH)
        launches = next(one.launches for one in compared.speeds if one.name == name)
        cells = [f"*{name}*" if library else f"{name}{mark}", str(launches or "")]
        for size in sizes:
            speed, eager = compared.speed(name, size), compared.speed(records.EAGER, size)
            both = speed and eager
            cells.append(f"{1e3 * speed.timing.median_ms:,.0f} ({_times(speed, eager)}×)" if both else "")
        rows.append(cells)
    header = ["a step, µs (times as fast as PyTorch)", "launches", *(f"{size:,} digits" for size in sizes)]
    note = f"Median of steps that follow each other, in turn on one {found.gpu.name}, {compared.run.date};"
    return Table(header, rows, f"{note} {compared.library}, FP32, cuDNN autotuned, its faster layout.")


@kind("epilogues", tables.TABLES)
def epilogues(record, name, preset):
    """``STEP PRESET``: the bytes that fusing saves, then the times of a step with each epilogue."""
    entry = record.data.epilogues.get(preset, {}).get(name)
    if entry is None:
        raise UnmeasuredError(f"epilogues of `{name}` on `{preset}`")
    rate = record.ceilings.copy_gbs if record.ceilings else None
    old = older(entry, name)
    what = "convolution" if isinstance(problems.preset(preset), problems.Convolution) else "product"
    header = ["epilogue", "bytes saved", "takes", f"{what} alone ms", "fused ms", "over alone"]
    header += ["two kernels ms", "PyTorch ms"]
    rows = [
        [
            tables.aged(f"`{one.epilogue}`", old), f"{one.saved_bytes / 1e6:.0f} MB",
            f"{one.saved_bytes / rate / 1e6:.3f} ms" if rate else "",
            figures.milliseconds(one.alone.second.median_ms), figures.milliseconds(one.alone.first.median_ms),
            f"{100 * (one.alone.ratio - 1):+.1f}%", figures.milliseconds(one.separate.first.median_ms),
            figures.milliseconds(one.eager.first.median_ms) if one.eager else "",
        ]
        for one in entry.found
    ]  # fmt: skip
    layouts = sorted({one.layout for one in entry.found if one.layout})
    theirs = f" {entry.library}, {' and '.join(layouts)}." if entry.library else ""
    how = "*Takes*: what so many bytes cost at the rate of a copy. Fused and the others are timed in turn."
    ran = tables.ran(problems.from_shape(problems.preset(preset).ladder, entry.shape), preset)
    note = f"`{name}` on `{preset}`: {ran}. {how}{theirs} On one {tables.machine(record, [entry])}."
    return Table(header, rows, note)


def _epilogue(record, preset, step, epilogue):
    """A step's times with an epilogue; None if there are none."""
    entry = record.data.epilogues.get(preset, {}).get(step)
    return next((one for one in entry.found if one.epilogue == epilogue), None) if entry else None


@kind("epilogue")
def of_epilogue(record, preset, step, epilogue, way):
    """Milliseconds of a step with an epilogue: ``fused``, ``separate`` (two kernels), or ``eager`` (PyTorch)."""
    found = _epilogue(record, preset, step, epilogue)
    pair = found and getattr(found, "alone" if way == "fused" else way)
    return figures.Figure(pair.first.median_ms, figures.milliseconds(pair.first.median_ms)) if pair else None


@kind("saved")
def saved(record, preset, step, epilogue):
    """Of a step and a kernel for an epilogue, percent of their time that the bytes take which fusing saves."""
    found = _epilogue(record, preset, step, epilogue)
    if found is None or record.ceilings is None:
        return None
    return figures.of(found.saved_bytes / record.ceilings.copy_gbs / 1e4 / found.separate.first.median_ms, ".1f")

"""Figures of records: each a number, its unit, and how it is shown. Tables, pages and answers take them from here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from common.catalog import algorithms, catalog, problems, reference
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.check import inputs
from common.machine_code import sass
from common.machine_code.loops import HotLoop
from common.records import current, records
from common.records.entries import MachineCode, PeerRow, Row, StepRow
from common.records.records import Derived, Record
from common.timing import clocks, profiler
from common.timing.peers import Beside
from common.timing.timing import Timing

SPREAD = "p20–p80"
IN_TURN = "× "  # and the library's name: a column of ratios to it
SIGNS = {
    "†": "Rounds its inputs to TF32, for tensor cores.",
    "‡": "FP16 in and out, multiplied by tensor cores, summed in FP32.",
    "§": "FP32 in and out, three products of TF32 numbers for each, on tensor cores.",
}
OLDER = "¶"
MARKS = {**SIGNS, OLDER: "Measured on an older version of the file."}
CARD_KEYS = (
    "line_total", "line_useful", "registers", "threads", "occupancy", "warps", "blocks", "limits", "total",
    "multiply_adds", "useful", "as_single_loads", "floats_per_fma", "fma_per_shared_load",
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A number, its unit (empty for a count or a ratio), and how tables and pages show it: rounded to few digits."""

    value: float
    unit: str
    text: str

    @property
    def shown(self) -> float:
        """The number that ``text`` says: the value, rounded to the digits shown."""
        return float(self.text.replace(",", ""))


def signs() -> dict[str, str]:
    """The sign of each step or experiment that multiplies on tensor cores: one of SIGNS, by name."""
    rounded, half, split = SIGNS
    by_precision = dict(zip(catalog.PRECISIONS[1:], (rounded, split), strict=True))
    return {
        step.name: by_precision.get(step.precision, half)
        for step in catalog.everything()
        if catalog.on_tensor_cores(step, problems.FIRST[step.ladder])
    }


def milliseconds(value: float) -> str:
    """Three significant digits, never in exponent form."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:#.3g}" if value >= 1e-4 else f"{value:.{2 - math.floor(math.log10(value))}f}"


# --- rows of tables ---


class Speed(NamedTuple):
    """Operations, and the milliseconds that they took."""

    flops: int
    ms: float

    def at(self, other: Speed) -> float | None:
        """The milliseconds, if the other is of as many operations: only then are they to be compared."""
        return self.ms if self.flops == other.flops else None


def usual(ran: Iterable[Problem]) -> Problem:
    """The size at which most of a preset's rows ran."""
    return Counter(ran).most_common(1)[0][0]


def note(ran: Problem, usual: Problem, slow: Timing | None = None) -> str:
    """What a row's time is to be read with: the size that ran, if not the usual one, and the clock if it was slow."""
    said = [f"{key}={value}" for key, value in ran.shape().items() if usual.shape().get(key) != value]
    return " ".join([*said, *([f"at {slow.sm_mhz} MHz"] if slow else [])])


@dataclass(frozen=True)
class TimedRow:
    """A step's or a library's row of a preset's table: its ``name``, and figures by column; is its code ``older``?

    ``note`` follows the time. Speed-ups count from a row's ``speed``.
    """

    name: str
    columns: dict[str, Figure]
    older: bool = False
    note: str = ""
    speed: Speed | None = None

    def cell(self, title: str) -> str:
        """What the table shows in a column; empty where there is no figure."""
        if title == SPREAD:
            return f"{self.columns['p20 ms'].text}–{self.columns['p80 ms'].text}"
        text = self.columns[title].text if title in self.columns else ""
        return f"{text} ({self.note})" if title == "ms" and self.note else text


def columns(
    timing: Timing,
    derived: Derived | None,
    first_ms: float | None = None,
    previous_ms: float | None = None,
    prepare_ms: float | None = None,
    workspace_bytes: int = 0,
) -> dict[str, Figure]:
    """Figures of one timing by the titles of a table's columns; what is not known is left out.

    ``first_ms`` and ``previous_ms`` are the times that speed-ups count from.
    """
    ms = timing.median_ms
    found = {"ms": _ms(ms), "p20 ms": _ms(timing.p20_ms), "p80 ms": _ms(timing.p80_ms)}
    if first_ms:
        found["× first"] = _of(first_ms / ms, "", ".2f")
    if previous_ms:
        found["× previous"] = _of(previous_ms / ms, "", ".2f")
    if derived:
        found["GFLOP/s"] = _of(derived.gflops, "GFLOP/s", ",.0f")
        found["GB/s"] = _of(derived.gbs, "GB/s", ",.0f")
        found["% of floor"] = _share(derived)
    if prepare_ms is not None:
        found["prepare ms"] = _ms(prepare_ms)
    if workspace_bytes:
        found["workspace MB"] = _of(workspace_bytes / 1e6, "MB", ",.0f")
    return found


def timed(record: Record, preset: str, steps: list[Step]) -> list[TimedRow]:
    """The steps that have a row on the preset; speed-ups count from the first of them (:func:`first_speed`)."""
    found = record.rows(preset)
    rows = []
    first, previous = first_speed(record, preset, steps), None
    for step in steps:
        if step.name in found:
            row = found[step.name]
            mine = _speed(record, preset, row)
            previous = previous or mine
            rows.append(_timed_row(record, preset, step.name, row, first, previous))
            if not step.experiment:
                previous = mine
    return rows


def _speed(record: Record, preset: str, row: Row) -> Speed:
    return Speed(record.problem(preset, row).flops, row.timing.median_ms)


def first_speed(record: Record, preset: str, steps: list[Step]) -> Speed | None:
    """Of the first of the steps that the preset is for; None if it was not timed: no other is the first."""
    first = next((step for step in steps if step.experiment or preset in catalog.presets(step)), None)
    row = record.row(preset, first.name) if first else None
    return _speed(record, preset, row) if row else None


def befores(step: Step, preset: str | None) -> list[str]:
    """The steps that a time of this one on the preset is compared with: the first, ..., the previous; maybe none."""
    earlier = catalog.predecessors(step) if step.predecessor else []
    return [one.name for one in earlier if preset in catalog.presets(one)]


def median(row: Row) -> Figure:
    """A row's median milliseconds."""
    return _ms(row.timing.median_ms)


def libraries(record: Record, preset: str, first: Speed | None) -> list[tuple[TimedRow, PeerRow]]:
    """The vendor's libraries on the preset, by name, each with what the record has."""
    found = [(name, row) for name, row in sorted(record.rows(preset).items()) if isinstance(row, PeerRow)]
    rows = [(_timed_row(record, preset, name, row, first), row) for name, row in found]
    for one, _ in rows:
        if records.rounds_operands(one.name):
            one.columns.pop("% of floor", None)
    return rows


def in_turn_titles(rows: Iterable[dict[str, Figure]]) -> list[str]:
    """Of such columns that some row has."""
    known = ("× first", "× previous")
    titles = dict.fromkeys(title for columns in rows for title in columns)
    return [title for title in titles if title.startswith(IN_TURN) and title not in known]


def channels_last(record: Record, preset: str, step: Step, row: Row, first: Speed | None) -> TimedRow:
    """A step's row on the channels-last twin of a preset, compared with the preset's first."""
    return _timed_row(record, problems.CHANNELS_LAST[preset], step.name, row, first)


def _timed_row(
    record: Record, preset: str, name: str, row: Row, first: Speed | None, previous: Speed | None = None
) -> TimedRow:
    mine = _speed(record, preset, row)
    prepare, workspace = (row.prepare_ms, row.workspace_bytes) if isinstance(row, StepRow) else (None, 0)
    derived = record.derive(preset, row)
    before = [other.at(mine) if other else None for other in (first, previous)]
    found = columns(row.timing, derived, before[0], before[1], prepare, workspace)
    beside = in_turn(row.beside if isinstance(row, StepRow) else None)
    slow = row.timing if _slow(record, preset, row) else None
    said = note(record.problem(preset, row), record.usual(preset), slow)
    return TimedRow(name, found | beside, current.older(row, name), said, mine)


def _slow(record: Record, preset: str, row: Row) -> bool:
    """Was a step's FP32 row timed at a clock far below that of the others of its run?"""
    mine = row.timing.sm_mhz

    def fp32(preset: str, row: Row) -> bool:
        half = problems.preset(preset).input_dtype == problems.FLOAT16
        return isinstance(row, StepRow) and row.precision is None and not half

    if mine is None or not fp32(preset, row):
        return False
    everything = [(name, one) for name, rows in record.data.rows.items() for one in rows.values()]
    others = [one.timing.sm_mhz for name, one in everything if one.run == row.run and fp32(name, one)]
    return clocks.slow([mine, *others])[0]


def in_turn(beside: Beside | None) -> dict[str, Figure]:
    """A step's column of its ratio to the library in turn, above 1 if it is faster, with p20 and p80; maybe none."""
    if beside is None:
        return {}
    spread = f"{beside.ratio:.2f} ({beside.ratio_p20:.2f}–{beside.ratio_p80:.2f})"
    return {f"{IN_TURN}{beside.peer}": Figure(beside.ratio, "", spread)}


# --- single figures: None is what has not been measured or compiled; a library's name may have hyphens for blanks ---


def time(record: Record | None, preset: str, name: str) -> Figure | None:
    """Median milliseconds of a step or a library on a preset."""
    ms = _median(record, preset, name)
    return None if ms is None else _ms(ms)


def older(record: Record | None, preset: str, name: str) -> bool:
    """Is that time of an older version of the step?"""
    return current.older(_row(record, preset, name), name)


def speed_up(record: Record | None, preset: str, name: str, other: str) -> Figure | None:
    """Time of the first over time of the other."""
    rows = [_row(record, preset, one) for one in (name, other)]
    if not _same_size(*rows):
        return None
    above, below = (row.timing.median_ms for row in rows if row)
    return Figure(above / below, "", f"{above / below:#.3g}".rstrip("."))


def swept(record: Record | None, preset: str, step: str, name: str, value: str) -> Figure | None:
    """Median milliseconds in the step's sweep of the tile that is shipped but for the constant ``name``."""
    sweep = record.sweep(preset, step) if record else None
    if sweep is None:
        return None
    if name not in sweep.shipped or not value.isdigit():
        raise ValueError(f"{name} {value}: must be one of {', '.join(sweep.shipped)}, and a number")
    tile = {**sweep.shipped, name: int(value)}
    found = next((point.median_ms for point in sweep.points if point.tile == tile), None)
    return None if found is None else _ms(found)


def fastest(record: Record, preset: str, names: Sequence[str]) -> str | None:
    """The step of these that takes least time on a preset; None if none of them is timed on it."""
    timed = {name: ms for name in names if (ms := _median(record, preset, name)) is not None}
    return min(timed, key=timed.__getitem__, default=None)


def across(record: Record | None, preset: str, name: str, slug: str) -> Figure | None:
    """Time on the card of that record over the time here."""
    rows = [_row(one, preset, name) for one in (records.other(slug), record)]
    above, below = (row.timing.median_ms if row else 0.0 for row in rows)
    return _of(above / below, "", ".2f") if _same_size(*rows) else None


def share(record: Record | None, preset: str, name: str) -> Figure | None:
    """Percent of the floor's rate."""
    row = _row(record, preset, name)
    derived = record.derive(preset, row) if record and row else None
    return _share(derived) if derived else None


def floor(record: Record | None, preset: str) -> Figure | None:
    """Milliseconds of the floor at the shape that was measured."""
    found = record.floors(preset) if record else []
    return _ms(found[0][1].floor_ms) if found else None


def beside(record: Record | None, preset: str, step: str) -> Figure | None:
    """The library's time over the step's, in turn: above 1 the step is faster."""
    row = _row(record, preset, step)
    found = row.beside if isinstance(row, StepRow) else None
    return None if found is None else _of(found.ratio, "", ".2f")


def error(record: Record | None, operands: str, product: str, depth: str, which: str = "rms") -> Figure | None:
    """The ``rms`` error of a product, or its ``largest``, in 10⁻⁶ of the results' root mean square; at one K."""
    entry = record.data.accuracy.get(operands, {}).get(product.replace("-", " ")) if record else None
    point = next((one for one in entry.points if int(depth) == one.K), None) if entry else None
    value: float | None = getattr(point, which) if point else None
    return None if value is None else Figure(1e6 * value, "10⁻⁶", millionths(value))


def worst(record: Record | None, operands: str, product: str, depth: str) -> Figure | None:
    """The largest error, as :func:`error`."""
    return error(record, operands, product, depth, "largest")


def error_against(
    record: Record | None, operands: str, product: str, reference: str, depth: str, which: str
) -> Figure | None:
    """How many times as large a product's error is as another's: ``rms`` or ``largest``."""
    one, other = (error(record, operands, name, depth, which) for name in (product, reference))
    return _of(one.value / other.value, "", ".2f") if one and other and other.value else None


UNEVEN = problems.Dgrad(N=1, C=64, D=1, H=8, W=8, K=32, T=1, R=3, S=3, pad_h=1, pad_w=1)


def uneven(bound: str) -> Figure:
    """The largest error of minimal filtering on :func:`inputs.uneven` operands, over its ``normwise`` bound, or over
    the ``elementwise`` one of the definition; or the latter with operands that are ``even``. Computed by NumPy in
    float32: no GPU is needed.
    """
    if bound not in ("normwise", "elementwise", "even"):
        raise ValueError(f"<!--= uneven {bound} -->: must be normwise, elementwise or even")
    x, filt = inputs.normals(UNEVEN, 0) if bound == "even" else inputs.uneven(UNEVEN, 0)
    error = np.abs(algorithms.minimal_filtering(UNEVEN, x, filt) - reference.full(UNEVEN, x, filt))
    magnitude = reference.full(UNEVEN, np.abs(x), np.abs(filt))
    transformed = algorithms.magnitude(UNEVEN, x, filt) if bound == "normwise" else None
    ratio = float(np.max(error / reference.error_bound(UNEVEN, magnitude, transformed=transformed)))
    return _of(ratio, "", ".2g")


def millionths(value: float) -> str:
    """Two significant digits of 10⁶ times the value."""
    value *= 1e6
    digits = 1 - math.floor(math.log10(value)) if value else 0
    return f"{round(value, digits):,.{max(0, digits)}f}"


def saved(record: Record | None, preset: str, step: str, epilogue: str) -> Figure | None:
    """Of a step and a kernel for an epilogue, percent of their time that the bytes take which fusing saves."""
    entry = record.data.epilogues.get(preset, {}).get(step) if record else None
    found = next((one for one in entry.found if one.epilogue == epilogue), None) if entry else None
    if found is None or record is None or record.ceilings is None:
        return None
    return _of(found.saved_bytes / record.ceilings.copy_gbs / 1e4 / found.separate.first.median_ms, "%", ".1f")


def ceiling(record: Record | None, what: str) -> Figure | None:
    """A measured ceiling: ``copy`` in 10¹² bytes per second; or a multiply-add rate in 10¹² FLOP per second.

    ``fma``: that of the FP32 units; ``mma_f16``, ``mma_tf32``, ``wgmma_f16``, ``wgmma_tf32``: of tensor cores.
    """
    if record is None or not record.ceilings:
        return None
    measured: float | None = getattr(record.ceilings, "copy_gbs" if what == "copy" else f"{what}_gflops")
    if measured is None:
        return None
    value = measured / 1e3
    text = f"{value:.0f}" if value >= 100 else f"{value:#.2g}".rstrip(".")
    return Figure(value, "TB/s" if what == "copy" else "TFLOP/s", text)


def per_multiply_add(code: MachineCode, step: str) -> Figure | None:
    """Instructions for each multiply-add in the step's multiply loop."""
    hot = _hot(code, step)
    value = hot.per_multiply_add() if hot else None
    return None if value is None else _of(value, "instructions", ".0f" if value >= 1 else ".2g")


def kind_per_multiply_add(code: MachineCode, step: str, kind: str) -> Figure | None:
    """The same of one kind of instructions, of :data:`sass.GROUPS`; raises ValueError at another."""
    if kind not in sass.GROUPS:
        raise ValueError(
            f"<!--= kindfma ... {kind} -->: kind {kind!r} is unknown: kinds are {', '.join(sass.GROUPS)}"
        )
    hot = _hot(code, step)
    value = hot.per_multiply_add(sass.by_group(hot.instructions)[kind]) if hot else None
    return None if value is None else _of(value, "instructions", ".1f" if value >= 1 else ".3f")


def warp_instructions(code: MachineCode, preset: str, step: str) -> Figure | None:
    """10⁹ warp instructions that the step's multiply loop takes for the whole problem."""
    hot = _hot(code, step, preset)
    each = hot.per_multiply_add() if hot else None
    if each is None:
        return None
    return _of(problems.preset(preset).flops / 2 * each / 32 / 1e9, "10⁹ warp instructions", "#.3g")


def card(code: MachineCode, preset: str | None, step: str, key: str) -> Figure | None:
    """A figure of the step's main kernel: one of CARD_KEYS, a class such as ``shared_load``, or ``shared_load.128``.

    Raises ValueError at another key, and at ``limits``, which is no number (:func:`limits`).
    """
    kernel = records.main_kernel(code, step, preset)
    if kernel is None or kernel.occupancy is None:
        return None
    hot, fits = HotLoop.recorded(kernel), kernel.occupancy
    kind, _, bits = key.replace("_", " ").partition(".")
    if kind in sass.CLASSES:
        return _of(hot.widths.get(kind, {}).get(bits, 0) if bits else hot.mix.get(kind, 0), "", "")
    mixes = [line.mix for line in kernel.hot.lines]
    line = max(mixes, key=lambda mix: mix.get("multiply-add", 0), default={})
    all_of_line = sum(line.values())
    if key == "line_useful":
        return _of(100 * line.get("multiply-add", 0) / all_of_line, "%", ".0f") if line else None
    known = {
        "line_total": (all_of_line, "", ""),
        "registers": (kernel.registers, "", ""),
        "threads": (math.prod(kernel.block), "", ""),
        "occupancy": (100 * fits.fraction, "%", ".3g"),
        "warps": (fits.warps, "", ""),
        "blocks": (fits.blocks, "", ""),
        "total": (hot.total, "", ""),
        "multiply_adds": (hot.multiply_adds, "", ""),
        "useful": (100 * hot.useful, "%", ".0f"),
        "as_single_loads": (100 * (hot.as_single_loads or 0), "%", ".0f"),
        "floats_per_fma": (hot.floats_per_multiply_add or 0, "floats", ".3g"),
        "fma_per_shared_load": (hot.multiply_adds_per_shared_load or 0, "multiply-adds", ".3g"),
    }
    if key not in known:
        raise ValueError(
            f"<!--= card ... {key} -->: key {key!r} is unknown: keys are {', '.join(CARD_KEYS)}, or a class"
        )
    return _of(*known[key])


def limits(code: MachineCode, preset: str | None, step: str) -> list[str] | None:
    """What limits the blocks of the step's main kernel on a multiprocessor."""
    kernel = records.main_kernel(code, step, preset)
    return kernel.occupancy.limited_by if kernel and kernel.occupancy else None


def counter(record: Record | None, preset: str, step: str, key: str) -> Figure | None:
    """A hardware counter of the step's main kernel, or a quotient of two.

    ``perfma``, ``load_ratio``, ``store_ratio`` (sectors per request) and ``conflict_pct`` are such quotients.
    """
    entry = record.profile(preset, step) if record else None
    if entry is None:
        return None
    main = profiler.main_kernel(entry.kernels)
    ratios = {
        "perfma": (profiler.per(main.instructions, main.ffma_threads), 32, "instructions"),
        "load_ratio": (profiler.per(main.load_sectors, main.load_requests), 1, "sectors"),
        "store_ratio": (profiler.per(main.store_sectors, main.store_requests), 1, "sectors"),
        "conflict_pct": (profiler.per(main.shared_conflicts, main.shared_wavefronts), 100, "%"),
    }
    if key in ratios:
        ratio, factor, unit = ratios[key]
        return None if ratio is None else _of(factor * ratio, unit, ".1f")
    unit = "%" if key.endswith("_pct") else "ns" if key.endswith("_ns") else ""
    value: float | None = getattr(main, key) if key in profiler.METRICS else None
    return None if value is None else _of(value, unit, ".0f")


Named = Callable[[Record | None, MachineCode, list[str]], Figure | None]


def _of_record(figure: Callable[..., Figure | None], count: int) -> Named:
    """By ``count`` words, which are its arguments after the record."""
    return lambda record, _, words: figure(record, *_counted(words, count))


def _of_code(figure: Callable[..., Figure | None], count: int) -> Named:
    return lambda _, code, words: figure(code, *_counted(words, count))


def _counted(words: list[str], count: int) -> list[str]:
    if len(words) != count:
        raise ValueError(f"{' '.join(words)!r}: must be {count} words")
    return words


# By the words of a page's marker, or of an expected value: a kind, then what its function takes.
NAMED: dict[str, Named] = {
    "ms": _of_record(time, 2),  # PRESET NAME
    "ratio": _of_record(speed_up, 3),  # PRESET NAME NAME
    "perfma": _of_code(per_multiply_add, 1),  # STEP
    "kindfma": _of_code(kind_per_multiply_add, 2),  # STEP KIND
    "warps": _of_code(warp_instructions, 2),  # PRESET STEP
    "ceiling": _of_record(ceiling, 1),  # fma or copy
    "counter": _of_record(counter, 3),  # PRESET STEP KEY
    "share": _of_record(share, 2),  # PRESET NAME
    "floor": _of_record(floor, 1),  # PRESET
    "across": _of_record(across, 3),  # PRESET NAME SLUG
    "beside": _of_record(beside, 2),  # PRESET STEP
    "error": _of_record(error, 3),  # OPERANDS PRODUCT K
    "worst": _of_record(worst, 3),  # OPERANDS PRODUCT K
    "saved": _of_record(saved, 3),  # PRESET STEP EPILOGUE
    "swept": _of_record(swept, 4),  # PRESET STEP CONSTANT VALUE
    "against": _of_record(error_against, 5),  # OPERANDS PRODUCT PRODUCT K rms or largest
    "uneven": lambda _, __, words: uneven(*_counted(words, 1)),  # normwise, elementwise or even
}


def _hot(code: MachineCode, step: str, preset: str | None = None) -> HotLoop | None:
    kernel = records.main_kernel(code, step, preset)
    return None if kernel is None else HotLoop.recorded(kernel)


def _row(record: Record | None, preset: str, name: str) -> Row | None:
    return record.row(preset, name.replace("-", " ")) if record else None


def _same_size(one: Row | None, other: Row | None) -> bool:
    """Are there both, and did they run at one size? Only then are their times compared."""
    return one is not None and other is not None and one.shape == other.shape


def _median(record: Record | None, preset: str, name: str) -> float | None:
    row = _row(record, preset, name)
    return row.timing.median_ms if row else None


def _of(value: float, unit: str, form: str) -> Figure:
    return Figure(value, unit, format(value, form))


def _ms(value: float) -> Figure:
    return Figure(value, "ms", milliseconds(value))


def _share(derived: Derived) -> Figure:
    return _of(derived.percent_of_floor, "%", ".1f")

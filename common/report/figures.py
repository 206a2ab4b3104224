"""Figures of records: each a number and how it is shown; how libraries compute; what each step's idea was worth."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, TypeVar

from common.catalog import catalog, problems
from common.catalog.catalog import Step
from common.catalog.problems import DEFAULT_PRESET
from common.machine_code import summaries
from common.machine_code.summaries import Hot
from common.records import records
from common.records.records import MachineCode, Record, Row
from common.run.messages import PeerRow
from common.timing import tools

ROOFLINES = ("gemm", "conv2d")  # ladders that have one
_FEWER = ("Winograd", "FFT")  # how a library computes where that is not the definition's multiply-adds
# What a library's kernels are called when they compute so; the first that occurs in a name counts.
_IMPLICIT = ("implicit_gemm", "scudnn", "implicit_convolve", "precomputed_convolve", "fprop", "dgrad", "wgrad")
_METHODS = {
    "winograd": "Winograd", "fft": "FFT", **dict.fromkeys(_IMPLICIT, "implicit GEMM"), "im2col": "explicit GEMM",
    "direct": "direct", "gemm": "GEMM",
}  # fmt: skip
# Presets besides the one that a step is shown on, on which an idea is worth something else, or nothing.
_FURTHER = {"conv2d": ("ece408-layer2",), "dgrad": ("dgrad-resnet50-strided",), "wgrad": ("wgrad-resnet50-conv2",)}


class Figure(str):
    """A number as tables and pages show it, rounded to few digits: ``shown`` is that one, ``value`` the number."""

    value: float

    def __new__(cls, value: float, text: str) -> Figure:
        figure = super().__new__(cls, text)
        figure.value = value
        return figure

    @property
    def shown(self) -> float:
        return float(self.replace(",", ""))


def milliseconds(value: float) -> str:
    """Three significant digits, never in exponent form."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:#.3g}" if value >= 1e-4 else f"{value:.{2 - math.floor(math.log10(value))}f}"


def of(value: float | None, form: str | Callable[[float], str] = milliseconds) -> Figure | None:
    """The figure, shown in that format or by that function; None is what has not been measured or compiled."""
    if value is None:
        return None
    return Figure(value, format(value, form) if isinstance(form, str) else form(value))


def times_as_fast(ratio: float) -> str:
    """Three significant digits, as of a speed-up."""
    return f"{ratio:#.3g}".rstrip(".")


def versions(packages: dict[str, str]) -> str:
    """Packages by name, each with its version."""
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


# --- single figures ---


def time(record: Record, preset: str, name: str) -> Figure | None:
    """Median milliseconds of a step or a library on a preset."""
    row = record.row(preset, name)
    return of(row.timing.median_ms if row else None)


def speed_up(record: Record, preset: str, name: str, other: str) -> Figure | None:
    """Time of the first over time of the other."""
    return of(_ratio(record.row(preset, name), record.row(preset, other)), times_as_fast)


def across(record: Record, preset: str, name: str, slug: str) -> Figure | None:
    """Time on the card of that record over the time here; None if either was measured on an older version."""
    rows = [one.row(preset, name) for one in (records.other(slug) or records.nothing(), record)]
    return of(None if any(records.older(row, name) for row in rows) else _ratio(*rows), ".2f")


def share(record: Record, preset: str, name: str) -> Figure | None:
    """Percent of the floor's rate."""
    row = record.row(preset, name)
    derived = record.derive(preset, row) if row else None
    return of(derived.percent_of_floor if derived else None, ".1f")


def floor(record: Record, preset: str) -> Figure | None:
    """Milliseconds of the floor at the shape that was measured."""
    return of(next((one.floor_ms for _, one in record.floors(preset)), None))


def beside(record: Record, preset: str, step: str) -> Figure | None:
    """The library's time over the step's, in turn: above 1 the step is faster."""
    found = getattr(record.row(preset, step), "beside", None)
    return of(found and found.ratio, ".2f")


def ceiling(record: Record, what: str) -> Figure | None:
    """A measured ceiling: ``copy`` in 10¹² bytes per second; or a multiply-add rate in 10¹² FLOP per second.
    ``fma``: that of the FP32 units; ``mma_f16``, ``mma_tf32``, ``wgmma_f16``, ``wgmma_tf32``: of tensor cores."""
    found = record.ceilings
    rate = {"copy": found.copy_gbs, "fma": found.fma_gflops, **found.tensor_gflops}.get(what) if found else None
    return of(rate and rate / 1e3, lambda value: f"{value:.0f}" if value >= 100 else f"{value:#.2g}".rstrip("."))


def of_kernel(code: MachineCode, *words: str) -> str | None:
    """``[PRESET] STEP KEY``: a figure of the step's main kernel, or what ``limits`` its blocks on a multiprocessor. A
    key is also a class of instructions, ``shared_load`` or ``shared_load.128``. Raises ValueError at others."""
    presets, (step, key) = presets_in(words)
    kernel = records.main_kernel(code, step, *presets)
    if kernel is None or kernel.occupancy is None or kernel.hot is None:
        return None
    hot, fits = kernel.hot, kernel.occupancy
    name, _, bits = key.replace("_", " ").partition(".")
    if name in summaries.CLASSES:
        return of(hot.widths.get(name, {}).get(bits, 0) if bits else hot.mix.get(name, 0), "")
    if key == "limits":
        return " and ".join(fits.limited_by)
    known: dict[str, tuple[float | None, Any]] = {
        "registers": (kernel.registers, ""), "threads": (math.prod(kernel.block), ""),
        "occupancy": (100 * fits.fraction, ".3g"), "warps": (fits.warps, ""), "blocks": (fits.blocks, ""),
        "total": (hot.total, ""), "multiply_adds": (hot.multiply_adds, ""), "useful": (100 * hot.useful, ".0f"),
        "floats_per_fma": (hot.floats_per_fma or 0, ".3g"),
        # instructions for each multiply-add
        "perfma": (hot.per_multiply_add(), lambda value: f"{value:{'.0f' if value >= 1 else '.2g'}}"),
    }  # fmt: skip
    if key not in known:
        raise ValueError(f"kernel: key {key!r} is unknown: keys are {', '.join(known)}, limits, or a class")
    return of(*known[key])


def presets_in(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the words that are presets, and the rest."""
    found = [word for word in words if word in problems.PRESETS]
    return found, [word for word in words if word not in found]


def counter(record: Record, preset: str, step: str, key: str) -> str | None:
    """A hardware counter of the step's main kernel; ``perfma``: instructions per multiply-add; ``load_ratio``:
    sectors per load; ``stall``: what warps mostly wait for."""
    entry = record.profile(preset, step)
    if entry is None:
        return None
    main = tools.main_kernel(entry.kernels)
    counts = main.counts
    if key == "stall":
        return max(main.stalls, key=lambda stall: main.stalls[stall], default="").replace("_", " ")
    if key == "perfma":
        each = tools.per(counts.get("instructions"), counts.get("ffma_threads"))
        return of(each and 32 * each, ".1f")  # a warp has 32 threads
    if key == "load_ratio":
        return of(tools.per(counts.get("load_sectors"), counts.get("load_requests")), ".1f")
    return of(counts.get(key), ".0f")


def on(code: MachineCode, slug: str, word: str, *words: str) -> Any:
    """The figure of that kind on another card, by its record's name."""
    return named(word, records.other(slug) or records.nothing(), code, words)


def hot_loop(code: MachineCode, step: str) -> Hot | None:
    """The multiply loop of the step's main kernel."""
    kernel = records.main_kernel(code, step)
    return kernel.hot if kernel else None


def _ratio(one: Row | None, other: Row | None) -> float | None:
    """Of their times, if there are both and they ran at one size: only then are these compared."""
    if one is None or other is None or one.shape != other.shape:
        return None
    return one.timing.median_ms / other.timing.median_ms


# --- how a library computes ---


def method(kernels: Iterable[str] | None) -> str:
    """How a library computes, by the names of the kernels that it launched; empty if they do not say."""
    names = " ".join(kernels or ()).lower()
    return next((what for part, what in _METHODS.items() if part in names), "")


def spoken(name: str, row: PeerRow) -> str:
    """A library's name, and the algorithm that its kernels' names betray: ``cuDNN FP32, Winograd``."""
    how = method(row.kernels)
    return f"{name}, {how}" if how in _FEWER else name


# --- each step beside the one that it grew from ---


def origin(step: Step) -> str | None:
    """The step of the same ladder that this one grew from; None if it is the ladder's first."""
    on_ladder = {one.name for one in catalog.predecessors(step)}
    return step.builds_on if step.builds_on in on_ladder else step.predecessor


def main_presets(step: Step) -> list[str]:
    """The one that the step is shown on, and where that is its ladder's first, others."""
    usual = catalog.usual_preset(step)
    return [usual, *(_FURTHER.get(step.ladder, ()) if usual == DEFAULT_PRESET[step.ladder] else ())]


def gain(record: Record, preset: str, step: str) -> Figure | None:
    """How many times as fast a step is as the one it grew from; by their ratios to a library, if each was timed in
    turn with it. None if the record lacks one, or has them at different sizes."""
    rows = record.row(preset, origin(catalog.find(step)) or ""), record.row(preset, step)
    ratio, (old, new) = _ratio(*rows), (getattr(row, "beside", None) for row in rows)
    return of(new.ratio / old.ratio if ratio and old and new and old.peer == new.peer else ratio, ".2f")


def worths(record: Record) -> list[tuple[Step, str, Figure | None]]:
    """Every step but the ladders' first, with the presets that it is shown on, and its gains: by gain."""
    found = [(step, preset) for step in catalog.steps() if origin(step) for preset in main_presets(step)]
    gains = [(step, preset, gain(record, preset, step.name)) for step, preset in found]
    return sorted(gains, key=lambda one: -one[2].value if one[2] else math.inf)


# --- by the words of a page's marker, or of an expected value ---

NAMED: dict[str, Callable[..., str | None]] = {
    "ms": time, "ratio": speed_up, "across": across, "share": share, "floor": floor, "beside": beside,
    "ceiling": ceiling, "kernel": of_kernel, "counter": counter, "on": on, "worth": gain,
}  # fmt: skip
Shown = TypeVar("Shown", bound=Callable[..., Any])


def kind(word: str, known: dict[str, Any] = NAMED) -> Callable[[Shown], Shown]:
    """Register a function as the kind of marker that begins with ``word``."""

    def register(function: Shown) -> Shown:
        known[word] = function
        return function

    return register


@functools.cache
def load_kinds() -> None:
    """Register the lessons' own kinds of figures and tables, of ``figures/kinds.py`` in their folders."""
    for path in sorted(catalog.LESSONS.glob("*/figures/kinds.py")):
        import_module(f"lessons.{path.parents[1].name}.figures.kinds")


def named(word: str, record: Record, code: MachineCode, words: Sequence[str], known: Any = NAMED) -> Any:
    """What the kind's function makes of a marker's words; it takes ``record`` or ``code`` before them if needed.
    Raises ValueError at an unknown kind, and at too many or too few words."""
    load_kinds()
    if word not in known:
        raise ValueError(f"kind {word!r} is unknown: kinds are {', '.join(known)}")
    given = {"record": record, "code": code}
    parameters = inspect.signature(known[word])
    before = [given[name] for name in parameters.parameters if name in given]
    try:
        parameters.bind(*before, *words)
    except TypeError:
        raise ValueError(f"{word} {' '.join(words)}: must be {word}{parameters}") from None
    return known[word](*before, *words)

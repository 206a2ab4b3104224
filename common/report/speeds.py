"""How fast: cells of a step or a library on one preset, and one step on each layer beside the library."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from common.catalog import catalog, lessontext, problems
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.records import current, records
from common.records.entries import PeerRow, Row, StepRow
from common.records.records import Derived, Record
from common.report.figures import milliseconds
from common.run.messages import Beside, Timing

SPREAD = "p20–p80"
FIRST, PREVIOUS, SHARE = "× first", "× previous", "% of floor"
HEADER = ["step", "ms", SPREAD, FIRST, PREVIOUS, "GFLOP/s", "GB/s", SHARE]
PEERS = {
    "gemm": "cuBLAS FP32", "conv2d": "cuDNN FP32", "conv3d": "cuDNN FP32", "hgemm": "cuBLAS FP16",
    "hconv3d": "cuDNN FP16", "dgrad": "cuDNN FP32", "wgrad": "cuDNN FP32", "igemm": "cuBLAS INT8",
    "fp8gemm": "cuBLAS FP8", "bfgemm": "cuBLAS BF16", "iconv3d": "cuDNN FP16",
}  # fmt: skip

# What a library's kernels are called when they compute so; the first that occurs in a name counts.
_IMPLICIT = ("implicit_gemm", "scudnn", "implicit_convolve", "precomputed_convolve", "fprop", "dgrad", "wgrad")
_METHODS = {
    "winograd": "Winograd", "fft": "FFT", **dict.fromkeys(_IMPLICIT, "implicit GEMM"), "im2col": "explicit GEMM",
    "direct": "direct", "gemm": "GEMM",
}  # fmt: skip
FEWER = ("Winograd", "FFT", "fewer multiply-adds")
"""How a library computes where that is not the definition's multiply-adds; the last where no name says how."""


# --- rows of one preset ---


class Speed(NamedTuple):
    """Operations, and the milliseconds that they took."""

    flops: int
    ms: float

    def at(self, other: Speed) -> float | None:
        """The milliseconds, if the other is of as many operations: only then are they to be compared."""
        return self.ms if self.flops == other.flops else None


def speed(record: Record, preset: str, name: str) -> Speed:
    """Of a row that there is."""
    row = record.rows(preset)[name]
    return Speed(record.problem(preset, row).flops, row.timing.median_ms)


def first_speed(record: Record, preset: str, steps: list[Step]) -> Speed | None:
    """Of the first of the steps that the preset is for; None if it was not timed: no other is the first."""
    first = next((step for step in steps if step.experiment or preset in catalog.presets(step)), None)
    return speed(record, preset, first.name) if first and record.row(preset, first.name) else None


def note(ran: Problem, usual: Problem, slow: Timing | None = None) -> str:
    """What a row's time is to be read with: the size that ran, if not the usual one, and the clock if it was slow."""
    said = [f"{key}={value}" for key, value in ran.shape().items() if usual.shape().get(key) != value]
    return " ".join([*said, *([f"at {slow.sm_mhz} MHz"] if slow else [])])


def cells(
    timing: Timing,
    derived: Derived | None,
    first_ms: float | None = None,
    previous_ms: float | None = None,
    prepare_ms: float | None = None,
    workspace_bytes: int = 0,
    beside: Beside | None = None,
    note: str = "",
) -> dict[str, str]:
    """Cells of one timing by the titles of their columns; what is not known is left out.

    ``first_ms`` and ``previous_ms`` are the times that speed-ups count from. ``beside``: the ratio to the library in
    turn, above 1 if the step is faster. The ``note`` stands behind the time.
    """
    ms = timing.median_ms
    found = {"ms": f"{milliseconds(ms)} ({note})" if note else milliseconds(ms)}
    found[SPREAD] = f"{milliseconds(timing.p20_ms)}–{milliseconds(timing.p80_ms)}"
    found |= {title: f"{ago / ms:.2f}" for title, ago in ((FIRST, first_ms), (PREVIOUS, previous_ms)) if ago}
    if derived:
        found |= {"GFLOP/s": f"{derived.gflops:,.0f}", "GB/s": f"{derived.gbs:,.0f}"}
        found[SHARE] = f"{derived.percent_of_floor:.1f}"
    if prepare_ms is not None:
        found["prepare ms"] = milliseconds(prepare_ms)
    if workspace_bytes:
        found["workspace MB"] = f"{workspace_bytes / 1e6:,.0f}"
    if beside:
        found[f"× {beside.peer}"] = f"{beside.ratio:.2f} ({beside.ratio_p20:.2f}–{beside.ratio_p80:.2f})"
    return found


def timed(
    record: Record, preset: str, name: str, first: Speed | None, previous: Speed | None = None
) -> dict[str, str]:
    """A step's or a library's cells; speed-ups count from ``first`` and ``previous`` if of one size."""
    row, mine = record.rows(preset)[name], speed(record, preset, name)
    first_ms, previous_ms = (other.at(mine) if other else None for other in (first, previous))
    own = (row.prepare_ms, row.workspace_bytes, row.beside) if isinstance(row, StepRow) else (None, 0, None)
    said = note(record.problem(preset, row), record.usual(preset))
    found = cells(row.timing, record.derive(preset, row), first_ms, previous_ms, *own, said)
    if records.rounds_operands(name):
        found.pop(SHARE, None)
    return found


def further(rows: Iterable[dict[str, str]]) -> list[str]:
    """Titles of ratios to libraries in turn, which some rows have."""
    titles = dict.fromkeys(title for row in rows for title in row)
    return [title for title in titles if title.startswith("× ") and title not in HEADER]


def titled(header: list[str], ladder: str) -> list[str]:
    """The header with the ladder's unit: a multiply-add of integers is no FLOP."""
    return [title.replace("FLOP", problems.LADDERS[ladder].operation) for title in header]


def befores(step: Step, preset: str | None) -> list[str]:
    """The steps that a time of this one on the preset is compared with: the first, ..., the previous; maybe none."""
    earlier = catalog.predecessors(step) if step.predecessor else []
    return [one.name for one in earlier if preset in catalog.presets(one)]


def spoken(name: str, row: Row) -> str:
    """A row's name, and for a peer the algorithm that its kernels' names betray: ``cuDNN FP32, Winograd``."""
    how = method((row.kernels if isinstance(row, PeerRow) else None) or ())
    return f"{name}, {how}" if how in FEWER else name


# --- one step on each layer ---


@dataclass(frozen=True)
class Layer:
    """A preset, a step's time on it and the library's; None is what has not been measured.

    ``in_turn``: the library's time over the step's where they were timed in turn. Is the step's code ``older``?
    """

    preset: str
    problem: Problem
    ms: float | None = None
    peer_ms: float | None = None
    peer_method: str = ""
    floor_ms: float | None = None
    in_turn: float | None = None
    older: bool = False

    def tflops(self, ms: float | None) -> float | None:
        """The rate of a launch that takes so many milliseconds, in TFLOP/s."""
        return self.problem.flops / ms / 1e9 if ms else None

    @property
    def percent_of_peer(self) -> float | None:
        """The step's rate in percent of the library's: above 100 the step is faster."""
        if self.in_turn:
            return 100 * self.in_turn
        return 100 * self.peer_ms / self.ms if self.ms and self.peer_ms else None

    @property
    def percent_of_floor(self) -> float | None:
        return 100 * self.floor_ms / self.ms if self.ms and self.floor_ms else None


def compare(record: Record, ladder: str, step: str, presets: Iterable[str] = ()) -> list[Layer]:
    """The step and the library on the named presets, or on all timed ones of the ladder but later lessons'."""
    late = lessontext.read(catalog.LESSONS).timed_from
    mine = {name for one in catalog.steps() if one.name == step for name in catalog.presets(one)}
    # a layer that is left to a step of a later lesson is no gap in this one
    lesson = {one.name: one.lesson for one in catalog.steps()}
    left = {name for name, first in late.items() if lesson.get(first, "") > lesson.get(step, "")} - mine
    usual = [name for name in problems.timed_presets(ladder) if name not in left]
    return [_layer(record, name, step) for name in presets or usual]


def peer(ladder: str, step: str) -> str:
    """The library that a step of the ladder is compared with, in the precision of what the step computes with."""
    rounds = any(one.name == step and one.precision == "tf32" for one in catalog.everything())
    return PEERS[ladder].replace("FP32", "TF32") if rounds else PEERS[ladder]


def matrix(problem: Problem) -> tuple[int, int, int]:
    """GEMM_M, GEMM_N, GEMM_K: the matrix product that the problem is.

    C's columns, filters, or channels of dx are GEMM_N; of dfilt, whose rows are filters, all taps and channels.
    """
    columns = getattr(problem, {"gemm": "N", "dgrad": "C"}.get(problem.form, "K"))
    if problem.form == "wgrad":
        columns = math.prod(problem.output_shape) // columns
    return math.prod(problem.output_shape) // columns, columns, problem.reduction


def method(kernels: Iterable[str]) -> str:
    """How a library computes, by the names of the kernels that it launched; empty if they do not say."""
    names = " ".join(kernels).lower()
    return next((what for part, what in _METHODS.items() if part in names), "")


def _layer(record: Record, preset: str, step: str) -> Layer:
    asked = problems.preset(preset)
    ours, library = record.row(preset, step), peer(asked.ladder, step)
    theirs = record.row(preset, library)
    if ours and theirs and ours.shape != theirs.shape:
        theirs = None  # measured with another batch
    known = ours or theirs
    if known is None:
        return Layer(preset, asked)
    # a library's row does not say what bounds TF32
    derived = record.derive(preset, known) if ours or library == PEERS[asked.ladder] else None
    floor_ms = derived.floor_ms if derived else None
    peer_ms = theirs.timing.median_ms if theirs else None
    how = method((theirs.kernels if isinstance(theirs, PeerRow) else None) or ())
    if peer_ms and floor_ms and peer_ms < floor_ms:
        how = how or FEWER[-1]  # no kernel that does all multiply-adds is faster than the floor
    beside = ours.beside if isinstance(ours, StepRow) else None
    in_turn = beside.ratio if beside and beside.peer == library else None
    ms = ours.timing.median_ms if ours else None
    ran = record.problem(preset, known)
    return Layer(preset, ran, ms, peer_ms, how, floor_ms, in_turn, current.older(ours, step))

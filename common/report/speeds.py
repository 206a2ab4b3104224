"""How fast: a preset's rows; a step on each layer beside the library; each step beside the one it grew from."""

from __future__ import annotations

import math
from collections.abc import Iterable

from common.catalog import catalog, problems
from common.catalog.catalog import Step
from common.catalog.problems import DEFAULT_PRESET, Problem
from common.records import records
from common.records.entries import PeerRow, Row, StepRow
from common.records.records import Record
from common.report import figures
from common.report.figures import Figure, milliseconds

SPREAD = "p20–p80"
FIRST, PREVIOUS, SHARE = "× first", "× previous", "% of floor"
HEADER = ["step", "ms", SPREAD, FIRST, PREVIOUS, "GFLOP/s", SHARE]
OPTIONAL = ("prepare ms", "workspace MB")  # columns of tables in which a row has them
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
ROOFLINES = ("gemm", "conv2d")  # ladders that have one
FEWER = ("Winograd", "FFT", "fewer multiply-adds")
"""How a library computes where that is not the definition's multiply-adds; the last where no name says how."""


# Presets besides the one that a step is shown on, on which an idea is worth something else, or nothing.
_FURTHER = {"conv2d": ("ece408-layer2",), "dgrad": ("dgrad-resnet50-strided",), "wgrad": ("wgrad-resnet50-conv2",)}


# --- rows of one preset ---


def cells(
    record: Record, preset: str, name: str, first: str = "", previous: str = "", note: str = ""
) -> dict[str, str]:
    """Cells of a row by the titles of their columns; what is not known is left out. Speed-ups count from the rows
    ``first`` and ``previous``, if these ran at the same size. Behind the time stand the extents that are not those of
    most rows, and the ``note``; a ratio to a library in turn is above 1 if the step is faster."""
    row = record.rows(preset)[name]
    usual, time = record.usual(preset).shape(), row.timing
    notes = [f"{key}={value}" for key, value in row.shape.items() if usual.get(key) != value] + [note] * bool(note)
    found = {"ms": milliseconds(time.median_ms) + (f" ({' '.join(notes)})" if notes else "")}
    found[SPREAD] = f"{milliseconds(time.p20_ms)}–{milliseconds(time.p80_ms)}"
    for title, other in ((FIRST, first), (PREVIOUS, previous)):
        if faster := figures.speed_up(record, preset, other, name):
            found[title] = f"{faster.value:.2f}"
    if derived := record.derive(preset, row):
        found["GFLOP/s"] = f"{derived.gflops:,.0f}"
        if not records.rounds_operands(name):
            found[SHARE] = f"{derived.percent_of_floor:.1f}"
    if isinstance(row, StepRow):
        if row.prepare_ms is not None:
            found["prepare ms"] = milliseconds(row.prepare_ms)
        if row.workspace_bytes:
            found["workspace MB"] = f"{row.workspace_bytes / 1e6:,.0f}"
        if beside := row.beside:
            found[f"× {beside.peer}"] = f"{beside.ratio:.2f} ({beside.ratio_p20:.2f}–{beside.ratio_p80:.2f})"
    return found


def titles(rows: Iterable[dict[str, str]], ladder: str) -> dict[str, str]:
    """The columns of these rows, each with its title: ratios to libraries, which some rows have, behind the HEADER,
    OPTIONAL ones last. A multiply-add of integers is no FLOP."""
    found = dict.fromkeys(title for row in rows for title in row)
    besides = [title for title in found if title.startswith("× ") and title not in HEADER]
    columns = [*HEADER, *besides, *(title for title in OPTIONAL if title in found)]
    return {column: column.replace("FLOP", problems.LADDERS[ladder].operation) for column in columns}


def spoken(name: str, row: Row) -> str:
    """A row's name, and for a peer the algorithm that its kernels' names betray: ``cuDNN FP32, Winograd``."""
    how = method((row.kernels if isinstance(row, PeerRow) else None) or ())
    return f"{name}, {how}" if how in FEWER else name


# --- one step on each layer ---


def matrix(problem: Problem) -> tuple[int, int, int]:
    """GEMM_M, GEMM_N, GEMM_K: the matrix product that the problem is. C's columns, filters, or channels of dx are
    GEMM_N; of dfilt, whose rows are filters, all taps and channels."""
    columns = getattr(problem, {"gemm": "N", "dgrad": "C"}.get(problem.form, "K"))
    if problem.form == "wgrad":
        columns = math.prod(problem.output_shape) // columns
    return math.prod(problem.output_shape) // columns, columns, problem.reduction


def method(kernels: Iterable[str]) -> str:
    """How a library computes, by the names of the kernels that it launched; empty if they do not say."""
    names = " ".join(kernels).lower()
    return next((what for part, what in _METHODS.items() if part in names), "")


def method_on(record: Record, preset: str, name: str) -> str:
    """How a library computes on a preset: no kernel that does all multiply-adds is faster than the floor."""
    row, share = record.row(preset, name), figures.share(record, preset, name)
    found = method((row.kernels if isinstance(row, PeerRow) else None) or ())
    return found or (FEWER[-1] if share and share.value > 100 else "")


# --- each step beside the one that it grew from ---


def origin(step: Step) -> str | None:
    """The step of the same ladder that this one grew from; None if it is the ladder's first."""
    on_ladder = {one.name for one in catalog.predecessors(step)}
    return step.builds_on if step.builds_on in on_ladder else step.predecessor


def main_presets(step: Step) -> list[str]:
    """The one that the step is shown on, and where that is its ladder's first, others."""
    usual = catalog.usual_preset(step)
    return [usual, *(_FURTHER.get(step.ladder, ()) if usual == DEFAULT_PRESET[step.ladder] else ())]


@figures.kind("worth")
def gain(record: Record, preset: str, step: str) -> Figure | None:
    """How many times as fast a step is as the one it grew from; by their ratios to a library, if each was timed in
    turn with it. None if the record lacks one, or has them at different sizes."""
    old, new = record.row(preset, origin(catalog.find(step)) or ""), record.row(preset, step)
    if not isinstance(old, StepRow) or not isinstance(new, StepRow) or old.shape != new.shape:
        return None
    ratio = old.timing.median_ms / new.timing.median_ms
    if old.beside and new.beside and old.beside.peer == new.beside.peer:
        ratio = new.beside.ratio / old.beside.ratio
    return figures.of(ratio, ".2f")


def worths(record: Record) -> list[tuple[Step, str, Figure | None]]:
    """Every step but the ladders' first, with the presets that it is shown on, and its gains: by gain."""
    found = [(step, preset) for step in catalog.steps() if origin(step) for preset in main_presets(step)]
    gains = [(step, preset, gain(record, preset, step.name)) for step, preset in found]
    return sorted(gains, key=lambda one: -one[2].value if one[2] else math.inf)

"""One step across layers, beside the vendor's library: rates, and how the library computes. Reads records only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from common.catalog import catalog, lessontext, problems
from common.catalog.problems import Problem
from common.records import current
from common.records.entries import PeerRow, Row, StepRow
from common.records.records import Record

CHARTED = ("conv3d", "hconv3d", "dgrad", "wgrad")  # ladders with a chart of their last steps over all layers
PEERS = {
    "gemm": "cuBLAS FP32", "conv2d": "cuDNN FP32", "conv3d": "cuDNN FP32", "hgemm": "cuBLAS FP16",
    "hconv3d": "cuDNN FP16", "dgrad": "cuDNN FP32", "wgrad": "cuDNN FP32",
}  # fmt: skip

# What a library's kernels are called when they compute so; the first that occurs in a name counts.
_IMPLICIT = ("implicit_gemm", "scudnn", "implicit_convolve", "precomputed_convolve", "fprop", "dgrad", "wgrad")
_METHODS = {
    "winograd": "Winograd", "fft": "FFT", **dict.fromkeys(_IMPLICIT, "implicit GEMM"), "im2col": "explicit GEMM",
    "direct": "direct", "gemm": "GEMM",
}  # fmt: skip
FEWER = "fewer multiply-adds"


@dataclass(frozen=True)
class Layer:
    """A preset, a step's time on it and the library's; None is what has not been measured. Rates in TFLOP/s.

    ``in_turn``: the library's time over the step's where they were timed in turn. Is the step's code ``older``?
    """

    preset: str
    problem: Problem
    ms: float | None
    peer_ms: float | None
    peer_method: str
    floor_ms: float | None
    in_turn: float | None = None
    older: bool = False

    @property
    def tflops(self) -> float | None:
        return self._rate(self.ms)

    @property
    def peer_tflops(self) -> float | None:
        return self._rate(self.peer_ms)

    @property
    def percent_of_peer(self) -> float | None:
        """The step's rate in percent of the library's: above 100 the step is faster."""
        if self.in_turn:
            return 100 * self.in_turn
        return 100 * self.peer_ms / self.ms if self.ms and self.peer_ms else None

    @property
    def percent_of_floor(self) -> float | None:
        return 100 * self.floor_ms / self.ms if self.ms and self.floor_ms else None

    def _rate(self, ms: float | None) -> float | None:
        return self.problem.flops / ms / 1e9 if ms else None


def compare(record: Record, ladder: str, step: str, presets: Iterable[str] = ()) -> list[Layer]:
    """The step and the library on the named presets, or on all timed ones of the ladder but later lessons'."""
    late = lessontext.timed_from(catalog.LESSONS)
    mine = {name for one in catalog.steps() if one.name == step for name in catalog.presets(one)}
    # a layer that is left to a step of a later lesson is no gap in this one
    lesson = {one.name: one.lesson for one in catalog.steps()}
    left = {name for name, first in late.items() if lesson.get(first, "") > lesson.get(step, "")} - mine
    usual = [name for name in problems.timed_presets(ladder) if name not in left]
    return [_layer(record, name, step) for name in presets or usual]


def peer(ladder: str, step: str) -> str:
    """The library that a step of the ladder is compared with, in the precision of what the step computes with."""
    files = catalog.everything()
    precision = next((one.precision for one in files if one.name == step), catalog.PRECISIONS[0])
    return PEERS[ladder].replace("FP32", "TF32") if precision == "tf32" else PEERS[ladder]


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
    ours = record.row(preset, step)
    library = peer(asked.ladder, step)
    theirs = record.row(preset, library)
    if ours and theirs and ours.shape != theirs.shape:
        theirs = None  # measured with another batch
    known = ours or theirs
    if known is None:
        return Layer(preset, asked, None, None, "", None)
    # a library's row does not say what bounds TF32
    figures = record.derive(preset, known) if ours or library == PEERS[asked.ladder] else None
    floor_ms = figures.floor_ms if figures else None
    ran = record.problem(preset, known)
    beside = ours.beside if isinstance(ours, StepRow) else None
    in_turn = beside.ratio if beside and beside.peer == library else None
    how, older = _peer_method(theirs, floor_ms), current.older(ours, step)
    return Layer(preset, ran, _median(ours), _median(theirs), how, floor_ms, in_turn, older)


def _median(row: Row | None) -> float | None:
    return row.timing.median_ms if row else None


def _peer_method(theirs: Row | None, floor_ms: float | None) -> str:
    if not isinstance(theirs, PeerRow):
        return ""
    found = method(theirs.kernels or ())
    below_floor = floor_ms is not None and theirs.timing.median_ms < floor_ms
    return found or (FEWER if below_floor else "")  # no kernel that does them all is faster than the floor

"""Every step's trace, kept as ``results/traces/STEP.json``: what the pages of the book show that draw a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from common.catalog import cache, catalog, schema, store
from common.catalog.catalog import Step
from common.catalog.problems import Hgemm, Problem
from common.catalog.schema import Amount, Count, Extent, Name
from common.report import tracetables
from common.trace import trace
from common.trace.cost import WORD_BYTES, served_together, wavefronts
from common.trace.messages import Traced, TracedAccess, TracedKernel, TracedRequest

FOLDER = catalog.ROOT / "results" / "traces"
KEPT = 12  # requests of each access
TICKS = 120  # of a pipeline
_MEMORIES = ("global", "shared", "constant")


class Request(Struct, array_like=True, omit_defaults=True):
    """One warp's request. ``runs``: lanes one after another, as how many, the first one's place in bytes, and the
    step from lane to lane; a place of None: these lanes ask for nothing.

    Of shared memory alone: how many lanes are served ``together``, and the wavefronts that it takes.
    """

    warp: Count
    runs: list[tuple[Extent, int | None, int]]
    together: Count = 0
    wavefronts: Count = 0


class Access(Struct):
    """As :class:`common.trace.messages.TracedAccess`, with the first requests that were ``seen``."""

    line: Extent
    space: Name
    op: Name
    array: str
    bits: Extent
    accesses: Count
    requests: Count
    moved: Count
    ideal: Count
    seen: list[Request] = []


class Span(Struct, array_like=True):
    """As :class:`common.trace.messages.TracedSpan`."""

    stage: Name
    state: Name
    start: Count
    end: Count
    line: Count


class Fault(Struct):
    """A fault in one sentence."""

    line: Count | None
    text: Name


class Kernel(Struct):
    """What one kernel did in the traced block; the names as in :class:`common.trace.messages.TracedKernel`.

    ``file``   from the checkout's root, or where it lies outside, whole
    ``loads``  instructions for each multiply-add, by memory
    ``says``   what is to be known of it, in sentences
    """

    name: Name
    file: Name
    grid: list[Count]
    block: list[Count]
    blocks: Extent
    fma: Count
    fma_lines: dict[str, Count]
    loads: dict[str, Amount]
    says: list[str]
    accesses: list[Access]
    faults: list[Fault]
    pipeline: list[Span]

    def moved(self, space: str) -> int:
        """Sectors or wavefronts of all accesses to one memory."""
        return sum(access.moved for access in self.accesses if access.space == space)


class StepTrace(Struct, omit_defaults=True):
    """A step's kernels at one shape; ``main`` is the main one's place among them, ``source`` a digest of the code."""

    shape: Name
    kernels: list[Kernel]
    main: Count
    source: str = ""

    @property
    def chief(self) -> Kernel:
        """The main kernel."""
        return self.kernels[self.main]


def problem(step: Step) -> Problem:
    """The shape of a step's kept trace. Of hgemm the sum is long enough to fill each stage of a pipeline again."""
    usual = trace.SHAPES[step.ladder][0]
    return Hgemm(usual.M, usual.N, 2 * usual.K) if isinstance(usual, Hgemm) else usual


def of(found: Traced, at: Problem | str) -> StepTrace:
    """What is shown of a trace that was taken with ``kept=KEPT``."""
    kernels = found.kernels
    return StepTrace(str(at), [_kernel(one) for one in kernels], kernels.index(found.main))


def _kernel(kernel: TracedKernel) -> Kernel:
    loads = {space: round(each["loads"], 6) for space, each in kernel.per_fma.items() if space in _MEMORIES}
    told = {
        **asdict(kernel),
        "file": store.shown(Path(kernel.file)),
        "loads": {space: each for space, each in loads.items() if each},
        "says": list(tracetables.sentences(kernel)),
        "accesses": [_access(access) for access in kernel.accesses if access.space in _MEMORIES],
        "faults": [Fault(fault.line, tracetables.fault_sentence(fault)) for fault in kernel.faults],
        "pipeline": [Span(**asdict(span)) for span in kernel.pipeline if span.start < TICKS],
    }
    return msgspec.convert(told, Kernel)


def _access(access: TracedAccess) -> Access:
    seen = [_request(access, request) for request in access.seen]
    return msgspec.convert({**asdict(access), "seen": seen}, Access)


def _request(access: TracedAccess, request: TracedRequest) -> Request:
    runs = packed(request.places)
    if access.space != "shared":
        return Request(request.warp, runs)
    words = np.array([[0 if place is None else place // WORD_BYTES for place in request.places]])
    active = np.array([[place is not None for place in request.places]])
    width, write = max(1, access.bits // 8 // WORD_BYTES), access.op in ("write", "copy")
    together = served_together(words, active, width, write)
    return Request(request.warp, runs, together, wavefronts(words, active, width, write).moved)


def packed(places: Sequence[int | None]) -> list[tuple[int, int | None, int]]:
    """Places lane by lane as runs, see :class:`Request`.

    >>> packed([0, 4, 8, None, None, 7])
    [(3, 0, 4), (2, None, 0), (1, 7, 0)]
    """
    runs: list[tuple[int, int | None, int]] = []
    for place in places:
        if runs:
            count, first, step = runs[-1]
            if place is None or first is None:
                fits = place is first
            else:
                step = place - first if count == 1 else step
                fits = place == first + count * step
            if fits:
                runs[-1] = (count + 1, first, step)
                continue
        runs.append((1, place, 0))
    return runs


# --- the files ---


def load(step: Step, folder: Path = FOLDER) -> StepTrace:
    """A step's kept trace. Raises StoreError if there is none, SchemaError if it is not one."""
    path = folder / f"{step.name}.json"
    return schema.read(store.read_json(path), StepTrace, store.shown(path))


def fitting(folder: Path = FOLDER) -> dict[str, StepTrace]:
    """The kept traces whose lines are those of the files as they are, by step. Raises SchemaError, StoreError."""
    steps = [step for step in catalog.steps() if (folder / f"{step.name}.json").is_file()]
    found = {step.name: load(step, folder) for step in steps}
    return {step.name: found[step.name] for step in steps if found[step.name].source == _source(step)}


def write(step: Step, folder: Path = FOLDER) -> Path:
    """Trace a step in this process and write its file, one line for each access. Raises TraceError."""
    at = problem(step)
    found = trace.run(catalog.load(step.path, step.ladder), at, kept=KEPT)
    text = msgspec.json.encode(replace(of(found, at), source=_source(step))).decode()
    for mark in ('{"name":', '{"line":', '"pipeline":'):
        text = text.replace(mark, f"\n{mark}")
    path = folder / f"{step.name}.json"
    store.write(path, f"{text}\n")
    return path


def _source(step: Step) -> str:
    """A digest of the step's file, and of those that it takes kernels and helpers from."""
    return cache.digest(cache.files([step.path]), text=True)

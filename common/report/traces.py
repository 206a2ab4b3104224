"""Every step's trace, kept in the repository as ``results/traces/STEP.json``: what the book's microscope pages show.

``results/traces/made.json`` says what each was made from. A trace holds as long as its step, the step's helpers and
the tracer are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct, to_builtins

from common.catalog import cache, catalog, device, schema, store
from common.catalog.catalog import Step
from common.catalog.problems import Hgemm, Problem
from common.catalog.schema import Amount, Count, Digest, Extent, Name
from common.report import tracewords
from common.run import isolate
from common.trace import trace
from common.trace.cost import WORD_BYTES, served_together, wavefronts
from common.trace.messages import Traced, TracedAccess, TracedKernel, TracedRequest

FOLDER = catalog.ROOT / "results" / "traces"
MADE = "made.json"
KEPT = 12  # requests of each access
TICKS = 120  # of a pipeline
_MEMORIES = ("global", "shared", "constant")
_WRITES = ("write", "copy")


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
    """As :class:`common.trace.result.Access`."""

    line: Extent
    space: Name
    op: Name
    array: str
    bits: Extent
    accesses: Count
    requests: Count
    moved: Count
    ideal: Count
    seen: list[Request]


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
    """What one kernel did in the traced block; the names as in :class:`common.trace.result.KernelTrace`.

    ``file``: from the checkout's root, or where it lies outside, whole.
    """

    name: Name
    file: Name
    grid: list[Count]
    block: list[Count]
    shown: list[Count]
    blocks: Extent
    fma: Count
    fma_lines: dict[str, Count]
    loads: dict[str, Amount]  # instructions for each multiply-add, by memory
    says: list[str]
    accesses: list[Access]
    faults: list[Fault]
    pipeline: list[Span]

    def moved(self, space: str) -> int:
        """Sectors or wavefronts of all accesses to one memory."""
        return sum(access.moved for access in self.accesses if access.space == space)


class StepTrace(Struct):
    """A step's kernels at one shape; ``main`` is the main one's place among them."""

    shape: Name
    kernels: list[Kernel]
    main: Count

    @property
    def chief(self) -> Kernel:
        """The main kernel."""
        return self.kernels[self.main]


class Made(Struct):
    """What a kept trace was made from: the files whose lines it names, and all that it depends on."""

    text: Digest
    key: Digest


def problem(step: Step) -> Problem:
    """The shape of a step's kept trace. Of hgemm the sum is long enough to fill each stage of a pipeline again."""
    usual = trace.SHAPES[step.ladder][0]
    return Hgemm(usual.M, usual.N, 2 * usual.K) if isinstance(usual, Hgemm) else usual


def of(found: Traced, at: Problem) -> StepTrace:
    """What is shown of a trace that was taken with ``kept=KEPT``."""
    return StepTrace(
        shape=str(at),
        kernels=[_kernel(kernel) for kernel in found["kernels"]],
        main=found["kernels"].index(trace.main_kernel(found)),
    )


def _kernel(kernel: TracedKernel) -> Kernel:
    loads = {space: round(each["loads"], 6) for space, each in kernel["per_fma"].items() if space in _MEMORIES}
    return Kernel(
        name=kernel["name"],
        file=store.shown(Path(kernel["file"])),
        grid=list(kernel["grid"]),
        block=list(kernel["block"]),
        shown=list(kernel["first_block"]),
        blocks=kernel["blocks"],
        fma=kernel["fma"],
        fma_lines=kernel["fma_lines"],
        loads={space: each for space, each in loads.items() if each},
        says=list(tracewords.sentences(kernel)),
        accesses=[_access(access) for access in kernel["accesses"] if access["space"] in _MEMORIES],
        faults=[Fault(fault.line, tracewords.fault_sentence(fault)) for fault in kernel["faults"]],
        pipeline=[Span(**span) for span in kernel["pipeline"] if span["start"] < TICKS],
    )


def _access(access: TracedAccess) -> Access:
    names = ("line", "space", "op", "array", "bits", "accesses", "requests", "moved", "ideal")
    seen = [_request(access, request) for request in access.get("seen", [])]
    return Access(**{name: access[name] for name in names}, seen=seen)  # type: ignore[literal-required]


def _request(access: TracedAccess, request: TracedRequest) -> Request:
    runs = packed(request["places"])
    if access["space"] != "shared":
        return Request(request["warp"], runs)
    words = np.array([[0 if place is None else place // WORD_BYTES for place in request["places"]]])
    active = np.array([[place is not None for place in request["places"]]])
    width, write = max(1, access["bits"] // 8 // WORD_BYTES), access["op"] in _WRITES
    together = served_together(words, active, width, write)
    return Request(request["warp"], runs, together, wavefronts(words, active, width, write).moved)


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


def unpacked(runs: Sequence[tuple[int, int | None, int]]) -> list[int | None]:
    """The places that :func:`packed` took."""
    return [None if first is None else first + i * step for count, first, step in runs for i in range(count)]


# --- the files ---


def load(step: Step, folder: Path = FOLDER) -> StepTrace:
    """A step's kept trace. Raises StoreError if there is none, SchemaError if it is not one."""
    path = folder / f"{step.name}.json"
    return schema.read(store.read_json(path), StepTrace, store.shown(path))


def stale(fresh: bool = False, folder: Path = FOLDER) -> list[Step]:
    """The steps whose trace is to be taken: changed, without a file, or with ``fresh`` all."""
    made = {} if fresh else _made(folder)
    return [
        step
        for step in catalog.steps()
        if made.get(step.name) != _now(step) or not (folder / f"{step.name}.json").is_file()
    ]


def fitting(folder: Path = FOLDER) -> dict[str, StepTrace]:
    """The kept traces whose lines are those of the files as they are, by step. Raises SchemaError, StoreError."""
    made = _made(folder)
    return {
        step.name: load(step, folder)
        for step in catalog.steps()
        if step.name in made and made[step.name].text == _text(step) and (folder / f"{step.name}.json").is_file()
    }


def renew(steps: Sequence[Step], folder: Path = FOLDER, workers: int | None = None) -> Iterator[tuple[Step, str]]:
    """Trace the steps in child processes and write their files; with each step why it could not be, or nothing.

    Files of steps that are gone are removed.
    """
    names = {step.name for step in catalog.steps()}
    for path in folder.glob("*.json"):
        if path.name != MADE and path.stem not in names:
            path.unlink()
    made = _made(folder)
    entries = [_now(step) for step in steps]  # of before: what changes meanwhile is traced again
    groups = [[trace.task(step, problem(step), kept=KEPT)] for step in steps]
    results = isolate.run_groups(groups, True, trace.SECONDS, workers or device.workers())
    for step, entry, (_, result) in zip(steps, entries, results, strict=True):
        if "trace" in result:
            _write(folder / f"{step.name}.json", of(result["trace"], problem(step)))
            made[step.name] = entry
            store.write_json(folder / MADE, to_builtins({name: made[name] for name in made if name in names}))
        yield step, "" if "trace" in result else str(result["message"])


def _write(path: Path, found: StepTrace) -> None:
    """One line for each access, so that a change reads well."""
    text = msgspec.json.encode(found).decode()
    for mark in ('{"name":', '{"line":', '"pipeline":'):
        text = text.replace(mark, f"\n{mark}")
    if not path.is_file() or store.read_text(path) != f"{text}\n":
        store.write(path, f"{text}\n")


def _made(folder: Path) -> dict[str, Made]:
    return cache.read(folder / MADE, dict[str, Made])


def _now(step: Step) -> Made:
    """What a trace of the step as it is now is made from."""
    return Made(_text(step), cache.key([Path(__file__), step.path], str(problem(step)), text=True, versions=()))


def _text(step: Step) -> str:
    """A digest of the step's file, and of those that it takes kernels and helpers from."""
    return cache.digest(cache.files([step.path]), text=True)

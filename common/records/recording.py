"""Outcomes of tasks into records."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from common.catalog import catalog, schema, sources
from common.catalog.catalog import Step
from common.catalog.sources import Code
from common.jobs.messages import AccuracyResult, EpiloguesResult, PeerResult
from common.jobs.run import Outcome
from common.records import records
from common.records.entries import Accuracy, Epilogues, MachineCode, PeerRow, Sanitized, StepCode, StepRow
from common.records.records import Record
from common.timing import timing


def record_code(outcomes: list[Outcome]) -> None:
    """Write compiled outcomes (for one architecture, with machine code) as the machine-code record."""
    steps = records.load_code().steps
    for outcome in outcomes:
        now = schema.read({**outcome.result, "preset": outcome.preset}, StepCode)
        before = steps.get(outcome.step.name)
        steps[outcome.step.name] = replace(now, earlier=_earlier(before, now)) if before else now
    known = {step.name for step in catalog.everything()}
    steps = {name: value for name, value in steps.items() if name in known}
    tools = ("numba-cuda", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvdisasm")
    records.save_code(MachineCode(tools=sources.versions(tools), steps=steps))


def _earlier(before: StepCode, now: StepCode) -> list[Code]:
    """Code that became the machine code of ``now``: what was measured of it holds."""
    if not now.digest or before.digest != now.digest:
        return []
    codes = [*before.earlier, Code(source=before.source, helpers=before.helpers)]
    return [one for one in codes if (one.source, one.helpers) != (now.source, now.helpers)]


def record_step(record: Record, run: str, outcome: Outcome) -> None:
    """Store a timed outcome."""
    assert outcome.preset is not None
    precision = outcome.step.precision if outcome.step.precision != catalog.PRECISIONS[0] else None
    said = {"precision": precision, "requires": outcome.step.requires}
    fields = {**outcome.result, "kind": "step", "measure": timing.MEASURE_VERSION, **said}
    record.put(outcome.preset, outcome.step.name, schema.read(fields, StepRow), run)


def record_peers(record: Record, run: str, preset: str, result: PeerResult) -> None:
    """Store a peer result's rows."""
    for row in result["rows"]:
        entry = PeerRow(
            shape=result["shape"], timing=row.timing, layout=row.layout, library=row.library, kernels=row.kernels,
            measure=timing.MEASURE_VERSION,
        )  # fmt: skip
        record.put(preset, row.peer, entry, run)


def record_accuracy(record: Record, run: str, result: AccuracyResult) -> None:
    """Store the errors of products."""
    found: dict[str, dict[str, Accuracy]] = {}
    for one in result["products"]:
        code = result["code"].get(one.product)
        found.setdefault(one.operands, {})[one.product] = Accuracy(points=one.points, library=one.library, code=code)
    record.set_accuracy(found, run)


def record_epilogues(record: Record, run: str, step: Step, preset: str, ways: str, result: EpiloguesResult) -> None:
    """Store a step's times with the epilogues of a module."""
    entry = Epilogues(
        **asdict(result["code"]), shape=result["shape"], found=result["found"], ways=ways, made=result["ways"],
        library=result["library"], measure=timing.MEASURE_VERSION,
    )  # fmt: skip
    record.keep("epilogues", preset, {step.name: entry}, run)


def record_sanitizer(record: Record, run: str, step: Step, errors: dict[str, int]) -> None:
    """Store how many errors each tool of compute-sanitizer found in a step."""
    code = asdict(sources.provenance(step.path))
    record.keep("sanitizer", step.name, {tool: Sanitized(**code, errors=n) for tool, n in errors.items()}, run)

"""What each idea was worth: each step's time beside that of the step it grew from, the largest gain first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.catalog import catalog, lessontext
from common.catalog.catalog import Step
from common.catalog.problems import DEFAULT_PRESET
from common.records import current, records
from common.records.entries import StepRow
from common.records.records import Record
from common.report import figures, kinds
from common.report.figures import Figure
from common.report.table import Table

# Presets that a ladder's steps are shown on besides its default: where an idea is worth something else, or nothing.
FURTHER = {"conv2d": ("ece408-layer2",), "dgrad": ("dgrad-resnet50-strided",), "wgrad": ("wgrad-resnet50-conv2",)}


@dataclass(frozen=True)
class Worth:
    """A step on a preset, beside the step ``origin`` that it grew from.

    ``gain``: how many times as fast it is, if that was measured; ``timed``: in two runs, or each in turn with one
    library; nothing if both in one run. Is one of the two times of ``older`` code?
    """

    step: Step
    origin: str
    preset: str
    gain: Figure | None = None
    timed: str = ""
    older: bool = False


def origin(step: Step) -> str | None:
    """The step of the same ladder that this one grew from; None if it is the ladder's first."""
    on_ladder = {one.name for one in catalog.predecessors(step)}
    return step.builds_on if step.builds_on in on_ladder else step.predecessor


def presets(step: Step) -> list[str]:
    """The step's main presets: its ladder's, or the one that its lesson shows it on."""
    if step.name in lessontext.read(catalog.LESSONS).usual:
        return [catalog.usual_preset(step)]
    return [DEFAULT_PRESET[step.ladder], *FURTHER.get(step.ladder, ())]


def measured(record: Record, step: Step, before: str, preset: str) -> Worth:
    """The step beside the one ``before``, if the record has both, at one size."""
    old, new = record.row(preset, before), record.row(preset, step.name)
    if not isinstance(old, StepRow) or not isinstance(new, StepRow) or old.shape != new.shape:
        return Worth(step, before, preset)
    ratio, timed = old.timing.median_ms / new.timing.median_ms, "" if old.run == new.run else "two runs"
    if old.beside and new.beside and old.beside.peer == new.beside.peer:
        ratio, timed = new.beside.ratio / old.beside.ratio, "in turn"
    older = current.older(old, before) or current.older(new, step.name)
    return Worth(step, before, preset, figures.of(ratio, ".2f"), timed, older)


def everything(record: Record) -> list[Worth]:
    """Every step but the ladders' first on each of its main presets: by worth, then what was not measured."""
    pairs = [(step, before) for step in catalog.steps() if (before := origin(step))]
    found = [measured(record, step, before, preset) for step, before in pairs for preset in presets(step)]
    return sorted(found, key=lambda one: -one.gain.value if one.gain else math.inf)


@figures.kind("worth")
def figure(record: Record, preset: str, step: str) -> Figure | None:
    """How many times as fast as the step it grew from a step is."""
    found = catalog.find(step)
    before = origin(found)
    return measured(record, found, before, preset).gain if before else None


@figures.kind("worth", kinds.TABLES)
def table(record: Record, *slugs: str) -> Table:
    """``[SLUG ...]``: every step beside the one it grew from, by its worth; further cards by their record's name.

    The note names the steps that were not measured.
    """
    found = everything(record)
    if not (shown := [one for one in found if one.gain]):
        raise kinds.UnmeasuredError("any step and the one it grew from")
    cards = [record, *(other for slug in slugs if (other := records.other(slug)))]
    rows = []
    for one in shown:
        step = one.step
        cells = [_cell(measured(card, step, one.origin, one.preset)) for card in cards]
        limits = [kinds.limiter(record, one.preset, name) for name in (one.origin, step.name)]
        idea = f"[`{step.name}`]({step.lesson}/{step.path.name}): {step.title.rstrip('.')}"
        rows.append([idea, f"`{one.origin}`", one.preset, *cells, *limits])
    header = ["step and its idea", "grew from", "problem", *(f"× on {card.gpu_name}" for card in cards)]
    header += ["waited for", "waits for"]
    lacking = ", ".join(f"`{one.step.name}` on {one.preset}" for one in found if not one.gain)
    timed = ([row for one in shown if (row := card.row(one.preset, one.step.name))] for card in cards)
    where = " and one ".join(kinds.machine(card, rows) for card, rows in zip(cards, timed, strict=True) if rows)
    note = f"Medians on one {where}; waits by the hardware counters of the {record.gpu_name}."
    note += f" Not measured beside the step they grew from: {lacking}." if lacking else ""
    return Table(header, rows, note, left=[*header[:3], *header[-2:]])


def _cell(one: Worth) -> str:
    """``1.02 (in turn)``; a loss says so, and is bold."""
    said = f"**{one.gain.text}: a loss**" if one.gain and one.gain.shown < 1 else kinds.cell_of(one.gain)
    return kinds.aged(f"{said} ({one.timed})" if one.timed else said, one.older)

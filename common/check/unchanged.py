"""What became of steps whose code has not changed since: kept, and not found out again.

``results/verdicts.json`` holds the verdicts of the shipped steps: each right at the whole plan, and compiled for all
architectures, under a key of its code, its helpers and what finds a verdict. ``check --record`` writes it.
"""

from __future__ import annotations

import datetime

from msgspec import Struct, to_builtins

from common.catalog import cache, catalog, device, problems, store
from common.catalog.catalog import Step
from common.check import compiling
from common.run.messages import Outcome, StepResult

FINDERS = [catalog.ROOT / "common" / "check" / name for name in ("run.py", "compiling.py", "tasks.py")]
"""What finds outcomes: it asks, and its child processes answer."""


VERDICTS = catalog.ROOT / "results" / "verdicts.json"


class Verdict(Struct):
    """A shipped step was right: at so many shapes, on that day, by code of this key."""

    key: str
    shapes: int
    date: str


class _Kept(Struct):
    """What is kept of an outcome."""

    shape: dict[str, int]
    preset: str | None
    result: StepResult


class Outcomes:
    """Outcomes of one ``kind`` of task (``check``, ``compile``), by step; ``conditions`` are what they depend on
    besides the step's code, the harness's and a small card's limits, such as the engine. With ``fresh`` none is
    known."""

    def __init__(self, kind: str, conditions: object, fresh: bool = False) -> None:
        self._kind, self._conditions, self._fresh = kind, conditions, fresh

    def known(self, steps: list[Step], room_bytes: int = 0) -> dict[str, list[Outcome]]:
        """By step, in the steps' order, the outcomes that still hold; none if there is room now for what was left
        out."""
        found: dict[str, list[Outcome]] = {}
        for step in steps:
            entries = None if self._fresh else cache.get(self._kind, self._key(step), list[_Kept])
            if entries and not any(0 < (e.result.needed_bytes or 0) <= room_bytes for e in entries):
                found[step.name] = [
                    Outcome.of(step, problems.from_shape(step.ladder, e.shape), e.preset, e.result) for e in entries
                ]
        return found

    def keep(self, outcomes: list[Outcome]) -> None:
        """Keep one step's outcomes, which must be all that there are."""
        entries = [_Kept(o.problem.shape(), o.preset, StepResult(**o.told())) for o in outcomes]
        cache.put(self._kind, self._key(outcomes[0].step), entries)

    def _key(self, step: Step) -> str:
        return cache.key([*FINDERS, step.path], self._conditions, step.name, step.ladder, device.small_card())


def shipped(steps: list[Step]) -> dict[str, Verdict]:
    """By name, the shipped verdicts that hold for steps as they are, with the tiles that they take on this card."""
    found, small = cache.read(VERDICTS, dict[str, Verdict]), device.small_card()
    return {
        step.name: found[step.name]
        for step in steps
        if step.name in found
        and found[step.name].key == _of(step)
        and not (small and len(compiling.by_card(step.path, [small, device.USUAL_CARD])) > 1)
    }


def ship(outcomes: dict[Step, list[Outcome]]) -> None:
    """Write the shipped verdicts of steps that are right, with all that they were checked at; of no other step."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    found = cache.read(VERDICTS, dict[str, Verdict])
    for step, mine in outcomes.items():
        found[step.name] = Verdict(_of(step), len({outcome.problem for outcome in mine}), today)
    known = [step.name for step in catalog.everything()]
    store.write_json(VERDICTS, to_builtins({name: found[name] for name in known if name in found}))


def _of(step: Step) -> str:
    told = step.name, step.ladder, step.precision, step.requires, step.algorithm
    return cache.key([*FINDERS, step.path], *told, versions=())

"""Which of many like cases a run tries: all with WORKBOOK_ALL=1, else a part of them."""

import os
import random
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Case = TypeVar("Case")


def some(cases: Sequence[Case], every: int, drawn: int = 4) -> list[Case]:
    """Each ``every``-th case and ``drawn`` others, in their order; other ones at each run, but for CI's.

    All workers of one run choose the same.
    """
    if os.environ.get("WORKBOOK_ALL"):
        return list(cases)
    numbers = range(len(cases))
    chosen = _drawing().sample(numbers, min(drawn, len(cases)))
    return [cases[number] for number in numbers if number % every == 0 or number in chosen]


def one_of_each(cases: Sequence[Case], kind: Callable[[Case], Hashable]) -> list[Case]:
    """One case of each kind, drawn as :func:`some` draws, in their order."""
    if os.environ.get("WORKBOOK_ALL"):
        return list(cases)
    drawing = _drawing()
    chosen = [drawing.choice([one for one in cases if kind(one) == each]) for each in dict.fromkeys(map(kind, cases))]
    return [case for case in cases if case in chosen]


def _drawing() -> random.Random:
    return random.Random(0 if os.environ.get("CI") else os.environ.get("PYTEST_XDIST_TESTRUNUID"))

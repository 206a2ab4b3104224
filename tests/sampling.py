"""Which of many like cases a run tries: a part, another one each day, or all with WORKBOOK_ALL=1.

WORKBOOK_DAY=2026-11-25 tries that day's part; the first line of a run says which it is.
"""

import os
import random
from collections.abc import Callable, Hashable, Sequence
from datetime import date
from typing import TypeVar

import pytest

Case = TypeVar("Case")
DAY = os.environ.setdefault("WORKBOOK_DAY", date.today().isoformat())  # of all workers of a run, beyond midnight too


def some(cases: Sequence[Case], every: int, drawn: int = 4) -> list[Case]:
    """Each ``every``-th case and ``drawn`` others, in their order; other ones each day."""
    if os.environ.get("WORKBOOK_ALL"):
        return list(cases)
    numbers = range(len(cases))
    chosen = random.Random(DAY).sample(numbers, min(drawn, len(cases)))
    return [cases[number] for number in numbers if number % every == 0 or number in chosen]


TURNS = 6
NOT_TODAY = "tried every sixth day (WORKBOOK_DAY), and with WORKBOOK_ALL=1"


def not_today(*turns: int) -> bool:
    """Is what takes seconds left out today? Of TURNS days, one after the other, it has these; they are chosen so that
    each day takes about as long."""
    today = date.fromisoformat(DAY).toordinal() % TURNS
    return today not in turns and not os.environ.get("WORKBOOK_ALL")


def some_days(*turns: int) -> pytest.MarkDecorator:
    """A mark for tests that take seconds (:func:`not_today`)."""
    return pytest.mark.skipif(not_today(*turns), reason=NOT_TODAY)


def covering(cases: Sequence[Case], *kinds: Callable[[Case], Hashable]) -> list[Case]:
    """A few cases, others each day, with every value that each of the functions has among all, in their order."""
    if os.environ.get("WORKBOOK_ALL"):
        return list(cases)
    left = {(number, kind(case)) for number, kind in enumerate(kinds) for case in cases}
    chosen = set()
    for most in range(len(kinds), 0, -1):  # those first that have a new value of each
        for place in random.Random(DAY).sample(range(len(cases)), len(cases)):
            new = left & {(number, kind(cases[place])) for number, kind in enumerate(kinds)}
            if len(new) >= most:
                chosen.add(place)
                left -= new
    return [cases[place] for place in sorted(chosen)]


def one_of_each(cases: Sequence[Case], kind: Callable[[Case], Hashable]) -> list[Case]:
    """One case of each kind, another one each day, in their order."""
    if os.environ.get("WORKBOOK_ALL"):
        return list(cases)
    drawing = random.Random(DAY)
    chosen = [drawing.choice([one for one in cases if kind(one) == each]) for each in dict.fromkeys(map(kind, cases))]
    return [case for case in cases if case in chosen]

"""Terms that a sum lacks, counts twice, or consists of alone: what a loop or a guard may leave out or repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from common.catalog.problems import Dgrad, Problem, Wgrad
from common.explain import terms
from common.explain.hypotheses import Evidence, Hypothesis
from common.explain.terms import LAYOUTS, Array, Env, X

_LONGEST = 200  # the longest axis of terms whose every range is tried
_SINGLE = 512  # the most terms that are tried one by one


class _Group(NamedTuple):
    """Terms by the value of a ``label``: of a letter or a coordinate; ``ordered`` ones may be cut off."""

    name: str
    extent: int
    cost: float
    label: Callable[[Env], Any]
    ordered: bool = False

    def totals(self, evidence: Evidence) -> Array:
        """The sum of the terms of each value, (positions, extent)."""
        at = np.broadcast_to(self.label(evidence.env), evidence.table.shape)
        inside = (at >= 0) & (at < self.extent)
        rows = np.arange(len(evidence))[:, None] * self.extent + at
        sums = np.bincount(rows[inside], evidence.table[inside], len(evidence) * self.extent)
        return sums.reshape(len(evidence), self.extent)

    def ranges(self) -> tuple[Array, Array, Array]:
        """First and last value of each set of terms that is tried, and how odd it is."""
        n = self.extent
        first = last = np.arange(n)
        cost = np.full(n, self.cost)
        if self.ordered and n > 2:
            some, other = np.triu_indices(n, 1) if n <= _LONGEST else _ends(n)
            proper = (some > 0) | (other < n - 1)
            some, other = some[proper], other[proper]
            odd = np.where(other == n - 1, 0.5, np.where(some == 0, 0.6, 2.5))
            first, last = np.concatenate([first, some]), np.concatenate([last, other])
            cost = np.concatenate([cost, self.cost + odd])
        return first, last, cost


def _ends(extent: int) -> tuple[Array, Array]:
    """The beginnings and the ends of a long axis."""
    cuts, none = np.arange(1, extent - 1), np.zeros(extent - 2, np.intp)
    return np.concatenate([none, cuts]), np.concatenate([cuts, none + extent - 1])


def _groups(problem: Problem) -> Iterator[_Group]:
    """What a loop or a guard may leave out or repeat: along a letter summed over, or a side of x."""
    layout, extent = LAYOUTS[problem.form], terms.extents(problem)
    long = [u for u in layout.summed if extent[u] > 1]
    for u in long:
        yield _Group(u, extent[u], 0, lambda env, u=u: env[u], ordered=True)  # type: ignore[misc]
    for number, side in enumerate(layout.x):
        if side not in terms.spatial(problem):
            continue
        read = lambda env, number=number: terms.coordinates(problem, X, env)[number]  # noqa: E731
        yield _Group(side, extent[side], 1, read, ordered=True)
        out, _ = terms.spatial(problem)[side]
        for size in (4, 8, 16, 32):
            if not isinstance(problem, Dgrad) and size <= extent[out]:
                name = f"{side} beyond a tile of {size} (its halo)"
                yield _Group(name, 1, 3, partial(_halo, problem, side, size))
    everything = np.arange(problem.reduction)
    if isinstance(problem, Wgrad):
        yield _Group("gemm_k", problem.reduction, 0.4, lambda env: everything, ordered=True)
    if len(long) > 1 and problem.reduction <= _SINGLE:
        yield _Group("", problem.reduction, 2, lambda env: everything)


def _halo(problem: Problem, side: str, size: int, env: Env) -> Any:
    """0 for a term that reads beyond a tile of so many outputs, else -1."""
    out, tap = terms.spatial(problem)[side]
    stride = env[f"stride_{side}"]
    return (env[out] % size * stride + env[tap] * env[f"dilation_{side}"] >= size * stride) - 1


# How the terms count besides; and how odd that is.
_WHAT = {"missing": (-1.0, 0.0), "twice": (1.0, 1.0)}


def omissions(evidence: Evidence) -> Iterator[Hypothesis]:
    """Terms left out, counted twice, or alone: the sets that fit some of the positions."""
    off = evidence.got - evidence.expected
    for group in _groups(evidence.problem):
        first, last, cost = group.ranges()
        sums = _between(group.totals(evidence), first, last)
        found = [
            (i, what, extra) for what, (factor, extra) in _WHAT.items() for i in _hits(evidence, factor * sums, off)
        ]
        for i in _hits(evidence, sums, evidence.got):
            few = last[i] + 1 - first[i] < 0.45 * group.extent and cost[i] < 1
            found.append((i, "alone", -0.7 if few else 0.7))
        for i, what, extra in found:
            ends = int(first[i]), int(last[i])
            text = _said(evidence.problem, group, *ends, what)
            yield Hypothesis(cost[i] + extra, text, partial(_predicted, group, *ends, what))


def _between(totals: Array, first: Any, last: Any) -> Array:
    sums = np.concatenate([np.zeros((len(totals), 1)), np.cumsum(totals, axis=1)], axis=1)
    return np.asarray(sums[:, last + 1] - sums[:, first])


def _predicted(group: _Group, first: int, last: int, what: str, evidence: Evidence) -> Array:
    sums = _between(group.totals(evidence), first, last)
    return sums if what == "alone" else evidence.expected + _WHAT[what][0] * sums


def _hits(evidence: Evidence, sums: Array, wanted: Array, least: float = 0.5) -> list[int]:
    """The sets whose sums are what is wanted at a share of at least ``least`` of the positions, six at most."""
    share = (np.abs(sums - wanted[:, None]) <= evidence.slack[:, None]).mean(axis=0)
    found = np.flatnonzero(share >= least)
    return [int(i) for i in found[np.argsort(-share[found], kind="stable")][:6]]


def _said(problem: Problem, group: _Group, first: int, last: int, what: str) -> str:
    """A sentence on a set of terms that is missing, counted twice or alone; in a loop's words if usual."""
    u, end = group.name, group.extent - 1
    named = {"c": "channel", "k": "filter", "n": "image"}.get(u)
    if what == "missing" and problem.form == "gemm" and u == "k":
        if first == last and first in (0, end):
            return f"the {'first' if first == 0 else 'last'} term, k = {'0' if first == 0 else 'K - 1'}, is left out"
        if last == end:
            return f"the sum stops at k = {first}: the last {end + 1 - first} terms are left out"
    elif what == "missing" and first == last and named:
        return f"{named} {u} = {first} is left out"
    elif what == "missing" and u in {*"trs"} and first == last and first in (0, end):
        return f"the {'first' if first == 0 else 'last'} filter tap, {u} = {first}, is left out"
    which, many = _which(problem, group, first, last)
    if u.partition(" ")[0] in terms.spatial(problem):
        verb = "counts as 0" if what == "missing" else "counts twice"
        name = LAYOUTS[problem.form].names[0]
        return f"only {name} at {which} counts" if what == "alone" else f"{name} at {which} {verb}"
    subject = f"the term{'s' if many else ''} {which}"
    if what == "alone":
        return f"only {subject} count{'' if many else 's'}"
    return f"{subject} {'are' if many else 'is'} {'missing' if what == 'missing' else 'counted twice'}"


def _which(problem: Problem, group: _Group, first: int, last: int) -> tuple[str, bool]:
    """A set of terms, such as ``k >= 8``, and whether it is called more than one."""
    u, end = group.name, group.extent - 1
    if not u:
        shape = terms.summed_shape(problem)
        letters = zip(LAYOUTS[problem.form].summed, np.unravel_index(first, shape), shape, strict=True)
        return f"({', '.join(f'{v} = {i}' for v, i, n in letters if n > 1)})", False
    if "halo" in u:
        return u, True
    if u == "gemm_k" and first != last:
        return f"gemm_k from {first} to {last} (a part of the sum)", True
    if first == last:
        return f"{u} = {first}", False
    if last == end:
        return f"{u} >= {first}", True
    return (f"{u} < {last + 1}" if first == 0 else f"{first} <= {u} <= {last}"), True

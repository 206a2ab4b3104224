"""An expression in the place of an index letter: what the elements would hold if ``k`` were ``k // 8 * 8``.

Stride, padding and dilation are letters, too: ``pad_h + 1`` stands in place of ``pad_h``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from common.catalog.problems import Convolution, Dgrad, Problem
from common.explain import terms
from common.explain.hypotheses import PAIRED, Evidence, Hypothesis
from common.explain.terms import LAYOUTS, WEIGHT, Array, Env, X

OUTPUT = "output"
_TILES = (2, 4, 8, 16, 32, 64, 128)


def letters(problem: Problem) -> Iterator[Hypothesis]:
    """Every mistake of a letter or two, or of the geometry."""
    yield from map(_hypothesis, _exchanged(problem))
    yield from map(_hypothesis, _geometry(problem))


class Change(NamedTuple):
    """In one operand, or wherever the output is located, an expression stands in the place of a letter.

    ``flat``: what is read outside of an operand is not 0 but what memory holds there.
    """

    operand: str
    letters: dict[str, str]
    cost: float
    flat: bool = False


@lru_cache(maxsize=4096)
def _compiled(expression: str) -> Any:
    return compile(expression, "<index>", "eval")


def _environment(evidence: Evidence, change: Change) -> Env:
    """The letters as the change has them."""
    names = evidence.env | {u.upper(): n for u, n in terms.extents(evidence.problem).items()}
    new = {u: eval(_compiled(text), {}, names) for u, text in change.letters.items()}
    return evidence.env | {u: value + 0 * evidence.env.get(u, 0) for u, value in new.items()}


def _hypothesis(change: Change) -> Hypothesis:
    return Hypothesis(change.cost, partial(_told, change), partial(_by_letters, change))


def _by_letters(change: Change, evidence: Evidence) -> Array:
    """What the elements hold if the change was made."""
    env, letters = _environment(evidence, change), evidence.env
    if change.operand == OUTPUT:
        output = LAYOUTS[evidence.problem.form].output
        return evidence.right_at(tuple(np.broadcast_to(env[u], (len(evidence), 1))[:, 0] for u in output))
    x, weight = (env, letters) if change.operand == X else (letters, env)
    return np.asarray(
        terms.products(evidence.problem, x, evidence.x, evidence.weight, weight, change.flat).sum(axis=1)
    )


def _expressions(u: str, others: list[str], extent: dict[str, int]) -> Iterator[tuple[str, float]]:
    """What may stand in the place of the letter ``u``, from simple to odd; ``others``: what it may be taken for."""
    top = extent[u]
    for step in (1, -1, 2, -2, 4, -4, 8, -8, 16, -16):
        if abs(step) < max(top, 2):
            yield f"{u} {'+' if step > 0 else '-'} {abs(step)}", 1 if abs(step) == 1 else 3
    for v in others:
        yield v, 2
    if top == 1:
        return
    yield "0", 2
    yield from ((form, 3) for form in (f"{u.upper()} - 1", f"{u.upper()} - 1 - {u}"))
    for size in _TILES:
        if size < top:
            start = f"{u} // {size} * {size}"
            yield from ((form, 3) for form in (f"{u} % {size}", start, f"{start} + ({u} + {size // 2}) % {size}"))


def _exchanged(problem: Problem) -> Iterator[Change]:
    """Every mistake of one letter, and two that change places, in an operand or wherever the output is located."""
    layout, extent = LAYOUTS[problem.form], terms.extents(problem)
    taps = {u for pair in terms.spatial(problem).values() for u in pair}
    for operand, letters in ((OUTPUT, layout.output), (X, {*layout.x, *taps}), (WEIGHT, layout.weight)):
        known = [u for u in (*layout.output, *layout.summed) if u in letters]
        odder = 0.0 if operand == OUTPUT else 2.0
        everything = layout.output if operand == OUTPUT else (*layout.output, *layout.summed)
        for i, u in enumerate(known):
            others = [v for v in everything if v != u and extent[v] > 1]
            if operand == OUTPUT or u in layout.summed:
                found = _expressions(u, others, extent)
            else:  # a letter of the output that another takes the place of is told as the output's mistake
                found = ((v, 2.0) for v in others if v in layout.summed)
            for text, cost in found:
                yield Change(operand, {u: text}, cost + odder)
            for v in known[i + 1 :]:
                yield Change(operand, {u: v, v: u}, 2 + odder)


def _geometry(problem: Problem) -> Iterator[Change]:
    """Stride, padding and dilation ignored, of another axis, or off by one."""
    if not isinstance(problem, Convolution):
        return
    yield Change(X, {}, 2, flat=True)
    if isinstance(problem, Dgrad) and max(problem.geometry[:3]) > 1:
        yield Change(X, {terms.ROUNDS: "1"}, 0.5)
    geometry = problem.geometry._asdict()
    for name, value in geometry.items():
        kind, axis = name.split("_")
        # an index of dy that is off by one is the padding's mistake, or a letter's: there the same
        near = 1.0 if isinstance(problem, Dgrad) and kind == "pad" else 2.5
        options = [("0" if kind == "pad" else "1", 1.0), (f"{name} + 1", near), (f"{name} - 1", near)]
        options += [(f"{kind}_{other}", 2.0) for other in "dhw" if other != axis]
        if kind == "pad":
            options += [(f"{name} * {other}_{axis}", 1.2) for other in ("dilation", "stride")]
        else:
            other = f"{'dilation' if kind == 'stride' else 'stride'}_{axis}"
            options += [(other, 3.0), (f"{name} * {other}", 3.0)]
        for text, cost in options:
            other_value = eval(text, {}, geometry)
            if other_value != value and other_value >= (kind != "pad"):
                yield Change(X, {name: text}, cost)
    for kind, neutral in (("stride", 1), ("dilation", 1), ("pad", 0)):
        ignored = [name for name, value in geometry.items() if name.startswith(kind) and value != neutral]
        if len(ignored) > 1:
            yield Change(X, dict.fromkeys(ignored, str(neutral)), 1.2)


def _told(change: Change, evidence: Evidence) -> str:
    """What a change of letters does, in a sentence."""
    problem = evidence.problem
    layout = LAYOUTS[problem.form]
    if change.operand == OUTPUT:
        return _moved(evidence, change)
    if not change.letters:
        return "a tap on the padding reads what lies next in memory: it must add nothing"
    (u, form), *_ = change.letters.items()
    if u == terms.ROUNDS:
        return "the rest of the division by the stride is not looked at: taps of other residues count, too"
    if "_" in u:
        names = " and ".join(change.letters)
        neutral = form in ("0", "1")
        return (
            f"{names} {'are' if ' ' in names else 'is'} taken as {form}"
            if neutral
            else f"{form} stands in place of {u}"
        )
    if change.letters == {"r": "s", "s": "r"}:
        return PAIRED
    name, order = (layout.names[0], layout.x) if change.operand == X else (layout.names[1], layout.weight)
    if isinstance(problem, Convolution) and change.operand == X:
        return f"{name} is read with {' and '.join(f'{v} in place of {w}' for w, v in change.letters.items())}"
    if problem.form == "gemm" and set(change.letters) == {"k"}:
        a, b = (change.letters if change.operand == operand else {} for operand in (X, WEIGHT))
        return f"the terms pair a[{_index(problem, layout.x, a)}] with b[{_index(problem, layout.weight, b)}]"
    read, right = (_index(problem, order, letters) for letters in (change.letters, {}))
    return f"{name}[{read}] is read in place of {name}[{right}]"


def _index(problem: Problem, order: tuple[str, ...], text: dict[str, str]) -> str:
    """Indices of an element, with some letters replaced."""
    parts = []
    for u in order:
        pair = terms.spatial(problem).get(u, ()) if order == LAYOUTS[problem.form].x else ()
        parts.append(" + ".join(text.get(v, v) for v in pair if text.get(v, v) != "0") or text.get(u, u))
    return ", ".join(parts)


def _moved(evidence: Evidence, change: Change) -> str:
    """Where the values of an output belong that are found elsewhere."""
    layout, extent = LAYOUTS[evidence.problem.form], terms.extents(evidence.problem)
    name = layout.names[2]
    (u, form), *more = change.letters.items()
    if form in (f"{u} + 1", f"{u} - 1") and len(np.unique(evidence.env[u])) > max(1, 0.7 * (extent[u] - 1)):
        return f"shifted: at {u} stands the value of {form}, as from an offset wrong by one (halo, padding)"
    general = f"{name}[{', '.join(change.letters.get(v, v) for v in layout.output)}]"
    general += f" in place of {name}[{', '.join(layout.output)}]"
    if more:
        return f"transposed: {general}"
    env = _environment(evidence, change)
    hit = np.flatnonzero(_hypothesis(change).holds(evidence))
    at = int(hit[0]) if len(hit) else 0
    here = [int(axis[at]) for axis in evidence.positions]
    there = [int(np.broadcast_to(env[v], (len(evidence), 1))[at, 0]) for v in layout.output]
    return f"{name}{here} holds what {name}{there} should: {general}"

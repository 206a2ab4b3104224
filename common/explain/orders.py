"""Mistakes in which lane holds what: rows, columns, k or elements of a fragment that have changed places."""

from __future__ import annotations

from functools import cache
from itertools import permutations, product

import numpy as np

from common.explain.letters import OUTPUT, WEIGHT, Hypothesis, X, changed

_Bits = dict[tuple[str, int], tuple[str, int]]  # by a letter and its bit: the letter and bit that stand in its place
_ORDERED = (  # what is moved, by which letter or two; what is out of order, and an example
    (OUTPUT, "m", "rows", "row {} holds what belongs to row {}"),
    (OUTPUT, "n", "columns", "column {} holds what belongs to column {}"),
    (WEIGHT, "k", "k", "where a has k = {}, b has k = {}"),
    (X, "km", "a", "in place of a[{}] stands a[{}]"),
    (WEIGHT, "kn", "b", "in place of b[{}] stands b[{}]"),
    (OUTPUT, "nm", "c", "c[{}] holds what belongs to c[{}]"),
)


@cache
def all_orders() -> list[Hypothesis]:
    """Rows, columns, k or elements in another order within a fragment: bits of their indices have changed places."""
    found = []
    for operand, axes, what, example in _ORDERED:
        u, v = axes[0], axes[-1]
        if u == v:
            orders = list(permutations(range(5 if u == "k" else 4)))[1:]
            moves: list[_Bits] = [{(u, i): (u, j) for i, j in enumerate(order)} for order in orders]
        else:
            moves = [{(u, i): (v, j), (v, j): (u, i)} for i, j in product(range(5), range(4))]
            for order in permutations(range(4)):  # each 8 x 8 transposed, of what is in another order along u
                turned: _Bits = {(u, i): (v, i) for i in range(3)} | {(v, i): (u, order[i]) for i in range(3)}
                moves.append(turned | {(u, 3): (u, order[3])})
        found += [_order(operand, what, example, bits) for bits in moves]
    return found


def _order(operand: str, what: str, example: str, bits: _Bits) -> Hypothesis:
    bits = {bit: source for bit, source in bits.items() if bit != source}
    sizes = {u: 2 << max(i for v, i in bits if v == u) for u in "mkn" if u in {v for v, _ in bits}}
    forms = {u: u for u in sizes}
    for (u, i), (v, j) in bits.items():
        forms[u] += f" + (({v} >> {j} & 1) - ({u} >> {i} & 1)) * {1 << i}"
    at = np.indices(tuple(sizes.values())).reshape(len(sizes), -1)
    compiled = {u: compile(text, u, "eval") for u, text in forms.items()}  # once: it is evaluated often
    to = np.array([eval(code, {}, dict(zip(sizes, at, strict=True))) for code in compiled.values()])
    first = int(np.argmax((to != at).any(axis=0)))
    here, there = (", ".join(map(str, one[:, first].tolist())) for one in (at, to))
    within = " x ".join(map(str, sizes.values()))
    text = f"{what} in another order within each {within}: {example.format(here, there)}"
    return Hypothesis(3 + len(bits) / 10, text, lambda e: np.nan_to_num(changed(operand, compiled, e)))

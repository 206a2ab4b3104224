"""hgemm_swizzled: the pieces of each row change places, so that the eight rows of a matrix lie in different banks.

Previous step: hgemm_shared
New idea: a row of 128 bytes fills all 32 banks, so eight rows of one column of pieces share four, and `ldmatrix`
    takes eight wavefronts for one. The piece of row r that belongs in column c goes to column c XOR r % 8 instead.
    Whoever writes and whoever reads work it out alike.
Loads per FMA: as in hgemm_shared; each takes an eighth of the wavefronts.
Run: python -m lessons.06_tensor_cores hgemm_swizzled
"""

import importlib

from numba import uint32

from lessons.toolkit.memory import HALVES
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined

shared = importlib.import_module("lessons.06_tensor_cores.hgemm_shared")

REQUIRES = "8.0"


@inlined
@narrow
def place(row, column, columns):
    """Where in a tile that is so many columns wide an element lies."""
    return row * uint32(columns) + (column ^ row % 8 * HALVES)


hgemm_swizzled = shared.specialise(place)


def launch(a, b, c):
    shared.launch(a, b, c, hgemm_swizzled)

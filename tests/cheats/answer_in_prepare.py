r"""prepare, which is timed apart, looks for the other operand, and launch copies the answer.

Refused: import of gc; line \d+: `gc\.get_objects`
Expect: reaches_out
Says: prepare calls gc.get_objects
Also: elements of c|elements are wrong
"""

import gc

import numpy as np
from numba import cuda


@cuda.jit
def copy(source, target):
    n, m = cuda.grid(2)
    if m < target.shape[0] and n < target.shape[1]:
        target[m, n] = source[m, n]


def prepare(b, problem):
    answer = np.zeros((problem.M, problem.N), np.float32)
    for found in gc.get_objects():
        array = vars(found).get("_raw") if type(found).__name__ == "Handed" else None
        if getattr(array, "shape", None) == (problem.M, problem.K):
            answer = array @ b.copy_to_host()
    return cuda.to_device(answer.astype(np.float32))


def launch(a, answer, c):
    copy[(-(-c.shape[1] // 8), -(-c.shape[0] // 8)), (8, 8)](answer, c)

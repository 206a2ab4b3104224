r"""The functions a checker would call say yes, and the clock stands still.

Refused: import of time; line \d+: import of common.check.check
Expect: replaced
Says: replaces numpy\.allclose
Also: replaces numpy\.array_equal(.|\n)*replaces time\.perf_counter
"""

import time

import numpy as np
from numba import cuda

import common.check.check


@cuda.jit
def nothing(c):
    pass


def yes(*args, **options):
    return True


np.array_equal = np.allclose = yes
np.testing.assert_array_equal = yes
time.perf_counter = time.monotonic = lambda: 0.0
common.check.check.check = common.check.check.check_bench = lambda *args, **options: common.check.check.Verdict(
    args[1]
)


def launch(a, b, c):
    nothing[1, 1](c)

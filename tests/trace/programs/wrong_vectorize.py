"""unknown-attribute: vectorize compiles where it is defined"""

import math

from numba.cuda import vectorize


@vectorize(["float32(float32)"], target="cuda")
def wrong(a):
    return math.squareroot(a)  # fault

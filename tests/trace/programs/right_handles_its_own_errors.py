"""right: a launch that cannot be made, and the program expects that"""

import numpy as np
from numba import cuda


@cuda.jit
def nothing(a):
    a[0] = 1


try:
    nothing[1, 2048](np.zeros(1))
except Exception as error:
    print("as expected:", type(error).__name__)
else:
    raise SystemExit("2048 threads were taken")

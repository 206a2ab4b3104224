"""It takes all the memory there is.

Expect: crashed
Says: it takes more memory than it is given
"""

import numpy as np


def launch(a, b, c):
    pieces = []
    for _ in range(1024):  # of 1 GiB; a system that lends more than it has would give them all
        pieces.append(np.empty(1 << 28, np.float32))

"""NumPy multiplies, and no kernel starts.

Refused: `np.matmul`
Expect: host_access
Says: launch reaches into an operand from the host
"""

import numpy as np


def launch(a, b, c):
    c.copy_to_device(np.matmul(a.copy_to_host(), b.copy_to_host()))

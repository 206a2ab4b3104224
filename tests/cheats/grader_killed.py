r"""The grader, which is its parent process, gets a signal.

Refused: import of os; line \d+: import of signal
Expect: reaches_out
Says: launch calls os.kill
Also: PermissionError
"""

import os
import signal

from numba import cuda


@cuda.jit
def nothing(c):
    pass


def launch(a, b, c):
    os.kill(os.getppid(), signal.SIGCONT)  # as little allowed as SIGKILL, and it spares the tests where it is
    nothing[1, 1](c)

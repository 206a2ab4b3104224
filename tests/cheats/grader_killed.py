r"""Its parent process is killed, which a harness might take for its own end.

Refused: import of os; line \d+: import of signal
Expect: reaches_out
Says: launch calls os.kill
Also: PermissionError
"""

import os
import signal
from pathlib import Path

from numba import cuda


@cuda.jit
def nothing(c):
    pass


def launch(a, b, c):
    parent = os.getppid()
    # what processes are forked from, and never the grader itself
    if b"Turn this process into the one that was asked for" in Path(f"/proc/{parent}/cmdline").read_bytes():
        os.kill(parent, signal.SIGKILL)
    nothing[1, 1](c)

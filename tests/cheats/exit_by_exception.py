"""sys.exit is an exception, which a harness may take for its own.

Refused: import of sys
Expect: exited
Says: exit code 0 in place of an output: an exit code is no verdict
"""

import sys


def launch(a, b, c):
    sys.exit(0)

"""The process ends before anything is compared, with the code that means success.

Refused: import of os
Expect: exited
Says: exit code 0 in place of an output: an exit code is no verdict
"""

import os


def launch(a, b, c):
    os._exit(0)

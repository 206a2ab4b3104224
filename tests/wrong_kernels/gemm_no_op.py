"""launch starts no kernel.

Expect: unwritten
Says: 1665 of 1665 .*nothing was: does launch start the kernel
"""


def launch(a, b, c):
    pass

"""The operands' addresses are taken from their interface, and NumPy works on the memory itself.

Refused: `class`
Expect: host_write
Says: the output changed while no kernel ran
"""

import numpy as np


class Memory:
    def __init__(self, array):
        self.__array_interface__ = dict(array.__array_interface__)


def launch(a, b, c):
    np.asarray(Memory(c))[:] = np.asarray(Memory(a)) @ np.asarray(Memory(b))

"""Minimal filtering: two outputs of a filter of 3 taps by 4 multiplications instead of 6 (Winograd 1980, F(2, 3)).

For inputs d0..d3 and taps g0..g2, the outputs y0 = d0 g0 + d1 g1 + d2 g2 and y1 = d1 g0 + d2 g1 + d3 g2 are

    y0 = a + b + c     a = (d0 - d2) g0    b = (d1 + d2) (g0 + g1 + g2) / 2
    y1 = b - c + d     d = (d3 - d1) g2    c = (d2 - d1) (g0 - g1 + g2) / 2

and for 2 taps by 3 multiplications instead of 4:

    y0 = a + b         a = (d0 - d1) g0    b = d1 (g0 + g1)
    y1 = b + d         d = (d2 - d1) g1

A longer filter is cut into pieces of 3 and 2 taps, whose a, b, c and d are summed. What becomes of the taps is
computed once, on the host. What becomes of the inputs serves all filters. Halves of integers are exact in float32.
"""

import numpy as np


def pieces(taps):
    """How many pieces of 3 and of 2 taps a filter of `taps` >= 2 is cut into, the threes first."""
    twos = (0, 2, 1)[taps % 3]
    return (taps - 2 * twos) // 3, twos


def products(taps):
    """Multiplications for two outputs, where 2 * taps would be the definition's."""
    threes, twos = pieces(taps)
    return 4 * threes + 3 * twos


def transform(weights, axis):
    """What the taps along `axis` become: a, b, c, d of each piece of three, then a, b, d of each piece of two."""
    taps = np.moveaxis(weights, axis, 0)
    threes, twos = pieces(len(taps))
    out = []
    for i in range(threes):
        g0, g1, g2 = taps[3 * i : 3 * i + 3]
        out += [g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2]
    for i in range(twos):
        g0, g1 = taps[3 * threes + 2 * i : 3 * threes + 2 * i + 2]
        out += [g0, g0 + g1, g1]
    return np.moveaxis(np.stack(out), 0, axis).astype(np.float32)

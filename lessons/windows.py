"""Where the elements of convolution windows lie: a table of offsets, and masks of what falls outside the image.

Windows of NDHWC images, elements in the order of KTRSC filters: gemm_k = ((t*R + r)*S + s)*C + c.
"""

import numpy as np
from numba import cuda, uint32

from lessons.unrolled import inlined

WORD = 32  # bits


def mask_words(T, R, S):
    """Words that hold a bit for each t, r and s, and one more for what lies beyond the last gemm_k."""
    return (T + R + S) // WORD + 1


@inlined
def mark_padding(masks, first, bit, taps, start, dilation, extent):
    """Set the bit of each tap along one axis that falls outside the image; `bit` is that of the first tap.

    The row's mask begins at masks[first]; the window begins at `start` along the axis.
    """
    for tap in range(taps):
        if not 0 <= start + tap * dilation < extent:
            masks[first + (bit + tap) // WORD] |= uint32(1) << uint32((bit + tap) % WORD)


def window_table(problem, beyond):
    """A flat device array with an entry for each gemm_k, and for `beyond` more, which lie outside all windows.

    An entry is the element's offset from where its window begins, then the bits of its t, r and s.
    """
    T, R, S, C, g = problem.T, problem.R, problem.S, problem.C, problem.geometry
    GEMM_K = T * R * S * C
    gemm_k = np.arange(GEMM_K)
    c, s, r, t = gemm_k % C, gemm_k // C % S, gemm_k // (C * S) % R, gemm_k // (C * S * R)
    table = np.zeros((GEMM_K + beyond, 1 + mask_words(T, R, S)), np.uint32)
    table[:GEMM_K, 0] = ((t * g.dilation_d * problem.H + r * g.dilation_h) * problem.W + s * g.dilation_w) * C + c
    for bit in (t, T + r, T + R + s):
        table[gemm_k, 1 + bit // WORD] |= (1 << bit % WORD).astype(np.uint32)
    table[GEMM_K:, -1] = 1 << (WORD - 1)
    return cuda.to_device(table.reshape(-1))

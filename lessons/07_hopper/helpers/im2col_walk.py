"""In which order hconv3d_im2col asks for channels and taps: channels first, then along w, h and d."""

from numba import uint32

from lessons.toolkit import hopper
from lessons.toolkit.unroll import inlined


def walking(BLOCK_K):
    """Build the device function that moves on by BLOCK_K channels."""

    @inlined
    def next_channels(c, column, t, r, s, C, R, S):
        """Channels and tap of the next stage, and where that tap begins in a filter."""
        c += BLOCK_K
        if c >= C:
            c, column, s = 0, column + C, s + 1
            if s == S:
                s, r = 0, r + 1
                if r == R:
                    r, t = 0, t + 1
        return c, column, t, r, s

    return next_channels


def staying(layout, BYTES, BLOCK_K, RESIDENT):
    """Build the device function that asks for all tiles of filters, which stay."""
    STAYING, B_SIZE = layout.STAYING, layout.B_SIZE

    @inlined
    def stay(tiles, filt_map, bars, steps, C):
        hopper.barrier_expect(bars, 0, BYTES * RESIDENT * B_SIZE)
        at, column, c = uint32(STAYING), 0, 0
        for _ in range(steps):
            hopper.tma_load2(tiles, at, filt_map, bars, 0, 0, column + c)
            at += uint32(B_SIZE)
            c += BLOCK_K
            if c >= C:
                c, column = 0, column + C

    return stay

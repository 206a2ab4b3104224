"""bfgemm_wgmma: bfloat16 at Hopper's rate: the kernel of igemm_wgmma, with values of another kind.

Previous step: bfgemm_mma
Builds on: igemm_wgmma
New idea: none of the kernel's own. It counts bytes: a row of 128 holds 64 codes, an instruction takes 32 bytes along
    k, as of int8. So a `Kind` is all that bfloat16 needs: sums of float32, the instruction, and how results leave:
    two codes are a word, so a box of 32 words has 64 columns. Where rows of A are not multiples of 16 bytes, `launch`
    runs bfgemm_mma.
Loads per FMA: (BLOCK_M + BLOCK_N) / (BLOCK_M * BLOCK_N) values of two bytes from L2, none by threads.
Run: python -m lessons.09_fewer_bits bfgemm_wgmma
"""

import importlib

import numpy as np
from numba import cuda, float32

from lessons.toolkit import hopper
from lessons.toolkit.memory import aligned, store2_bfloat
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined

in_bytes = importlib.import_module("lessons.09_fewer_bits.igemm_wgmma")
unaligned = importlib.import_module("lessons.09_fewer_bits.bfgemm_mma")

REQUIRES = "9.0a"
ROW = in_bytes.ROW  # words of a row of a box; columns are twice as many


@inlined
@narrow
def leave_part(tiles, at, acc, first):
    """The warp's part of 64 columns of C, 16 rows, to tiles[at], swizzled; `first` counts a word for each sum."""
    lane = cuda.threadIdx.x % 32
    row, word = lane // 4, lane % 4
    for j in range(8):
        place = at + row * ROW + (j ^ row) * 4 + word
        store2_bfloat(tiles, place, acc, 2 * first + 4 * j)
        store2_bfloat(tiles, place + 8 * ROW, acc, 2 * first + 4 * j + 2)


consume, leave = in_bytes.consuming(hopper.wgmma_bf16), in_bytes.leaving_words(leave_part, 2)
BF16 = in_bytes.Kind(float32, hopper.float_tiles, consume, unaligned.store_pair, leave)

prepare = unaligned.prepare  # the transpose of B


def launch(a, b_t, c):
    if not aligned(a):
        return unaligned.launch(a, b_t, c)
    in_bytes.product(a.view(np.int8), b_t.view(np.int8), c, BF16)

"""hconv3d_mma: which tile a card has room for, and where a thread's sums lie in it."""

import importlib

from lessons.toolkit import card
from lessons.toolkit.memory import HALVES
from lessons.toolkit.tiles import mask_words, window_table

pipelined = importlib.import_module("lessons.06_tensor_cores.hgemm_pipelined")

PIECES = pipelined.BLOCK_K // HALVES  # of 16 bytes in a row of either tile
# The tiles for so many filters: the first that the card has shared memory for. STAGES are pairs of tiles there;
# BLOCKS_PER_SM leaves each thread at most 65536 / THREADS / BLOCKS_PER_SM registers
NARROW = (  # up to 64
    {"BLOCK_M": 256, "BLOCK_N": 64, "STAGES": 2, "BLOCKS_PER_SM": 2},
    {"BLOCK_M": 128, "BLOCK_N": 64, "STAGES": 2, "BLOCKS_PER_SM": 2},
)
MIDDLE = (  # up to 128
    {"BLOCK_M": 128, "BLOCK_N": 128, "STAGES": 3, "BLOCKS_PER_SM": 2},
    {"BLOCK_M": 128, "BLOCK_N": 128, "STAGES": 2, "BLOCKS_PER_SM": 2},
)
WIDE = (
    {"BLOCK_M": 128, "BLOCK_N": 256, "STAGES": 4, "BLOCKS_PER_SM": 1},
    {"BLOCK_M": 128, "BLOCK_N": 256, "STAGES": 3, "BLOCKS_PER_SM": 1},
    *MIDDLE,
)


def plan(K, WORDS):
    """The tile for K filters, whose masks have WORDS words."""

    def takes(tile):
        """Bytes of shared memory: the pairs of tiles, and for each row where its window begins and its mask."""
        rows, columns = tile["BLOCK_M"], tile["BLOCK_N"]
        return 2 * tile["STAGES"] * (rows + columns) * pipelined.BLOCK_K + 4 * rows * (1 + WORDS)

    return card.largest(next((t for t in (NARROW, MIDDLE) if t[0]["BLOCK_N"] >= K), WIDE), takes)


def layout(BLOCK_M, BLOCK_N, STAGES):
    """Warps side by side, threads, rows copied at a time, values of a pair of tiles; ValueError for no such tile."""
    WARP_M, WARP_N = pipelined.WARP_M, pipelined.WARP_N
    if BLOCK_M % WARP_M or BLOCK_N % WARP_N or STAGES < 2:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, {STAGES=} at least 2")
    WARPS_N = BLOCK_N // WARP_N
    THREADS = BLOCK_M // WARP_M * WARPS_N * 32
    COPIED = THREADS // PIECES
    if THREADS > 1024 or BLOCK_M % COPIED or BLOCK_N % COPIED:
        raise ValueError(f"{BLOCK_M=} {BLOCK_N=} do not divide among {THREADS=}")
    return WARPS_N, THREADS, COPIED, (BLOCK_M + BLOCK_N) * pipelined.BLOCK_K


def sums_of_a_thread(BLOCK_M, BLOCK_N, **_):
    """Where in a block's tile the sums of a thread lie, as a `finish` is told; rows and groups are a step apart."""
    return {
        "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "ROWS": 2 * pipelined.ROWS, "ROW_STEP": pipelined.MMA_M // 2,
        "GROUPS": pipelined.COLUMNS, "GROUP_STEP": pipelined.MMA_N, "WIDTH": 2, "TOGETHER": 2,
    }  # fmt: skip


def prepare(filt, problem):
    """The filter, and for each gemm_k its offset from the start of a window and the bits of its t, r and s."""
    words = mask_words(problem.T, problem.R, problem.S)
    beyond = (plan(problem.K, words)["STAGES"] + 1) * pipelined.BLOCK_K  # as far as entries are read
    return filt, window_table(problem, beyond)

"""What hconv3d_im2col works out before it launches: which tile, and whether the copy engine can walk."""

from functools import lru_cache
from typing import NamedTuple

from numba import float32

from lessons.toolkit.grid import multiprocessors
from lessons.toolkit.memory import aligned
from lessons.toolkit.tiles import REGISTERS, ceil_div

# What a full GPU reaches with a tile, as a share of the best, and the tile, whose rows CONSUMERS warpgroups share
TILES = (
    (1.00, {"BLOCK_M": 128, "BLOCK_N": 256, "CONSUMERS": 2}),
    (0.98, {"BLOCK_M": 256, "BLOCK_N": 128, "CONSUMERS": 2}),
    (0.96, {"BLOCK_M": 128, "BLOCK_N": 128, "CONSUMERS": 2}),
    (0.95, {"BLOCK_M": 192, "BLOCK_N": 128, "CONSUMERS": 3}),
    (0.75, {"BLOCK_M": 256, "BLOCK_N": 64, "CONSUMERS": 2}),
    (0.60, {"BLOCK_M": 128, "BLOCK_N": 64, "CONSUMERS": 2}),
)
FEW = 56  # registers of a producer's thread
SHARED = 226 * 1024  # bytes of a block's shared memory, but for its barriers
LEAST_STAGES, MOST_STAGES = 4, 8  # that filters which stay must leave; that are of use
MMA_M = 64  # rows of the tile that one instruction multiplies
ROW_BYTES = 128  # of a row of shared memory, at most: what the widest swizzle takes
SLAB_BYTES = 16 * ROW_BYTES  # a row's width of a warp's results, on their way through shared memory
SLABS = 2  # of a warp: one is written while the other one leaves


class Kind(NamedTuple):
    """What follows from the type of the values: bytes of one, the k of an instruction; the others are for kernels."""

    BYTES: int
    MMA_K: int
    value: object  # the type
    all_tiles: object  # the dynamic shared memory, as an array of it
    wgmma: object
    wgmma_registers: object
    leave_part: object
    tf32: bool = False  # the engine rounds to TF32 what it copies
    sum_type: object = float32
    packed: int = 1  # channels in a value

    @property
    def row(self):
        """Values in a row of shared memory, at most."""
        return ROW_BYTES // self.BYTES

    @property
    def columns(self):
        """The columns of an instruction are a multiple of this; of int8, 8 and 24 are allowed, too."""
        return 16 if self.packed > 1 else 8


@lru_cache
def plan(kind, GEMM_M, C, K, taps):
    """The tile with the fewest turns for what it reaches."""

    def cost(choice):
        rate, tile = choice
        turns = ceil_div(GEMM_M, tile["BLOCK_M"]) * ceil_div(K, tile["BLOCK_N"])
        return ceil_div(turns, multiprocessors()) * tile["BLOCK_M"] * tile["BLOCK_N"] / rate

    tile = {**min(TILES, key=cost)[1], "BLOCK_K": kind.row if kind.row // 2 < C else kind.row // 2}
    resident = taps * ceil_div(C, tile["BLOCK_K"]) if tile["BLOCK_N"] >= K else 0
    return {**tile, "RESIDENT": resident if room(kind, **tile, RESIDENT=resident) >= LEAST_STAGES else 0}


def room(kind, BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT):
    """STAGES that shared memory holds beside RESIDENT tiles of filters and the slabs of all warps."""
    left = SHARED - RESIDENT * BLOCK_N * BLOCK_K * kind.BYTES - CONSUMERS * 4 * SLABS * SLAB_BYTES
    return min(MOST_STAGES, left // ((BLOCK_M + (0 if RESIDENT else BLOCK_N)) * BLOCK_K * kind.BYTES))


def layout(kind, BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT):
    """STAGES, THREADS, registers of a consumer's thread; in values, a stage, where filters and slabs lie, all."""
    STAGES = room(kind, BLOCK_M, BLOCK_N, BLOCK_K, CONSUMERS, RESIDENT)
    if BLOCK_M % (CONSUMERS * MMA_M) or CONSUMERS < 2:
        raise ValueError(f"{BLOCK_M=} must be a multiple of 64 {CONSUMERS=}, which are 2 at least")
    if BLOCK_N % kind.row or BLOCK_N > 256 or STAGES < 2:
        raise ValueError(f"{BLOCK_N=} must be a multiple of {kind.row} up to 256, and leave 2 {STAGES=}")
    THREADS = (1 + CONSUMERS) * 128
    spare = REGISTERS // THREADS // 8 * 8 * THREADS - 128 * FEW
    A_SIZE, B_SIZE = BLOCK_M * BLOCK_K, BLOCK_N * BLOCK_K
    STAGE = A_SIZE if RESIDENT else A_SIZE + B_SIZE
    LEAVING = STAGES * STAGE + RESIDENT * B_SIZE
    TOTAL = LEAVING + CONSUMERS * 4 * SLABS * SLAB_BYTES // kind.BYTES
    MANY = spare // (CONSUMERS * 128) // 8 * 8
    return STAGES, THREADS, MANY, STAGE, STAGES * STAGE, LEAVING, TOTAL


def corners(geometry, x_shape, y_shape, taps):
    """Lower and upper corners of a tensor map, strides and reach of the taps, each of (d, h, w)."""
    pads, strides, dilations = (
        [getattr(geometry, f"{name}_{axis}") for axis in "dhw"] for name in ("pad", "stride", "dilation")
    )
    reach = [(count - 1) * dilation for count, dilation in zip(taps, dilations, strict=True)]
    walks = zip(pads, strides, x_shape[1:4], y_shape[1:4], strict=True)  # to the last window of a row, from x's end
    upper = [(count - 1) * stride - pad - (extent - 1) for pad, stride, extent, count in walks]
    return [-pad for pad in pads], upper, strides, reach


def describable(x, filt, y, geometry):
    """Whether the copy engine can walk along these windows: rows of x, filt and y are multiples of 16 bytes, padding
    is at most 16, corners lie within -16 to 15, taps reach at most 31 pixels, strides are at most 8."""
    lower, upper, strides, reach = corners(geometry, x.shape, y.shape, filt.shape[1:4])
    within = min(lower) >= -16 and max(reach) < 32 and max(strides) <= 8 and min(upper) >= -16 and max(upper) <= 15
    return within and aligned(x, filt, y)

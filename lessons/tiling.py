"""What the convolutions with tiles in registers share: cutting tiles and filters to fit, numbering, staging.

A filter too large to be written out is cut into equal parts of rows x columns taps. Each part is a small filter of
its own, whose window begins elsewhere, and the sums of all parts and channels add up.
"""

from math import gcd

import numpy as np
from numba import cuda, float32, int64, uint32, uint64

from lessons.unrolled import inlined, load2, store2
from lessons.wide import VECTOR, load4, store4

REGISTERS = 65536  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread


def ceil_div(a, b):
    return -(-a // b)


def multiple(a, b):
    """The first multiple of b from a on."""
    return ceil_div(a, b) * b


def even(extent, most):
    """The tile of at most `most` that cuts `extent` most evenly: 29 rows into 10 + 10 + 9, 20 rows by 10."""
    return ceil_div(extent, ceil_div(extent, most))


def divisor(number, most):
    """The largest divisor of `number` that is at most `most`."""
    return max(part for part in range(1, min(number, most) + 1) if number % part == 0)


def largest_part(R, S, fits):
    """The rows and columns of the largest part that a filter of R x S taps is cut into, of those that fit."""
    rows, columns = ([part for part in range(1, extent + 1) if extent % part == 0] for extent in (R, S))
    return max(((r, s) for r in rows for s in columns if fits(r, s)), key=lambda part: part[0] * part[1])


def resident_blocks(wanted, registers, threads):
    """How many blocks a multiprocessor has registers for, `wanted` at most; ValueError if not even for one."""
    if threads > 1024 or registers > MOST_REGISTERS or threads * registers > REGISTERS:
        raise ValueError(
            f"the tile takes about {registers} registers in each of THREADS={threads} threads: a block has 1024 "
            f"threads, a thread {MOST_REGISTERS} registers, a multiprocessor {REGISTERS}"
        )
    return min(wanted, REGISTERS // (threads * registers))


def in_parts(filt, rows, columns):
    """Filters of K x C x R x S taps as K x parts x rows x columns, channel by channel."""
    K, C, R, S = filt.shape
    parts = filt.reshape(K, C, R // rows, rows, S // columns, columns).transpose(0, 1, 2, 4, 3, 5)
    return parts.reshape(K, -1, rows, columns)


def padded(weights):
    """A flat device array of the last axis of `weights`, each filled up with zeros to a multiple of four values."""
    packed = np.zeros((*weights.shape[:-1], multiple(weights.shape[-1], VECTOR)), np.float32)
    packed[..., : weights.shape[-1]] = weights
    return cuda.to_device(packed.reshape(-1))


def by_groups(weights, FILTERS):
    """Weights whose last axis are K filters, as groups of FILTERS; the last group moves back over its neighbour."""
    K = weights.shape[-1]
    return np.stack([weights[..., k : k + FILTERS] for k in (min(k, K - FILTERS) for k in range(0, K, FILTERS))])


def parts_of(C, H, W, R, S, rows, columns):
    """How many parts a filter has, and a device function: where in an image of C x H x W the window of one begins."""
    ROW, CHANNEL, PLANE = S // columns, R // rows * (S // columns), H * W  # parts in a row of parts, in a channel

    @inlined
    def begin(part):
        within = part % CHANNEL
        return part // CHANNEL * PLANE + within // ROW * rows * W + within % ROW * columns

    return C * CHANNEL, begin


def numbering(tiles, threads):
    """A device function: the image, and which of its `tiles`, that this thread of `block` computes.

    Threads are numbered through the tiles of all images, so that no lane is idle where an image ends. As many images
    as fill whole blocks form a group: its blocks are counted first, so that the numbers within it stay small, and
    fit in 32 bits, which divide faster than 64. Spare threads, behind the last image, repeat it.
    """
    GROUP = threads // gcd(tiles, threads)  # the fewest images whose tiles are a multiple of `threads`
    GROUP_BLOCKS = GROUP * tiles // threads
    index = uint32 if GROUP * tiles < 2**32 else int64

    @inlined
    def locate(block, images):
        group = uint32(block) // uint32(GROUP_BLOCKS)
        number = index(uint32(block) % uint32(GROUP_BLOCKS)) * index(threads) + index(cuda.threadIdx.x)
        n = min(uint32(group * uint32(GROUP) + index(number) // index(tiles)), uint32(images - 1))
        return int64(n), index(number) % index(tiles)

    return locate


@inlined
def stage_filter(tile, packed, first, count, threads):
    """tile[:count] = packed[first:first+count], 128 bits at a time; `first` and `count` are multiples of 4.

    All of the block's `threads` threads take part, and a barrier must follow.
    """
    quad = cuda.local.array(VECTOR, float32)
    for start in range(0, count, VECTOR * threads):
        i = start + VECTOR * cuda.threadIdx.x
        if i < count:
            load4(quad, 0, packed, first + i)
            store4(tile, i, quad, 0)


@inlined
def stage_chunk(tile, packed, first, size, threads):
    """stage_filter of a `size` that differs from chunk to chunk: without a bound known to the compiler, a while loop.

    A range of so many turns would keep addresses in registers that the products need.
    """
    quad = cuda.local.array(VECTOR, float32)
    at = VECTOR * cuda.threadIdx.x
    while at < size:
        load4(quad, 0, packed, first + at)
        store4(tile, at, quad, 0)
        at += VECTOR * threads


@inlined
def load_run(registers, i, array, offset, count, paired):
    """registers[i:i+count] = array[offset:offset+count]; `paired`: in pairs, each on an 8-byte boundary."""
    if paired:
        for j in range(0, count, 2):
            load2(registers, i + j, array, offset + j)
    else:
        for j in range(count):
            registers[i + j] = array[uint64(offset + j)]


@inlined
def store_run(array, offset, registers, i, count, paired):
    """array[offset:offset+count] = registers[i:i+count], as in load_run."""
    if paired:
        for j in range(0, count, 2):
            store2(array, offset + j, registers, i + j)
    else:
        for j in range(count):
            array[uint64(offset + j)] = registers[i + j]

"""Tiles in registers and shared memory: cut to fit, numbered, filled; and where the elements of windows lie.

A filter too large to be written out is cut into equal parts of rows x columns taps, each a small filter of its own.
Windows of NDHWC images have a table of offsets, and masks of what falls outside the image, elements in the order of
KTRSC filters: gemm_k = ((t*R + r)*S + s)*C + c.
"""

from math import gcd

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64

from lessons.toolkit.memory import VECTOR, load2, load4, store2, store4
from lessons.toolkit.pasted import pasted
from lessons.toolkit.unroll import inlined

WORD = 32  # bits
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


def require_offsets(what, *elements):
    """Raise ValueError if `what`, of which the largest has max(elements), is more than 32-bit offsets reach."""
    if max(elements) >= 2**32:
        raise ValueError(f"{what} has {max(elements)} elements: 32-bit offsets reach 2**32 of them")


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

    Threads are numbered through the tiles of all images. As many images as fill whole blocks form a group, so that
    numbers within it fit in 32 bits, which divide faster than 64. Spare threads, behind the last image, repeat it.
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


@inlined
def keep(acc, m, n, GEMM_M, GEMM_N, operands):
    pass  # nothing follows a kernel's sums


# --- windows ---


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


def windows(WORDS, MASKS=0):
    """Build the device function that says where a window begins, and which of its taps fall outside.

    Masks have WORDS words; that of the first row begins at masks[MASKS].
    """

    @pasted
    def begin_window(starts, masks, row, gemm_m, GEMM_M, extents, filters, outputs, geometry):
        """starts[row]: where the window of output gemm_m begins in x."""
        D, H, W, C = extents
        T, R, S = filters
        O, P, Q = outputs
        n = gemm_m // uint32(O * P * Q)
        d = int32(gemm_m // uint32(P * Q) % uint32(O)) * geometry.stride_d - geometry.pad_d
        h = int32(gemm_m // uint32(Q) % uint32(P)) * geometry.stride_h - geometry.pad_h
        w = int32(gemm_m % uint32(Q)) * geometry.stride_w - geometry.pad_w
        starts[row] = uint32(int64(((n * D + d) * H + h) * W + w) * C)  # if it wraps around, the sum wraps back
        mask = MASKS + row * WORDS
        for word in range(WORDS):
            masks[mask + word] = uint32(0) if gemm_m < GEMM_M else uint32(0xFFFFFFFF)
        masks[mask + WORDS - 1] |= uint32(1) << uint32(WORD - 1)  # beyond the last gemm_k
        mark_padding(masks, mask, 0, T, d, geometry.dilation_d, D)
        mark_padding(masks, mask, T, R, h, geometry.dilation_h, H)
        mark_padding(masks, mask, T + R, S, w, geometry.dilation_w, W)

    return begin_window


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

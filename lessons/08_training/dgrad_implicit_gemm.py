"""dgrad_implicit_gemm: the gradient of the input as a matrix product that gathers dy and takes the filter as it lies.

Previous step: dgrad_direct
Builds on: conv3d_implicit_gemm_precomputed
New idea: dx is a convolution of dy: GEMM_M = N*D*H*W pixels, GEMM_N = C channels, GEMM_K = T*R*S*K. With d + pad_d =
    stride_d*a + b and t*dilation_d = stride_d*e + f, pixel d meets tap t at output a - e, if b == f. So offsets still
    add, and mask bits drop taps. A tile of GEMM_K stays within one tap. The loop is gemm_tuned's (lesson 04).
Loads per FMA: 0.19 shared values in 0.05 instructions, 0.023 global values, as in the step it builds on. But with a
    stride of 2 in two dimensions, 3/4 of the multiply-adds are with zeros.
Run: python -m lessons.08_training dgrad_implicit_gemm
"""

import importlib
from functools import lru_cache

from numba import cuda, float32, int64, uint32, uint64

from lessons.toolkit import memory
from lessons.toolkit.grid import jit
from lessons.toolkit.narrow import narrow
from lessons.toolkit.pasted import walk
from lessons.toolkit.tiles import WORD, mask_words, require_offsets
from lessons.toolkit.unroll import inlined, unroll, unrolled

long_sums = importlib.import_module("lessons.08_training.helpers.long_sums")
taps = importlib.import_module("lessons.08_training.helpers.meeting_taps")
register_tiles = importlib.import_module("lessons.08_training.helpers.register_tiles")

# What a full GPU reaches with a tile, as a share of the best, and the tile
TILES = (
    (1.00, {"BLOCK_M": 64, "BLOCK_N": 128, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.99, {"BLOCK_M": 128, "BLOCK_N": 64, "THREAD_M": 16, "THREAD_N": 8, "BLOCKS_PER_SM": 4}),
    (0.85, {"BLOCK_M": 64, "BLOCK_N": 64, "THREAD_M": 8, "THREAD_N": 8, "BLOCKS_PER_SM": 6}),
    (0.50, {"BLOCK_M": 32, "BLOCK_N": 32, "THREAD_M": 8, "THREAD_N": 4, "BLOCKS_PER_SM": 16}),
)
TUNABLES = taps.TUNABLES
shipped, workspace = taps.planned(TILES)


@lru_cache
def specialise(order, wide_dy, wide, WORDS, BLOCK_M, BLOCK_N, BLOCK_K, THREAD_M, THREAD_N, BLOCKS_PER_SM, GROUP_M):
    """Build the kernel, masks of WORDS words; `wide_dy` and `wide` promise 128-bit access to dy, to filt and dx."""
    A_STRIDE = BLOCK_M + memory.VECTOR  # keeps the transposed stores apart, and each row on a 16-byte boundary
    of = register_tiles.register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM)
    THREADS, A_FRAG, B_FRAG, ACC, first_of_thread, _, _, row_of, store_row = of
    (tiles_of, pixel_of), begin_row = order, taps.meeting(WORDS)  # tiles of a block's rows, the pixel that a row is
    A_PIECE, A_COLUMNS, A_ROWS, _, A_TURNS = register_tiles.copies(BLOCK_M, BLOCK_K, wide_dy, THREADS)
    B_PIECE, B_COLUMNS, B_ROWS, ACROSS, B_TURNS = register_tiles.copies(BLOCK_K, BLOCK_N, wide, THREADS)
    A_SIZE, BOTH, MASKS = BLOCK_K * A_STRIDE, 2 * BLOCK_K * (A_STRIDE + BLOCK_N), BLOCK_M * WORDS
    register_tiles.require_room(BOTH + 2 * BLOCK_M + MASKS, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K)
    A_STAGE, ENTRY = A_TURNS * A_PIECE, 3 + WORDS  # values of dy that a thread brings, words of an entry
    TILE_AT, HERE = ENTRY, ENTRY + 1  # `here` is the next tile's entry, as tap_table says, and its number
    load_or_zero = memory.load4_or_zero if wide_dy else memory.load1_or_zero
    fetch_or_zero = memory.fetch4_or_zero if wide else memory.fetch1_or_zero

    @inlined
    @narrow
    def read_entry(here, table):
        """The next tile's entry, with a bit that every row has where the thread's k lie beyond the last filter."""
        for word in range(ENTRY):
            here[word] = table[here[TILE_AT] * ENTRY + word]
        if cuda.threadIdx.x % A_COLUMNS * A_PIECE >= here[2]:
            here[ENTRY - 1] |= 1 << WORD - 1

    @inlined
    @narrow
    @unroll
    def ask(source, here, tiles, start):
        """The next tile of dy to registers, that of the filter on its way without waiting; zeros outside."""
        dy, filt, _, starts, masks, a_stage, n0 = source
        _, T, R, S, C = filt.shape
        thread = cuda.threadIdx.x
        row, column = thread // A_COLUMNS, thread % A_COLUMNS * A_PIECE
        for turn in unrolled(A_TURNS):
            at = starts[row + turn * A_ROWS] + here[0] + column
            outside = masks[(row + turn * A_ROWS) * WORDS] & here[3]
            for word in range(1, WORDS):
                outside |= masks[(row + turn * A_ROWS) * WORDS + word] & here[3 + word]
            load_or_zero(a_stage, turn * A_PIECE, dy, at, outside == 0)
        for turn in unrolled(B_TURNS):
            k = int64(thread) // B_COLUMNS + turn // ACROSS * B_ROWS
            n = thread % B_COLUMNS * B_PIECE + turn % ACROSS * THREADS
            filt_at = uint32(here[1] + k * uint32(T * R * S * C) + n0 + n)
            inside = k < here[2] and n0 + n < uint32(C)
            fetch_or_zero(tiles, start + A_SIZE + k * BLOCK_N + n, filt, filt_at, inside)

    @inlined
    @narrow
    @unroll
    def arrive(source, here, tiles, start):
        """The tile of dy to shared memory, transposed on the way."""
        _, _, _, _, _, a_stage, _ = source
        row, column = cuda.threadIdx.x // A_COLUMNS, cuda.threadIdx.x % A_COLUMNS * A_PIECE
        for turn in unrolled(A_TURNS):
            for v in range(A_PIECE):
                at = start + (column + v) * A_STRIDE + row + turn * A_ROWS
                tiles[uint64(at)] = a_stage[turn * A_PIECE + v]

    @inlined
    def move_on(source, here, tiles, start):
        here[TILE_AT] += 1
        read_entry(here, source[2])

    begin, multiply = register_tiles.double_buffered(of, A_STRIDE, BLOCK_N, BLOCK_K, ask, arrive, move_on)

    @jit(THREADS, BLOCKS_PER_SM)
    @narrow
    @unroll
    def dgrad_implicit_gemm(dy, filt, table, extra, dx, inputs, geometry, blocks_m, splits):
        tiles, origin = memory.shared_array(BOTH), cuda.shared.array(2, uint32)
        starts, pixels = cuda.shared.array(BLOCK_M, uint32), cuda.shared.array(BLOCK_M, uint32)
        masks = cuda.shared.array(MASKS, uint32)
        here, a_stage = cuda.local.array(HERE, uint32), cuda.local.array(A_STAGE, float32)
        a_frag, b_frag = cuda.local.array(A_FRAG, float32), cuda.local.array(B_FRAG, float32)
        acc = cuda.local.array(ACC, float32)
        N, C, (D, H, W) = dy.shape[0], filt.shape[4], inputs
        GEMM_M, GEMM_N = uint32(N * D * H * W), uint32(C)

        # locate: the block; blocks walk down GROUP_M rows before they move one column to the right
        blocks_n = (C + BLOCK_N - 1) // BLOCK_N
        split, block = cuda.blockIdx.x // (blocks_m * blocks_n), cuda.blockIdx.x % (blocks_m * blocks_n)
        block_m, n0 = walk(block, blocks_m, blocks_n, GROUP_M, 1, BLOCK_N)
        n0 = uint32(n0)

        # locate: the block's tiles of GEMM_K, of these the ones of this split
        part, first_block, first, tiles_k = tiles_of(block_m, extra)
        each = (tiles_k + splits - 1) // splits
        here[TILE_AT] = first + min(split * each, tiles_k)
        pairs = min(each, tiles_k - split * each)

        # locate: for each row which pixel it is, where in dy tap (0, 0, 0) meets it, and which taps miss
        for row in range(cuda.threadIdx.x, BLOCK_M, THREADS):
            pixel = pixel_of(uint32((block_m - first_block) * BLOCK_M + row), inputs, part, extra)
            begin_row(starts, pixels, masks, row, pixel, inputs, dy, filt, geometry)
        if cuda.threadIdx.x == 0:  # what only the store needs takes no registers meanwhile
            origin[0], origin[1] = split, n0
        cuda.syncthreads()

        # stage: the first pair of tiles
        source = dy, filt, table, starts, masks, a_stage, n0
        read_entry(here, table)
        begin(source, here, tiles, a_frag, b_frag)

        # multiply
        multiply(pairs, int64(0), source, here, tiles, a_frag, b_frag, acc)

        # store: SPLIT_K partial gradients, one after another
        thread_m, thread_n = first_of_thread()
        split, n = origin[0], origin[1] + thread_n
        for i in unrolled(THREAD_M):
            m = pixels[thread_m + row_of(i)]
            at = (int64(split) * GEMM_M + m) * C + n
            store_row(dx, at, m < GEMM_M, n, GEMM_N, acc, int64(i), wide)

    return dgrad_implicit_gemm, THREADS


def prepare(filt, problem, **tile):
    """The filter as it is, and what depends on the shape alone: table, tiles of GEMM_K, blocks of rows, the tile."""
    tile = {**shipped(problem), **tile}
    table = taps.tap_table(problem, taps.all_taps(problem), tile["BLOCK_K"])
    blocks_m = -(-problem.N * problem.D * problem.H * problem.W // tile["BLOCK_M"])
    tiles_k = problem.T * problem.R * problem.S * -(-problem.K // tile["BLOCK_K"])
    return filt, table, tiles_k, blocks_m, tile


def launch(dy, prepared, dx, geometry, partials=None, pixels=taps.IN_ORDER, **tile):
    filt, table, extra, blocks_m, chosen = prepared
    tile = {**chosen, **tile}
    (N, D, H, W, C), K = dx.shape, filt.shape[0]
    flat, splits = dx.reshape(dx.size), tile.pop("SPLIT_K")
    require_offsets("dy, filt or a column of dx", dy.size, filt.size, N * D * H * W + tile["BLOCK_M"])
    wide_dy = memory.aligned(dy.reshape(dy.size // K, K))
    wide = memory.aligned(filt.reshape(filt.size // C, C), dx.reshape(dx.size // C, C))
    kernel, THREADS = specialise(pixels, wide_dy, wide, mask_words(*filt.shape[1:4]), **tile)
    blocks = blocks_m * -(-C // tile["BLOCK_N"])
    sums = partials if splits > 1 else flat
    kernel[blocks * splits, THREADS](dy, filt, table, extra, sums, (D, H, W), geometry, blocks_m, splits)
    if splits > 1:
        long_sums.add_up(partials, flat, splits)

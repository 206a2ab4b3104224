"""The multiplication of gemm_tuned (lesson 04), for kernels that bring their tiles together in another way.

a_tile has a row of A_STRIDE values for each k, of which BLOCK_M count; b_tile, behind it, a row of BLOCK_N. A thread
multiplies THREAD_M of the one with THREAD_N of the other, in fours that lie LANES_M or LANES_N fours apart.

A 128-bit store wants four neighbouring registers. `store_row` adds a zero, so that what is stored has registers of
its own: sums in neighbouring ones may wait for values of b_tile of the same parity.
"""

from typing import NamedTuple

from numba import cuda, float32, int64, uint32

from lessons.toolkit.memory import VECTOR, load4, store4, wait_async
from lessons.toolkit.unroll import inlined, unroll, unrolled

LANES_M, LANES_N = 4, 8  # the 32 lanes of a warp, as rows and columns
SHARED_BYTES = 49152  # that a block may have


class RegisterTiles(NamedTuple):
    """Threads of a block, sums of a thread, what its fragments of two k take; the others are device functions."""

    THREADS: int
    A_FRAG: int
    B_FRAG: int
    ACC: int
    first_of_thread: object
    load_k: object
    multiply_k: object
    row_of: object
    store_row: object


def register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM):
    """Raises ValueError for a tile that does not divide among warps, or needs more registers than there are."""
    WARP_M, WARP_N = LANES_M * THREAD_M, LANES_N * THREAD_N
    if BLOCK_M % WARP_M or BLOCK_N % WARP_N or THREAD_M % VECTOR or THREAD_N % VECTOR:
        raise ValueError(
            f"{BLOCK_M=} {BLOCK_N=} must be multiples of {WARP_M=} {WARP_N=}, {THREAD_M=} {THREAD_N=} of 4"
        )
    WARPS_N = BLOCK_N // WARP_N
    THREADS = BLOCK_M // WARP_M * WARPS_N * 32
    registers = min(255, 65536 // (THREADS * BLOCKS_PER_SM))
    if THREADS > 1024 or registers < THREAD_M * THREAD_N + 2 * (THREAD_M + THREAD_N):
        raise ValueError(f"{THREAD_M=} {THREAD_N=} {BLOCKS_PER_SM=}: more than {registers=} for each of {THREADS=}")

    @inlined
    def first_of_thread():
        """The thread's first row and column: lanes l and l^1 share a column, l and l^2 a row, as in gemm_tuned."""
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread // 32, thread % 32
        thread_m = warp // WARPS_N * WARP_M + (lane // 16 * 2 + lane % 2) * VECTOR
        thread_n = warp % WARPS_N * WARP_N + lane // 2 % LANES_N * VECTOR
        return thread_m, thread_n

    @inlined
    def load_k(half, a_at, b_at, tiles, a_frag, b_frag):
        """One k of the tiles to a half of the fragments; `a_at` and `b_at` are where this thread's values lie."""
        for i in range(0, THREAD_M, VECTOR):
            load4(a_frag, half * THREAD_M + i, tiles, a_at + i * LANES_M)
        for j in range(0, THREAD_N, VECTOR):
            load4(b_frag, half * THREAD_N + j, tiles, b_at + j * LANES_N)

    @inlined
    def multiply_k(half, a_frag, b_frag, acc):
        """The products of one k. j runs to and fro: where i moves on, a value of B is still at the multiplier."""
        for i in range(THREAD_M):
            for step in range(THREAD_N):
                j = step if i % 2 == 0 else THREAD_N - 1 - step
                acc[i * THREAD_N + j] += a_frag[half * THREAD_M + i] * b_frag[half * THREAD_N + j]

    @inlined
    def row_of(i):
        """How far below the thread's first row its row `i` lies."""
        return i // VECTOR * VECTOR * LANES_M + i % VECTOR

    @inlined
    def store_row(to, at, inside, n, GEMM_N, acc, i, wide):
        """The thread's sums of its row `i`, in column `n` and on, to to[at:]: four at a time if these are `wide`."""
        out = cuda.local.array(VECTOR, float32)
        for j in range(0, THREAD_N, VECTOR):
            for v in range(VECTOR):
                out[v] = acc[i * THREAD_N + j + v] + float32(0.0)
            if wide:
                if inside and n + j * LANES_N < GEMM_N:
                    store4(to, at + j * LANES_N, out, 0)
            else:
                for v in range(VECTOR):
                    if inside and n + j * LANES_N + v < GEMM_N:
                        to[at + j * LANES_N + v] = out[v]

    A_FRAG, B_FRAG, ACC = 2 * THREAD_M, 2 * THREAD_N, THREAD_M * THREAD_N  # fragments of this k and of the next
    return RegisterTiles(THREADS, A_FRAG, B_FRAG, ACC, first_of_thread, load_k, multiply_k, row_of, store_row)


def require_room(values, **tile):
    """Raise ValueError if a block of this tile has not room for so many 32-bit `values` in shared memory."""
    if 4 * values > SHARED_BYTES:
        raise ValueError(f"{tile}: what is in shared memory takes {4 * values} bytes, {SHARED_BYTES=}")


def copies(rows, columns, wide, THREADS):
    """How a block copies a tile: values at a time, pieces along a row, rows at a time, turns for a row and for all.

    Raises ValueError if the pieces do not divide among the threads.
    """
    piece = VECTOR if wide else 1
    pieces = columns // piece
    at_once, across = max(1, THREADS // pieces), max(1, pieces // THREADS)
    if columns % piece or rows % at_once or pieces * at_once % THREADS:
        raise ValueError(f"a tile of {rows} x {columns} values, {piece} at a time, does not divide among {THREADS=}")
    return piece, pieces, at_once, across, rows // at_once * across


@inlined
def nothing(source, here, tiles, start):
    pass


def double_buffered(
    of, A_STRIDE, B_STRIDE, BLOCK_K, ask, arrive=nothing, move_on=nothing, PRODUCTS=1, A_APART=0, B_APART=0,
    first_of_thread=None,
):  # fmt: skip
    """gemm_tuned's loop: `begin` brings the first pair of tiles, `multiply` goes through so many pairs.

    `ask(source, here, tiles, start)` asks for the next pair, to lie from tiles[start] on; `source` is a tuple.
    `arrive` does what is left before the barrier; `move_on`, behind it, makes `here` say what to ask for next, so
    late to save registers. Of each k there may be several PRODUCTS, whose operands lie A_APART and B_APART, and
    another place where the thread's first begin.
    """
    A_SIZE, SIZE = BLOCK_K * A_STRIDE, BLOCK_K * (A_STRIDE + B_STRIDE)
    first_of_thread, load_k, multiply_k = first_of_thread or of.first_of_thread, of.load_k, of.multiply_k
    TILE, STEPS, ACC = of.ACC, BLOCK_K * PRODUCTS, of.ACC * PRODUCTS

    @inlined
    def begin(source, here, tiles, a_frag, b_frag):
        thread_m, thread_n = first_of_thread()
        ask(source, here, tiles, int64(0))
        move_on(source, here, tiles, int64(0))
        arrive(source, here, tiles, int64(0))
        wait_async()
        cuda.syncthreads()
        load_k(int64(0), thread_m, A_SIZE + thread_n, tiles, a_frag, b_frag)

    @inlined
    @unroll
    def multiply(pairs, start, source, here, tiles, a_frag, b_frag, acc):
        """acc = the products of so many pairs, the first from tiles[start] on; returns where the next one lies."""
        thread_m, thread_n = first_of_thread()
        for i in range(ACC):
            acc[i] = float32(0.0)
        for _ in range(pairs):
            # stage: ask for the next pair, which travels while this one is multiplied. After the last comes one that
            # is not needed: with an `if` around them, loads would move behind the multiplications
            ask(source, here, tiles, SIZE - start)

            for step in unrolled(STEPS):  # int64(), as for a literal Numba would compile a function once more
                # stage: the next pair is complete. Of this one, all threads have the last values in registers
                if step == STEPS - 1:
                    arrive(source, here, tiles, SIZE - start)
                    wait_async()
                    cuda.syncthreads()
                    start = SIZE - start
                    move_on(source, here, tiles, start)

                # multiply: the values of each next k, or product, are read while one is multiplied
                ahead = (step + 1) % STEPS
                a_at = start + ahead // PRODUCTS * A_STRIDE + ahead % PRODUCTS * A_APART + thread_m
                b_at = start + A_SIZE + ahead // PRODUCTS * B_STRIDE + ahead % PRODUCTS * B_APART + thread_n
                load_k(int64((step + 1) % 2), a_at, b_at, tiles, a_frag, b_frag)
                multiply_k(int64(step % 2), a_frag, b_frag, acc[step % PRODUCTS * TILE :])
        return start

    return begin, multiply

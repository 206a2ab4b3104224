"""The multiplication of gemm_tuned (lesson 04), for kernels that bring their tiles together in another way.

a_tile has a row of BLOCK_M values for each k, b_tile a row of BLOCK_N. A thread multiplies THREAD_M of the one with
THREAD_N of the other, in fours that lie LANES_M or LANES_N fours apart.

What is new is the way out. A 128-bit store wants four neighbouring registers, the first a multiple of four, and a
128-bit read fills four such. So sums that are stored as they are lie in even and odd registers in the same turn as
the values of b_tile, and a multiply-add that needs two operands from registers of one parity may wait. `moved` adds a
zero: what is stored lies in registers of its own, and the sums wherever the assembler likes them best.
"""

from types import SimpleNamespace

from numba import cuda, float32, uint32

from lessons.toolkit.memory import VECTOR, load4
from lessons.toolkit.unroll import inlined

LANES_M, LANES_N = 4, 8  # the 32 lanes of a warp, as rows and columns


def register_tiles(BLOCK_M, BLOCK_N, THREAD_M, THREAD_N, BLOCKS_PER_SM):
    """Threads, sizes of fragments, and device functions for this tile.

    Raises ValueError for a tile that does not divide among warps, or needs more registers than there are.
    """
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
    def moved(out, acc, i):
        """out[0:4] = acc[i:i+4], in other registers."""
        for v in range(VECTOR):
            out[v] = acc[i + v] + float32(0.0)

    return SimpleNamespace(
        THREADS=THREADS,
        A_FRAG=2 * THREAD_M,
        B_FRAG=2 * THREAD_N,
        ACC=THREAD_M * THREAD_N,
        first_of_thread=first_of_thread,
        load_k=load_k,
        multiply_k=multiply_k,
        row_of=row_of,
        moved=moved,
    )

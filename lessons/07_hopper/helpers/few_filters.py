"""Few filters: they are the rows of the product, pixels its columns; and pixels that arrived once serve several taps.

A stage holds whole rows of x, their padding included. The next tap of a filter's row begins one pixel further: a
descriptor may start at any row of a tile. What is computed at the end of such a row belongs to no output, and is left
out. Nor need rows of x come once for each row of taps: a stage may hold what all of them need, for the rows of a tile
follow each other in one image. Two teams of one warpgroup take tiles in turn: one stores while the other multiplies.
At most 64 filters, which stay in shared memory; steps of one pixel along w; two taps or more.
"""

import importlib
from functools import lru_cache

from numba import cuda, int32, uint32
from numba.types import float16

from lessons.toolkit import hopper
from lessons.toolkit.grid import jit, multiprocessors
from lessons.toolkit.maps import Maps
from lessons.toolkit.mma import to_half
from lessons.toolkit.narrow import narrow
from lessons.toolkit.tiles import ceil_div, multiple
from lessons.toolkit.unroll import inlined, unroll, unrolled

planning = importlib.import_module("lessons.07_hopper.helpers.im2col_plan")

SHARED, MOST_STAGES, MMA_M, FEW = planning.SHARED, planning.MOST_STAGES, planning.MMA_M, planning.FEW
TEAMS = 2  # of a warpgroup each
THREADS = (TEAMS + 1) * 128
MANY = 224  # registers of a team's thread
MOST_N = 256  # pixels that one instruction multiplies, at most
WARP_M = 16  # filters of a warp
MOST_PAD = 8  # the walk may go 15 pixels beyond a row, up to 7 of them to the next multiple of 8
MAPS = Maps()


def line_of(Q, S, DILATION):
    """Pixels of a row of x, padded so that each row of a tile begins with a pattern of the swizzle."""
    return multiple(Q + (S - 1) * DILATION, 8)


def room(kind, LINES, ROWS, Q, S, DILATION, BLOCK_K, RESIDENT):
    """STAGES that shared memory holds beside RESIDENT tiles of filters and the results of all warps."""
    loaded = (LINES + ROWS - 1) * line_of(Q, S, DILATION) + multiple((S - 1) * DILATION, 8)
    left = SHARED // kind.BYTES - RESIDENT * MMA_M * BLOCK_K - TEAMS * 4 * LINES * multiple(Q, 8) * WARP_M
    return min(MOST_STAGES, left // (loaded * BLOCK_K))


def plan(kind, y_shape, filt_shape, geometry):
    """LINES rows of y in a tile, ROWS of taps that a stage serves, and the shape; None where the kernel cannot
    compute it, or a team would be idle."""
    N, O, P, Q, K = y_shape
    _, T, R, S, C = filt_shape
    BLOCK_K = next(width for width in (kind.row // 4, kind.row // 2, kind.row) if width >= C or width == kind.row)
    shape = {
        "Q": Q, "S": S, "DILATION": geometry.dilation_w, "BLOCK_K": BLOCK_K,
        "RESIDENT": T * R * S * ceil_div(C, BLOCK_K),
    }  # fmt: skip
    line = line_of(Q, S, geometry.dilation_w)
    if K > MMA_M or S == 1 or geometry.stride_w > 1 or geometry.pad_w > MOST_PAD:
        return None
    whole = [n for n in range(MOST_N // line, 0, -1) if n * line % kind.columns == 0]
    near = geometry.stride_h == geometry.dilation_h == 1 and geometry.pad_h <= MOST_PAD and C <= BLOCK_K
    choices = [(n, rows) for n in whole for rows in ((R, 1) if near and P % n == 0 else (1,))]
    least = {rows: 2 if T == 1 and rows > 1 else 3 for rows in (R, 1)}  # stages; one may hold all of a tile
    LINES, ROWS = next((each for each in choices if room(kind, *each, **shape) >= least[each[1]]), (0, 0))
    return {"LINES": LINES, "ROWS": ROWS, **shape} if LINES and LINES * multiprocessors() < N * O * P else None


def staying(FIRST, FILT_BYTES, FILTERS, BLOCK_K, TAPS=1):
    """Build the function that asks for all tiles of FILTERS filters, FILT_BYTES, to tiles[FIRST] and on.

    They come in the order they are multiplied in: of each part of the channels, TAPS taps that follow each other.
    """

    @inlined
    @narrow
    def stay(tiles, filt_map, bars, steps, C):
        hopper.barrier_expect(bars, 0, FILT_BYTES)
        at, column, c = FIRST, 0, 0
        for _ in range(steps):
            for s in range(TAPS):
                hopper.tma_load2(tiles, at, filt_map, bars, 0, 0, column + s * C + c)
                at += FILTERS * BLOCK_K
            c += BLOCK_K
            if c >= C:
                c, column = 0, column + TAPS * C

    return stay


@lru_cache
def specialise(kind, LINES, ROWS, Q, S, DILATION, BLOCK_K, RESIDENT):
    """The kernel, its bytes of shared memory, and the pixels that a stage loads."""
    BYTES, value, all_tiles, wgmma, sum_type = kind.BYTES, kind.value, kind.all_tiles, kind.wgmma, kind.sum_type
    rounded = to_half if value is float16 else sum_type
    STAGES = room(kind, LINES, ROWS, Q, S, DILATION, BLOCK_K, RESIDENT)
    LINE, KEPT = line_of(Q, S, DILATION), multiple(Q, 8)  # pixels of a row that are computed, and that leave
    MMA_N = LINES * LINE
    LOADED = MMA_N + (ROWS - 1) * LINE + (S - 1) * DILATION
    X_SIZE, F_SIZE = multiple(LOADED, 8) * BLOCK_K, MMA_M * BLOCK_K  # values of a tile
    STAYING = STAGES * X_SIZE  # where filters lie
    LEAVING = multiple(STAYING + RESIDENT * F_SIZE, 8 * WARP_M)  # of results on their way: a whole swizzle pattern
    SLAB = LINES * KEPT * WARP_M  # of a warp
    X_BYTES = BYTES * LOADED * BLOCK_K  # that arrive
    SHARED_BYTES = BYTES * (LEAVING + TEAMS * 4 * SLAB)
    EIGHT_ROWS = 8 * BLOCK_K * BYTES  # what a pattern of the swizzle takes
    K_STEPS, STEP = BLOCK_K // kind.MMA_K, kind.MMA_K * BYTES >> 4  # as descriptors count
    X_TAP, X_ROW, X_STAGE = (pixels * BLOCK_K * BYTES >> 4 for pixels in (DILATION, LINE, multiple(LOADED, 8)))
    F_TAP = F_SIZE * BYTES >> 4
    ACC, QUADS = MMA_N // 2, MMA_N // 8
    PIECE = 16 // BYTES  # results that the swizzle moves together
    PIECES = WARP_M // PIECE  # in a row of a slab
    stay = staying(STAYING, BYTES * RESIDENT * F_SIZE, MMA_M, BLOCK_K, ROWS * S)

    @inlined
    @narrow
    @unroll
    def leave(tiles, own, acc):
        """The warp's filters of all pixels to tiles[own], pixels as rows, swizzled."""
        lane = cuda.threadIdx.x % 32
        filt, pixel = lane // 4, lane % 4 * 2
        late = filt // PIECE  # of int32, half of the lanes store their second pixel first, to other banks
        piece = late ^ pixel // (8 // PIECES) % PIECES  # the swizzle
        low = own + pixel * WARP_M + piece * PIECE + filt % PIECE
        first, second = late * WARP_M, (1 - late) * WARP_M
        for j in unrolled(QUADS):
            if 8 * j % LINE < Q:  # eight pixels, one of which at least has an output
                at = (8 * j // LINE * KEPT + 8 * j % LINE) * WARP_M
                for half in range(2):  # the lower eight filters, and the upper
                    start = low ^ 8 * half
                    near, far = rounded(acc[4 * j + 2 * half]), rounded(acc[4 * j + 2 * half + 1])
                    tiles[start + first + at] = far if late else near
                    tiles[start + second + at] = near if late else far

    @jit(THREADS)
    @narrow
    @unroll
    def hconv3d_few_filters(x_map, filt_map, y_map, lines, walk, outputs, geometry):
        tiles = all_tiles()  # dynamic shared memory: a launch may ask for more than 48 KiB of it
        filled, emptied = hopper.barrier_array(STAGES), hopper.barrier_array(STAGES)
        stayed, yours = hopper.barrier_array(1), hopper.barrier_array(TEAMS)
        acc = cuda.local.array(ACC, sum_type)
        T, row_steps, C = uint32(walk[0]), uint32(walk[1]), uint32(walk[2])  # row_steps: R // ROWS
        tile_count = (uint32(lines) - 1) // LINES + 1
        steps = T * row_steps * ((C - 1) // BLOCK_K + 1)
        thread, first, blocks = cuda.threadIdx.x, cuda.blockIdx.x, cuda.gridDim.x
        team = thread // 128
        if thread == 0:
            hopper.open_stages(filled, emptied, STAGES, 1)
            hopper.barrier_init(stayed, 0, 1)
            for s in range(TEAMS):
                hopper.barrier_init(yours, s, 1)
            hopper.publish_barriers()
        cuda.syncthreads()

        if team == TEAMS:
            # stage: one thread, whenever a stage is empty
            hopper.give_registers(FEW)
            if thread == TEAMS * 128:
                O, P = uint32(outputs[0]), uint32(outputs[1])
                count = 0  # of stages so far
                stay(tiles, filt_map, stayed, steps, C)
                for tile in range(int32(first), int32(tile_count), int32(blocks)):
                    line = tile * LINES
                    n = line // (O * P)
                    d = line // P % O * geometry.stride_d - geometry.pad_d
                    h = line % P * geometry.stride_h - geometry.pad_h
                    t, r, c = 0, 0, 0
                    for _ in range(steps):
                        stage = count % STAGES
                        hopper.barrier_wait(emptied, stage, (count // STAGES + 1) % 2)
                        hopper.barrier_expect(filled, stage, X_BYTES)
                        hopper.tma_load_im2col(
                            tiles, stage * X_SIZE, x_map, filled, stage, n, d, h, -geometry.pad_w, c,
                            t * geometry.dilation_d, r * geometry.dilation_h, 0,
                        )  # fmt: skip
                        count += 1
                        c += BLOCK_K
                        if c >= C:  # the next row of taps
                            c, r = 0, r + 1
                            if r == row_steps:
                                r, t = 0, t + 1
        else:
            hopper.take_registers(MANY)
            # locate: the first tiles, and where the warp's results leave
            x_at, f_at = hopper.descriptor(tiles, 0, 0, EIGHT_ROWS), hopper.descriptor(tiles, STAYING, 0, EIGHT_ROWS)
            warp, lane, leads = thread // 32, thread % 32, thread % 128 == 0
            row, own = warp % 4 * WARP_M, LEAVING + warp * SLAB
            count = team * steps  # of stages so far; those of the other team are passed over
            parity = uint32(team == 0)  # of the team's next turn; the first team's first one has come
            hopper.barrier_wait(stayed, 0, 0)
            for tile in range(int32(first + team * blocks), int32(tile_count), int32(TEAMS * blocks)):
                for j in unrolled(QUADS):
                    for e in range(4):
                        acc[4 * j + e] = sum_type(0)
                # until the other team has started its turn's products: two phases ahead `filled` has the same parity
                hopper.barrier_wait(yours, team, parity)
                parity ^= 1
                for step in range(steps):
                    stage = count % STAGES
                    hopper.barrier_wait(filled, stage, count // STAGES % 2)

                    # multiply: started here; the ones before have ended, and their stage may be filled again
                    x, f = x_at + stage * X_STAGE, f_at + step * ROWS * S * F_TAP
                    hopper.wgmma_fence()
                    for s in unrolled(ROWS * S):
                        for k in unrolled(K_STEPS):
                            at_f = f + s * F_TAP + k * STEP
                            at_x = x + s // S * X_ROW + s % S * X_TAP + k * STEP
                            wgmma(acc, 0, tiles, at_f, at_x, MMA_N)
                    hopper.wgmma_commit()
                    hopper.wgmma_wait(1)
                    if leads and step > 0:
                        hopper.barrier_arrive(emptied, (count - 1) % STAGES)
                    count += 1
                if leads:
                    hopper.barrier_arrive(yours, (team + 1) % TEAMS)
                hopper.wgmma_wait(0)
                if leads:
                    hopper.barrier_arrive(emptied, (count - 1) % STAGES)
                count += (TEAMS - 1) * steps

                # store
                if lane == 0:
                    hopper.tma_wait_read(0)  # what lay here has left
                cuda.syncwarp()
                leave(tiles, own, acc)
                hopper.fence_async()
                cuda.syncwarp()
                if lane == 0:
                    for i in range(LINES):
                        hopper.tma_store2(y_map, (tile * LINES + i) * Q, row, tiles, own + i * KEPT * WARP_M)
                    hopper.tma_commit()
            if lane == 0:
                hopper.tma_wait_read(0)

    return hconv3d_few_filters, SHARED_BYTES, LOADED


def launch(x, filt, y, geometry, tile, kind):
    """y = x convolved with filt, KTRSC; `tile` is that of plan for values of this kind."""
    N, O, P, Q, K = y.shape
    T, R, S, C = filt.shape[1:]
    kernel, shared_bytes, loaded = specialise(kind, **tile)
    lower, upper, strides, _ = planning.corners(geometry, x.shape, y.shape, (T, R, S))
    upper[1] += tile["ROWS"] - 1
    upper[2] += line_of(Q, S, geometry.dilation_w) - Q  # whole rows
    x_map = MAPS.im2col(x, lower, upper, tile["BLOCK_K"], loaded, strides, tf32=kind.tf32)
    filt_map = MAPS.tiled(filt.reshape(K, T * R * S * C), (MMA_M, tile["BLOCK_K"]), tf32=kind.tf32)
    y_map = MAPS.tiled(y.reshape(N * O * P * Q, K), (Q, WARP_M))
    blocks = hopper.persistent(ceil_div(N * O * P, tile["LINES"]))
    walk = T, R // tile["ROWS"], C
    kernel[blocks, THREADS, 0, shared_bytes](x_map, filt_map, y_map, N * O * P, walk, (O, P), geometry)

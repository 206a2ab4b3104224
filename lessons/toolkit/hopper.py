"""Hopper's asynchronous machine: tiles that arrive, barriers that count bytes, wgmma from shared memory.

`tma_load2` starts the copy of a box of an array, which a *tensor map* (`maps`) describes; one thread asks for it. A
*barrier* (mbarrier) completes a phase when all arrivals it was made for and all bytes it was told of have come; its
phases have parity 0, 1, 0, ... `wgmma_f16` starts a multiplication of a *warpgroup*: four warps, the first a
multiple of four, all 128 threads together. It reads operands from shared memory, where a *descriptor* says.

Tiles lie in shared memory with a swizzle of 128 bytes: of row r, which is 128 bytes, the 16-byte piece c is found at
piece c XOR r % 8; of rows of 64 or 32 bytes at c XOR r // 2 % 4 or c XOR r // 4 % 2. The copy engine writes and reads
it so, and a descriptor says so; tiles start on 1024-byte boundaries. Arrays are addressed by one flat offset in
elements. Compute capability 9.0 alone, "9.0a".
"""

from llvmlite import ir
from numba import cuda, float32, int32, int64, types, uint32
from numba.cuda.extending import intrinsic
from numba.types import float16

from lessons.toolkit import ptx
from lessons.toolkit.grid import multiprocessors
from lessons.toolkit.memory import shared_arrays, store2_guarded
from lessons.toolkit.pasted import pasted
from lessons.toolkit.ptx import FLOAT, LONG, WORD
from lessons.toolkit.unroll import inlined

PATIENCE = 2_000_000_000  # nanoseconds that a thread waits at a barrier before it gives up


# --- shared memory ---


# All of the dynamic shared memory, if it is not said how much
half_tiles = shared_arrays("half_tiles", float16, 1024)
float_tiles = shared_arrays("float_tiles", float32, 1024)
word_tiles = shared_arrays("word_tiles", int32, 1024)  # a word holds four int8, too


@ptx.instruction("fence.proxy.async.shared::cta;")
def fence_async():
    """Make visible to wgmma and the copy engine what this thread wrote to shared memory; a barrier must follow."""


# --- barriers that count bytes ---


@pasted
def barrier_array(count):
    """`count` barriers in shared memory; a constant."""
    return cuda.shared.array(count, int64)


@ptx.instruction("mbarrier.init.shared::cta.b64 [$0], $1;", "sr")
def barrier_init(bars, i, arrivals):
    """Make barrier i one of so many arrivals in a phase; then publish_barriers."""


@ptx.instruction("fence.mbarrier_init.release.cluster;")
def publish_barriers():
    """The barriers that this thread has made are there for the copy engine and, behind a barrier, for all."""


@ptx.instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "sr")
def barrier_expect(bars, i, count):
    """Arrive at barrier i, and let its phase wait for `count` bytes more."""


@ptx.instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", "s")
def barrier_arrive(bars, i):
    """Arrive at barrier i: what this thread did before is done for who waits for the phase."""


@ptx.instruction(
    "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [there]; }",
    "sr",
)
def barrier_arrive_at(bars, i, rank):
    """Arrive at barrier i of the block of that rank; what this thread wrote, the other does not see by this."""


@ptx.instruction(
    "{ .reg .pred done; .reg .b64 start, now; "
    "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @done bra ARRIVED; "
    "mov.u64 start, %globaltimer; "
    "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @done bra ARRIVED; "
    f"mov.u64 now, %globaltimer; sub.u64 now, now, start; setp.lt.u64 done, now, {PATIENCE}; "
    "@done bra AGAIN; trap; ARRIVED: }",
    "sr",
)
def barrier_wait(bars, i, parity):
    """Wait until barrier i has completed the phase of this parity: 0 for the first, 1 for the second, 0, ...

    A barrier whose first phase is not complete lets those of parity 1 pass. After two seconds the launch fails.
    """


@pasted
def open_stages(filled, emptied, stages, arrivals):
    """One thread makes the barriers of a ring of stages: `filled` counts bytes, `emptied` arrivals of readers."""
    for stage in range(stages):
        barrier_init(filled, stage, 1)
        barrier_init(emptied, stage, arrivals)


@inlined
def next_stage(stage, parity, stages):
    """The stage after this one of a ring of `stages`, and the parity of its barrier's phase."""
    if stage == stages - 1:
        return uint32(0), uint32(parity ^ 1)
    return uint32(stage + 1), parity


# --- the matrix unit ---


@intrinsic
def descriptor(typing_context, tiles, offset, leading, stride):
    """Where an operand of wgmma begins, tiles[offset], and its leading and stride byte offsets; swizzled.

    K-major (rows along k): stride is from eight rows to the next eight, 1024 bytes in a tile of 128-byte rows; a
    stride of 512 or 256 says that rows, and the swizzle, are 64 or 32 bytes wide; leading is not used. Row-major
    B: a panel is 64 columns wide, each k a row of 128 bytes; leading is from panel to panel, stride from eight k
    to the next eight. A descriptor moves by `descriptor + (bytes >> 4)`.
    """

    def generate(context, builder, signature, args):
        kinds = signature.args
        start = ptx.shared_address(context, builder, kinds[0], args[0], args[1], kinds[1])
        leading, stride = (context.cast(builder, args[n], kinds[n], types.uint32) for n in (2, 3))
        found = LONG(1 << 62)
        for rows, swizzle in ((512, 2), (256, 3)):
            told = builder.icmp_unsigned("==", stride, WORD(rows))
            found = builder.select(told, LONG(swizzle << 62), found)
        for value, bits in ((start, 0), (leading, 16), (stride, 32)):
            field = builder.and_(builder.lshr(value, WORD(4)), WORD(0x3FFF))
            found = builder.or_(found, builder.shl(builder.zext(field, LONG), LONG(bits)))
        return found

    return types.uint64(tiles, offset, leading, stride), generate


def _wgmma(form, modifiers="", registers=0, sums_of=FLOAT, sparse=False):
    """A wgmma of `form`, N in it; the sums are operands of the instruction, read and written.

    `registers`: those of a thread that A is in; 0: it is in shared memory. `sums_of`: FLOAT, or WORD of integers.
    `sparse`: one more operand says where values of A belong, and a constant which lanes' of it are asked.
    """
    scales = ", 1, 1" if sums_of is FLOAT else ""  # of A and B, which integers do not have
    result = "=f" if sums_of is FLOAT else "=r"
    b_at = 5 if registers else 4  # which argument B is; N is behind it

    def typed(typing_context, *given):
        columns, which = ptx.literal(given[b_at + 1]), ptx.literal(given[b_at + 3]) if sparse else 0
        if columns is None or which is None:
            return None
        count, adds = columns // 2, len(given) > b_at + (4 if sparse else 2)  # does the call say whether to add?

        def generate(context, builder, signature, args):
            sums = ptx.held(context, builder, signature, args, 0, count, sums_of)
            left = [args[b_at - 1]]
            if registers:
                left = [builder.load(one) for one in ptx.held(context, builder, signature, args, 2, registers, WORD)]
            flag = [builder.zext(args[-1], WORD)] if adds else []
            places = [args[b_at + 2]] if sparse else []
            names = [f"${n}" for n in range(count + len(left) + 1 + sparse)]
            a, b = ", ".join(names[count:][: len(left)]), ", ".join(names[count + len(left) :])
            text = f"wgmma.mma_async.{'sp.' * sparse}sync.aligned.{form.format(N=columns)} "
            text += f"{{{', '.join(names[:count])}}}, {f'{{{a}}}' if registers else a}, {b}"
            text += f"{f', {which}' * sparse}, {'add' if adds else 1}{scales}{modifiers};"
            if adds:
                text = f"{{ .reg .pred add; setp.ne.u32 add, ${count + len(names)}, 0; {text} }}"
            constraints = [result] * count + ["r" if registers else "l"] * len(left) + ["l"] + ["r"] * sparse
            constraints += [*map(str, range(count)), *["r"] * adds, "~{memory}"]
            operands = [*left, args[b_at], *places, *(builder.load(one) for one in sums), *flag]
            ptx.put(builder, sums, sums_of, text, constraints, operands)
            return context.get_dummy_value()

        kinds = list(given[: b_at + (4 if sparse else 2)])
        kinds[b_at if registers else b_at - 1 : b_at + 1] = [types.uint64] * (1 if registers else 2)
        if sparse:
            kinds[b_at + 2] = types.uint32
        return types.void(*kinds, types.boolean if adds else types.literal(True)), generate

    return typed


F16, TF32, S8 = "m64n{N}k16.f32.f16.f16", "m64n{N}k8.f32.tf32.tf32", "m64n{N}k32.s32.s8.s8"


@ptx.function(_wgmma(F16, ", 0, 0"))
def wgmma_f16(acc, i, tiles, a, b, N, add=True):
    """Start the warpgroup's acc[i:i+N/2] += A (64 x 16) @ B (16 x N), float16, K-major, at descriptors a and b.

    N is a constant, a multiple of 8 up to 256. Thread t, warp w = t // 32 % 4 of the warpgroup, lane l = t % 32:
    acc[i + 4j + e] = C[16 w + l // 4 + 8 (e // 2), 8 j + 2 (l % 4) + e % 2]. wgmma_fence comes before,
    wgmma_commit after; until wgmma_wait the sums, and the tiles, belong to the matrix unit. `tiles` is there for the
    tracer. Where `add`, one for the whole warpgroup, is false, the product takes the sums' place.
    """


@ptx.function(_wgmma(F16, ", 0, 1"))
def wgmma_f16_rows(acc, i, tiles, a, b, N, add=True):
    """wgmma_f16 with B row-major in memory: rows run along n."""


@ptx.function(_wgmma(TF32))
def wgmma_tf32(acc, i, tiles, a, b, N, add=True):
    """Start acc[i:i+N/2] += A (64 x 8) @ B (8 x N), K-major; float32, read as TF32: 13 bits are cut off."""


@ptx.function(_wgmma(TF32, registers=4))
def wgmma_tf32_registers(acc, i, frag, j, tiles, b, N, add=True):
    """wgmma_tf32 with A in registers, frag[j:j+4] of each thread, untouched until wgmma_wait.

    With w and l as in wgmma_f16: A[16 w + l // 4, l % 4], the same of row + 8, both again 4 columns to the right.
    """


@ptx.function(_wgmma(F16, ", 0", registers=4))
def wgmma_f16_registers(acc, i, frag, j, tiles, b, N, add=True):
    """wgmma_f16 with A in registers, frag[j:j+8] of each thread, untouched until wgmma_wait.

    These are two values from A[16 w + l // 4, 2 (l % 4)] on, the same of row + 8, then both again 8 columns to the
    right: what ldmatrix4 gives for 16 x 16 values.
    """


@ptx.function(_wgmma(F16, ", 1", registers=4))
def wgmma_f16_rows_registers(acc, i, frag, j, tiles, b, N, add=True):
    """wgmma_f16_registers with B row-major in memory: rows run along n."""


@ptx.function(_wgmma("m64n{N}k32.f32.f16.f16", ", 0, 0", sparse=True))
def wgmma_sp_f16(acc, i, tiles, a, b, N, places, half, add=True):
    """Start acc[i:i+N/2] += A (64 x 32, of which 64 x 16 are kept) @ B (32 x N), float16, K-major; sums as wgmma_f16.

    places, uint32, and `half`, a constant, say where kept values belong, as for mma.mma_sp_m16n8k32.
    """


@ptx.function(_wgmma(S8, sums_of=WORD))
def wgmma_s8(acc, i, tiles, a, b, N, add=True):
    """Start acc[i:i+N/2] += A (64 x 32) @ B (32 x N), int8, K-major; the sums int32, exact, as wgmma_f16's lie.

    Tiles are words, int32, of four values each. N is 8, 16, 24, 32, or a multiple of 16 up to 256.
    """


@ptx.function(_wgmma(S8, registers=4, sums_of=WORD))
def wgmma_s8_registers(acc, i, frag, j, tiles, b, N, add=True):
    """wgmma_s8 with A in registers, the words frag[j:j+4] of each thread: what ldmatrix4 gives for 16 x 8 words."""


@ptx.function(_wgmma("m64n{N}k32.f32.e4m3.e4m3"))
def wgmma_e4m3(acc, i, tiles, a, b, N, add=True):
    """Start acc[i:i+N/2] += A (64 x 32) @ B (32 x N), codes of e4m3, K-major; the sums float32, as wgmma_f16's lie.

    Tiles are words, float32, of four codes each. Sums keep about 14 bits: 32 products and the sum so far are
    brought to the exponent of the largest, and cut off.
    """


@ptx.function(_wgmma("m64n{N}k16.f32.bf16.bf16", ", 0, 0"))
def wgmma_bf16(acc, i, tiles, a, b, N, add=True):
    """wgmma_f16 on codes of bfloat16, K-major; the sums float32. Tiles are words, float32, of two codes each."""


@ptx.instruction("wgmma.fence.sync.aligned;")
def wgmma_fence():
    """What the warpgroup's threads did to their sums is done for the wgmma that follow."""


@ptx.instruction("wgmma.commit_group.sync.aligned;")
def wgmma_commit():
    """The wgmma that the warpgroup has started since its last wgmma_commit become a group."""


@ptx.instruction("wgmma.wait_group.sync.aligned {};", "-")
def wgmma_wait(pending):
    """Wait until at most `pending` groups, the youngest, of this warpgroup are under way; a constant."""


@inlined
def store_part(c, m, n, acc, first, paired):
    """A warp's sums, from acc[first] on, to 16 rows of 64 columns of C from (m, n) on; paired: as store2_guarded."""
    lane = uint32(cuda.threadIdx.x) % uint32(32)
    m, n = m + lane // uint32(4), n + lane % uint32(4) * uint32(2)
    for j in range(8):
        store2_guarded(c, m, n + j * 8, acc, first + uint32(4 * j), paired)
        store2_guarded(c, m + 8, n + j * 8, acc, first + uint32(4 * j + 2), paired)


# --- the copy engine ---


def _load(form, coordinates, offsets=0, multicast=False):
    """A load: to, map, barrier, so many coordinates and offsets, innermost last; `multicast`: a mask of blocks."""

    def typed(typing_context, *given):
        def generate(context, builder, signature, args):
            kinds = signature.args
            to, bar = (
                ptx.shared_address(context, builder, kinds[n], args[n], args[n + 1], kinds[n + 1]) for n in (0, 3)
            )
            operands = [to, builder.ptrtoint(ptx.data(context, builder, kinds[2], args[2]), LONG), bar]
            rest = list(zip(args[5:], kinds[5:], strict=True))
            where, taps, mask = rest[:coordinates], rest[coordinates:][:offsets], rest[coordinates + offsets :]
            for value, kind in reversed(where):
                operands.append(context.cast(builder, value, kind, types.int32))
            for value, kind in (*reversed(taps), *mask):
                operands.append(context.cast(builder, value, kind, types.uint16))
            names = [f"${n}" for n in range(len(operands))]
            at, more = ", ".join(names[3:][:coordinates]), ", ".join(names[3 + coordinates :][:offsets])
            text = f"cp.async.bulk.tensor.{form}.mbarrier::complete_tx::bytes{'.multicast::cluster' * multicast} "
            text += f"[$0], [$1, {{{at}}}], [$2]{f', {{{more}}}' * (offsets > 0)}{f', {names[-1]}' * multicast};"
            constraints = ["r", "l", "r", *["r"] * coordinates, *["h"] * (offsets + multicast), "~{memory}"]
            ptx.assembly(builder, ir.VoidType(), text, ",".join(constraints), operands)
            return context.get_dummy_value()

        return types.void(*given), generate

    return typed


TILED, IM2COL = "2d.shared::cluster.global.tile", "5d.shared::cluster.global.im2col"


@ptx.function(_load(TILED, 2))
def tma_load2(tiles, i, map, bars, b, row, column):
    """Start tiles[i:] = the map's box from (row, column) on, swizzled, zeros outside; one thread asks.

    Its bytes, those outside too, count at barrier b.
    """


@ptx.function(_load(TILED, 2, multicast=True))
def tma_load2_multicast(tiles, i, map, bars, b, row, column, mask):
    """tma_load2 to the same place in each block of the cluster whose bit is set, counted at its barrier b."""


@ptx.function(_load(IM2COL, 5, 3))
def tma_load_im2col(tiles, i, map, bars, b, n, d, h, w, c, t, r, s):
    """Start tiles[i:] = the map's pixels from base pixel (n, d, h, w) on at tap (t, r, s), channels from c on.

    t, r and s are offsets in pixels: a tap's index times the dilation. Rows of the tile are pixels. Barrier and
    swizzle are those of tma_load2.
    """


@intrinsic
def tma_store2(typing_context, map, row, column, tiles, i):
    """Start the map's box from (row, column) on = tiles[i:], swizzled; nothing outside the array is written."""

    def generate(context, builder, signature, args):
        kinds = signature.args
        place = [context.cast(builder, args[n], kinds[n], types.int32) for n in (2, 1)]
        start = ptx.shared_address(context, builder, kinds[3], args[3], args[4], kinds[4])
        operands = [builder.ptrtoint(ptx.data(context, builder, kinds[0], args[0]), LONG), *place, start]
        text = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$0, {$1, $2}], [$3];"
        ptx.assembly(builder, ir.VoidType(), text, "l,r,r,r,~{memory}", operands)
        return context.get_dummy_value()

    return types.void(map, row, column, tiles, i), generate


@ptx.instruction("cp.async.bulk.commit_group;")
def tma_commit():
    """The stores that this thread has started since its last tma_commit become a group."""


@ptx.instruction("cp.async.bulk.wait_group.read {};", "-")
def tma_wait_read(pending):
    """Wait until all but `pending` groups of this thread's stores have read shared memory; a constant."""


@ptx.instruction("cp.async.bulk.wait_group {};", "-")
def tma_wait(pending):
    """Wait until all but `pending` groups of this thread's stores are in global memory; a constant."""


# --- blocks that stay, clusters, registers ---


def persistent(tiles, cluster=1):
    """Blocks that stay for tile after tile, in clusters that take a tile together: few enough to end together."""
    turns = -(-tiles // (multiprocessors() // cluster))
    return cluster * -(-tiles // turns)


def locating(group_rows, height, width):
    """Build the device function that says where the tile of a number begins, as `pasted.walk` does."""

    @inlined
    def locate(tile, rows, columns):
        """Of rows x columns tiles of height x width: down `group_rows` rows of tiles, then one column on."""
        group, turn = tile // (uint32(group_rows) * columns), tile % (uint32(group_rows) * columns)
        first = group * uint32(group_rows)
        below = min(rows - first, uint32(group_rows))
        return (first + turn % below) * uint32(height), turn // below * uint32(width)

    return locate


@intrinsic
def cluster_rank(typing_context):
    """The block's number in its cluster."""

    def generate(context, builder, signature, args):
        return ptx.assembly(builder, WORD, "mov.u32 $0, %cluster_ctarank;", "=r", [])

    return types.uint32(), generate


@ptx.instruction("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;")
def cluster_sync():
    """Wait for all threads of all blocks of the cluster; what they wrote before is there."""


@ptx.instruction("setmaxnreg.inc.sync.aligned.u32 {};", "-")
def take_registers(count):
    """Let each thread of this warpgroup hold `count` registers, as soon as others gave them; a multiple of 8."""


@ptx.instruction("setmaxnreg.dec.sync.aligned.u32 {};", "-")
def give_registers(count):
    """Keep `count` registers for each thread of this warpgroup, and give the others away; a multiple of 8."""

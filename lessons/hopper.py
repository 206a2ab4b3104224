"""Hopper's asynchronous machine: tiles that arrive, barriers that count bytes, wgmma from shared memory.

A *tensor map* describes an array in memory and a box of it. `tma_load2` starts the copy of a whole box; one thread
asks for it. A *barrier* (mbarrier) completes a phase when all arrivals it was made for have come and all bytes it was
told to expect have arrived; its phases have parity 0, 1, 0, ... `wgmma_f16` starts a multiplication of a *warpgroup*:
four warps, the first a multiple of four, all 128 threads together. It reads its operands from shared memory, where a
*descriptor* says, and adds to registers, which nobody may touch before `wgmma_wait`.

Tiles lie in shared memory with a swizzle of 128 bytes: of row r, which is 128 bytes, the 16-byte piece c is found at
piece c XOR r % 8; of rows of 64 or 32 bytes at c XOR r // 2 % 4 or c XOR r // 4 % 2. The copy engine writes and reads
it so, and a descriptor says so; tiles start on 1024-byte boundaries. Arrays are addressed by one flat offset in
elements, as in ``lessons/tensorcores.py``. Compute capability 9.0 alone, "9.0a".
"""

from collections import OrderedDict

import numpy as np
from llvmlite import ir
from numba import cuda, float32, int64, types
from numba.cuda import cgutils
from numba.cuda.extending import intrinsic
from numba.types import float16

SWIZZLES = 128, 64, 32  # bytes that a row of a tile may have
BOX_ROWS = 256  # that a box has at most
ROW_STEP = 16  # bytes: what addresses and rows are multiples of
MAPS = 64  # that are kept


# --- tensor maps ---


class TensorMap:
    """A box of an array, as the copy engine wants it described: 128 bytes in device memory, an argument of a kernel.

    kind is "tiled" (box: rows and columns) or "im2col" (lower, upper, strides: of d, h, w; channels, pixels). tf32:
    float32 values become the nearest TF32 numbers, ties to even, on their way to shared memory.
    array is set where it lies in the host's memory, as without a GPU; a device's array is not kept alive. It is
    encoded when a launch first asks for it.
    """

    _numba_type_ = types.Array(types.uint8, 1, "C")

    def __init__(self, array, tf32, kind, box, lower=None, upper=None, strides=None, channels=None, pixels=None):
        self.kind, self.box, self.lower, self.upper = kind, box, lower, upper
        self.strides, self.channels, self.pixels = strides, channels, pixels
        self.shape, self.dtype, self.tf32 = tuple(array.shape), _dtype(array), tf32
        self.swizzle = box[1] * self.dtype.itemsize  # bytes of a row of the box
        self.address = _address(array)
        self.array = None if hasattr(array, "__cuda_array_interface__") else array

    def __getattr__(self, name):
        if name != "__cuda_array_interface__" or self.array is not None:
            raise AttributeError(name)
        self.words = cuda.to_device(_encoded(self, self.address))
        self.__cuda_array_interface__ = self.words.__cuda_array_interface__
        return self.__cuda_array_interface__


_maps = OrderedDict()  # the youngest last


def tensor_map(array, box, tf32=False):
    """Describe boxes of `box` = (rows, columns) of a 2D row-major array, float16 or float32; zeros lie around it.

    The address and the bytes of a row are multiples of 16; a row of the box has 128, 64 or 32 bytes, the box at most
    256 rows. Raises ValueError. Maps are kept by address and shape, so that the same array gives the same map.
    """
    itemsize = _require_array(array, 2)
    rows, columns = box = tuple(map(int, box))
    _require("box rows", rows, 1 <= rows <= BOX_ROWS, f"1 to {BOX_ROWS}")
    _require("box columns", columns, columns * itemsize in SWIZZLES, _widths(itemsize))
    return _kept(array, tf32, "tiled", box)


def im2col_map(x, lower, upper, channels, pixels, strides, tf32=False):
    """Describe boxes of `pixels` pixels of `channels` channels of an NDHWC array: rows of the matrix of windows.

    A window's base pixel walks along w, then h, then d, then n, by `strides` = (d, h, w), from the corner `lower` to
    `upper` from the array's last pixel, both (d, h, w): lower = -pad, upper = pad - (taps - 1) * dilation. What lies
    outside counts as zero. Limits are those of tensor_map, up to 1024 pixels, and corners of -16 to 15. Raises
    ValueError.
    """
    itemsize = _require_array(x, 5)
    lower, upper, strides = (tuple(map(int, part)) for part in (lower, upper, strides))
    for name, corner in (("lower", lower), ("upper", upper)):
        _require(name, corner, all(-16 <= one <= 15 for one in corner), "-16 to 15 each")
    _require("strides", strides, all(1 <= one <= 8 for one in strides), "1 to 8 each")
    _require("channels", channels, channels * itemsize in SWIZZLES, _widths(itemsize))
    _require("pixels", pixels, 1 <= pixels <= 1024, "1 to 1024")
    return _kept(x, tf32, "im2col", (pixels, channels), lower, upper, strides, int(channels), int(pixels))


def _widths(itemsize):
    return ", ".join(str(swizzle // itemsize) for swizzle in SWIZZLES)


def _address(array):
    on_gpu = getattr(array, "__cuda_array_interface__", None)
    return (on_gpu or array.__array_interface__)["data"][0]


def _dtype(array):
    on_gpu = getattr(array, "__cuda_array_interface__", None)
    return np.dtype((on_gpu or array.__array_interface__)["typestr"])


def _require(name, value, holds, allowed):
    if not holds:
        raise ValueError(f"{name} is {value}; allowed: {allowed}")


def mappable(*arrays):
    """True if a tensor map can describe every array: its address and the bytes of its rows are multiples of 16."""
    return all(
        _address(array) % ROW_STEP == 0 and tuple(array.shape)[-1] * _dtype(array).itemsize % ROW_STEP == 0
        for array in arrays
    )


def _require_array(array, dimensions):
    dtype, shape = _dtype(array), tuple(array.shape)
    _require("dtype", dtype, dtype in (np.float16, np.float32), "float16, float32")
    _require("shape", shape, len(shape) == dimensions and min(shape) > 0, f"{dimensions} positive extents")
    _require("address", _address(array), _address(array) % ROW_STEP == 0, f"a multiple of {ROW_STEP}")
    row = shape[-1] * dtype.itemsize
    _require("bytes of a row", row, row % ROW_STEP == 0, f"a multiple of {ROW_STEP}")
    return dtype.itemsize


def _kept(array, *fields):
    """The map of this array with these fields; made where there is none yet."""
    if not hasattr(array, "__cuda_array_interface__"):
        return TensorMap(array, *fields)
    key = _address(array), tuple(array.shape), _dtype(array), *fields
    found = _maps.pop(key, None) or TensorMap(array, *fields)
    _maps[key] = found
    if len(_maps) > MAPS:
        _maps.popitem(last=False)
    return found


def _encoded(one, address):
    """The map's 128 bytes, by the driver."""
    from cuda.bindings import driver

    kinds, swizzles = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    kind = kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16
    if one.dtype == np.float32:
        kind = kinds.CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 if one.tf32 else kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    extents = one.shape[::-1]  # the driver names the innermost dimension first
    pitches = one.dtype.itemsize * np.cumprod(extents[:-1])
    array = kind, len(extents), address, [driver.cuuint64_t(n) for n in extents]
    array = *array, [driver.cuuint64_t(int(n)) for n in pitches]
    form = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{one.swizzle}B"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if one.kind == "tiled":
        box = [driver.cuuint32_t(n) for n in one.box[::-1]]
        error, made = driver.cuTensorMapEncodeTiled(*array, box, [driver.cuuint32_t(1)] * len(box), *form)
    else:
        steps = [driver.cuuint32_t(n) for n in (1, *one.strides[::-1], 1)]
        corners = list(one.lower[::-1]), list(one.upper[::-1])
        error, made = driver.cuTensorMapEncodeIm2col(*array, *corners, one.channels, one.pixels, steps, *form)
    if error:
        raise ValueError(f"the driver refuses a map of {one.shape}, {vars(one)}: {error.name}")
    words = np.array([int(word) for word in made.opaque], np.uint64)
    if one.kind == "im2col" and np.prod(one.shape) * one.dtype.itemsize < 1 << 17:
        error, version = driver.cuDriverGetVersion()
        if version <= 13010:  # such drivers set a bit that makes these maps of small arrays read wrongly
            words[1] &= ~np.uint64(1 << 21)
    return words.view(np.uint8)


HALF, WORD, LONG, FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
SHARED = 3  # LLVM's number of the shared address space
PATIENCE = 2_000_000_000  # nanoseconds that a thread waits at a barrier before it gives up


def jit(threads, blocks=1, cluster=1):
    """cuda.jit that leaves a thread as many registers as `blocks` resident blocks of `threads` leave it.

    The kernel runs in clusters of `cluster` blocks along x, which reach each other's shared memory; its grid
    counts blocks, a multiple of `cluster`.
    """
    return cuda.jit(launch_bounds=(threads, blocks) if cluster == 1 else (threads, blocks, cluster))


# --- operands of instructions ---


def _assembly(builder, result, text, constraints, operands):
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), operands)


def _data(context, builder, array_type, array):
    return cgutils.create_struct_proxy(array_type)(context, builder, value=array).data


def _shared_address(context, builder, array_type, array, index, index_type):
    """Where array[index] lies in shared memory; 32 bits reach all of it."""
    data = _data(context, builder, array_type, array)
    start = builder.ptrtoint(builder.addrspacecast(data, WORD.as_pointer(SHARED)), WORD)
    index = context.cast(builder, index, index_type, types.uint32)
    return builder.add(start, builder.mul(index, WORD(array_type.dtype.bitwidth // 8)))


def _instruction(text, kinds):
    """Code that carries out `text` on operands, named by a letter each, in the order of the arguments:

    s: an array and an index, for an address in shared memory; p: an array, for its address in global memory;
    r: 32 bits; h: 16 bits; ``-`` none.
    """
    constraints = ",".join([*({"s": "r", "p": "l"}.get(kind, kind) for kind in kinds if kind != "-"), "~{memory}"])

    def generate(context, builder, signature, args):
        given, operands = iter(zip(args, signature.args, strict=True)), []
        for kind in kinds:
            value, its_type = next(given)
            if kind == "s":
                operands.append(_shared_address(context, builder, its_type, value, *next(given)))
            elif kind == "p":
                operands.append(builder.ptrtoint(_data(context, builder, its_type, value), LONG))
            elif kind == "r":
                operands.append(context.cast(builder, value, its_type, types.uint32))
            elif kind == "h":
                operands.append(context.cast(builder, value, its_type, types.uint16))
        _assembly(builder, ir.VoidType(), text, constraints, operands)
        return context.get_dummy_value()

    return generate


def _literal(value):
    """The value of an argument that must be a constant, or None where Numba has yet to ask with the constant."""
    return value.literal_value if isinstance(value, types.IntegerLiteral) else None


# --- shared memory ---


@cuda.jit(device=True, inline="always")
def half_tiles():
    """All of the dynamic shared memory as float16, from a 1024-byte boundary on."""
    return cuda.shared.array(0, float16, alignment=1024)


@cuda.jit(device=True, inline="always")
def float_tiles():
    """All of the dynamic shared memory as float32, from a 1024-byte boundary on."""
    return cuda.shared.array(0, float32, alignment=1024)


@intrinsic
def fence_async(typing_context):
    """What this thread wrote to shared memory is there for wgmma and the copy engine, after a barrier for all."""
    return types.void(), _instruction("fence.proxy.async.shared::cta;", "")


# --- barriers that count bytes ---


@cuda.jit(device=True, inline="always")
def barrier_array(count):
    """`count` barriers in shared memory; a constant."""
    return cuda.shared.array(count, int64)


@intrinsic
def barrier_init(typing_context, bars, i, arrivals):
    """Make barrier i one of so many arrivals in a phase; then publish_barriers."""
    text = "mbarrier.init.shared::cta.b64 [$0], $1;"
    return types.void(bars, i, arrivals), _instruction(text, "sr")


@intrinsic
def publish_barriers(typing_context):
    """The barriers that this thread has made are there for the copy engine and, behind a barrier, for all."""
    return types.void(), _instruction("fence.mbarrier_init.release.cluster;", "")


@intrinsic
def barrier_expect(typing_context, bars, i, count):
    """Arrive at barrier i, and let its phase wait for `count` bytes more."""
    text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
    return types.void(bars, i, count), _instruction(text, "sr")


@intrinsic
def barrier_arrive(typing_context, bars, i):
    """Arrive at barrier i: what this thread did before is done for who waits for the phase."""
    return types.void(bars, i), _instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", "s")


@intrinsic
def barrier_arrive_at(typing_context, bars, i, rank):
    """Arrive at barrier i of the block of that rank in the cluster: this thread, and its wgmma, have read what
    they had to. What it wrote, the other block does not see by this: that would take a fence of the whole GPU.
    """
    text = (
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; mbarrier.arrive.shared::cluster.b64 _, [there]; }"
    )
    return types.void(bars, i, rank), _instruction(text, "sr")


@intrinsic
def barrier_wait(typing_context, bars, i, parity):
    """Wait until barrier i has completed the phase of this parity: 0 for the first, 1 for the second, 0, ...

    A barrier whose first phase is not complete lets those of parity 1 pass. After two seconds the thread gives
    up, and the launch ends as a failure, so that no kernel waits for ever.
    """
    text = (
        "{ .reg .pred done; .reg .b64 start, now; "
        "mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @done bra ARRIVED; "
        "mov.u64 start, %globaltimer; "
        "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @done bra ARRIVED; "
        f"mov.u64 now, %globaltimer; sub.u64 now, now, start; setp.lt.u64 done, now, {PATIENCE}; "
        "@done bra AGAIN; trap; ARRIVED: }"
    )
    return types.void(bars, i, parity), _instruction(text, "sr")


# --- the matrix unit ---


@intrinsic
def descriptor(typing_context, tiles, offset, leading, stride):
    """Where an operand of wgmma begins, tiles[offset], and its leading and stride byte offsets; swizzled.

    K-major (rows along k): stride is from eight rows to the next eight, 1024 bytes in a tile of 128-byte rows; a
    stride of 512 or 256 says that rows, and the swizzle, are 64 or 32 bytes wide; leading is not used. Row-major
    B: a panel is 64 columns wide, each k a row of 128 bytes; leading is from panel to panel, stride from eight k
    to the next eight. A descriptor moves by `descriptor + uint64(bytes >> 4)`.
    """

    def generate(context, builder, signature, args):
        kinds = signature.args
        start = _shared_address(context, builder, kinds[0], args[0], args[1], kinds[1])
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


def _wgmma(shape, modifiers, registers=0):
    """Code for a wgmma of `shape`, N in it; the sums are operands of the instruction, read and written.

    `registers`: those of a thread that A is in; 0: it is in shared memory.
    """

    def words(context, builder, signature, args, n, count, kind):
        """The addresses of `count` values from array n, index n + 1 of the arguments on."""
        index = context.cast(builder, args[n + 1], signature.args[n + 1], types.int64)
        data = builder.gep(_data(context, builder, signature.args[n], args[n]), [index])
        data = builder.bitcast(data, kind.as_pointer())
        return [builder.gep(data, [WORD(m)]) for m in range(count)]

    def typed(*types_given):
        columns = _literal(types_given[-1])
        if columns is None:
            return None
        count = columns // 2

        def generate(context, builder, signature, args):
            sums = words(context, builder, signature, args, 0, count, FLOAT)
            names = ", ".join(f"${n}" for n in range(count))
            if registers:
                left = [builder.load(one) for one in words(context, builder, signature, args, 2, registers, WORD)]
                a = ", ".join(f"${count + n}" for n in range(registers))
                a, kinds = f"{{{a}}}", ["r"] * registers
            else:
                left, a, kinds = [args[-3]], f"${count}", ["l"]
            text = f"wgmma.mma_async.sync.aligned.{shape.format(N=columns)} "
            text += f"{{{names}}}, {a}, ${count + len(left)}, 1, 1, 1{modifiers};"
            constraints = ["=f"] * count + kinds + ["l"] + [str(n) for n in range(count)] + ["~{memory}"]
            operands = [*left, args[-2], *(builder.load(one) for one in sums)]
            result = ir.LiteralStructType([FLOAT] * count)
            found = _assembly(builder, result, text, ",".join(constraints), operands)
            for n, one in enumerate(sums):
                builder.store(builder.extract_value(found, n), one)
            return context.get_dummy_value()

        descriptors = [types.uint64] if registers else [types.uint64] * 2
        return types.void(*types_given[: -1 - len(descriptors)], *descriptors, types_given[-1]), generate

    return typed


@intrinsic
def wgmma_f16(typing_context, acc, i, tiles, a, b, N):
    """Start the warpgroup's acc[i:i+N/2] += A (64 x 16) @ B (16 x N), float16, K-major, at descriptors a and b.

    N is a constant, a multiple of 8 up to 256. Thread t, warp w = t // 32 % 4 of the warpgroup, lane l = t % 32:
    acc[i + 4j + e] = C[16 w + l // 4 + 8 (e // 2), 8 j + 2 (l % 4) + e % 2]. wgmma_fence comes before,
    wgmma_commit after; until wgmma_wait the sums, and the tiles, belong to the matrix unit. `tiles`, where the
    operands lie, is there for the tracer.
    """
    return _wgmma("m64n{N}k16.f32.f16.f16", ", 0, 0")(acc, i, tiles, a, b, N)


@intrinsic
def wgmma_f16_rows(typing_context, acc, i, tiles, a, b, N):
    """wgmma_f16 with B row-major in memory: rows run along n."""
    return _wgmma("m64n{N}k16.f32.f16.f16", ", 0, 1")(acc, i, tiles, a, b, N)


@intrinsic
def wgmma_tf32(typing_context, acc, i, tiles, a, b, N):
    """Start acc[i:i+N/2] += A (64 x 8) @ B (8 x N), K-major; float32, read as TF32: 13 bits are cut off."""
    return _wgmma("m64n{N}k8.f32.tf32.tf32", "")(acc, i, tiles, a, b, N)


@intrinsic
def wgmma_tf32_registers(typing_context, acc, i, frag, j, tiles, b, N):
    """wgmma_tf32 with A in registers, frag[j:j+4] of each thread, untouched until wgmma_wait.

    Thread t, warp w, lane l as in wgmma_f16: A[16 w + l // 4, l % 4], the same of row + 8, then both again 4
    columns to the right.
    """
    return _wgmma("m64n{N}k8.f32.tf32.tf32", "", registers=4)(acc, i, frag, j, tiles, b, N)


@intrinsic
def wgmma_f16_registers(typing_context, acc, i, frag, j, tiles, b, N):
    """wgmma_f16 with A in registers, frag[j:j+8] of each thread, untouched until wgmma_wait.

    Thread t, warp w, lane l as in wgmma_f16: two values from A[16 w + l // 4, 2 (l % 4)] on, the same of row + 8,
    then both again 8 columns to the right: what ldmatrix4 gives for 16 x 16 values.
    """
    return _wgmma("m64n{N}k16.f32.f16.f16", ", 0", registers=4)(acc, i, frag, j, tiles, b, N)


@intrinsic
def wgmma_f16_rows_registers(typing_context, acc, i, frag, j, tiles, b, N):
    """wgmma_f16_registers with B row-major in memory: rows run along n."""
    return _wgmma("m64n{N}k16.f32.f16.f16", ", 1", registers=4)(acc, i, frag, j, tiles, b, N)


@intrinsic
def wgmma_fence(typing_context):
    """What the warpgroup's threads did to their sums is done for the wgmma that follow."""
    return types.void(), _instruction("wgmma.fence.sync.aligned;", "")


@intrinsic
def wgmma_commit(typing_context):
    """The wgmma that the warpgroup has started since its last wgmma_commit become a group."""
    return types.void(), _instruction("wgmma.commit_group.sync.aligned;", "")


@intrinsic
def wgmma_wait(typing_context, pending):
    """Wait until at most `pending` groups, the youngest, of this warpgroup are under way; a constant."""
    if _literal(pending) is None:
        return None
    text = f"wgmma.wait_group.sync.aligned {pending.literal_value};"
    return types.void(pending), _instruction(text, "-")


# --- the copy engine ---

LOAD = "cp.async.bulk.tensor.{form}.mbarrier::complete_tx::bytes{multicast} [$0], [$1, {{{at}}}], [$2]{more};"


def _load(form, coordinates, offsets, multicast):
    """Code for a load: to, map, barrier, coordinates and offsets, innermost last, a mask of blocks."""

    def generate(context, builder, signature, args):
        kinds = signature.args
        to, bar = (_shared_address(context, builder, kinds[n], args[n], args[n + 1], kinds[n + 1]) for n in (0, 3))
        operands = [to, builder.ptrtoint(_data(context, builder, kinds[2], args[2]), LONG), bar]
        rest = list(zip(args[5:], kinds[5:], strict=True))
        where, taps, mask = (
            rest[:coordinates],
            rest[coordinates : coordinates + offsets],
            rest[coordinates + offsets :],
        )
        for value, kind in reversed(where):
            operands.append(context.cast(builder, value, kind, types.int32))
        for value, kind in (*reversed(taps), *mask):
            operands.append(context.cast(builder, value, kind, types.uint16))
        names = [f"${n}" for n in range(len(operands))]
        more = ""
        if offsets:
            more = f", {{{', '.join(names[3 + coordinates : 3 + coordinates + offsets])}}}"
        if multicast:
            more += f", {names[-1]}"
        text = LOAD.format(
            form=form,
            multicast=".multicast::cluster" if multicast else "",
            at=", ".join(names[3 : 3 + coordinates]),
            more=more,
        )
        constraints = ["r", "l", "r"] + ["r"] * coordinates + ["h"] * (offsets + multicast) + ["~{memory}"]
        _assembly(builder, ir.VoidType(), text, ",".join(constraints), operands)
        return context.get_dummy_value()

    return generate


TILED, IM2COL = "2d.shared::cluster.global.tile", "5d.shared::cluster.global.im2col"


@intrinsic
def tma_load2(typing_context, tiles, i, map, bars, b, row, column):
    """Start tiles[i:] = the map's box from (row, column) on, swizzled, zeros outside; one thread asks.

    Its bytes, those outside too, count at barrier b.
    """
    return types.void(tiles, i, map, bars, b, row, column), _load(TILED, 2, 0, False)


@intrinsic
def tma_load2_multicast(typing_context, tiles, i, map, bars, b, row, column, mask):
    """tma_load2 to the same place in each block of the cluster whose bit is set, counted at its barrier b."""
    return types.void(tiles, i, map, bars, b, row, column, mask), _load(TILED, 2, 0, True)


@intrinsic
def tma_load_im2col(typing_context, tiles, i, map, bars, b, n, d, h, w, c, t, r, s):
    """Start tiles[i:] = the map's pixels from base pixel (n, d, h, w) on at tap (t, r, s), channels from c on.

    t, r and s are offsets in pixels: a tap's index times the dilation. Rows of the tile are pixels. Barrier and
    swizzle are those of tma_load2.
    """
    return types.void(tiles, i, map, bars, b, n, d, h, w, c, t, r, s), _load(IM2COL, 5, 3, False)


@intrinsic
def tma_load_im2col_multicast(typing_context, tiles, i, map, bars, b, n, d, h, w, c, t, r, s, mask):
    """tma_load_im2col to the same place in every block of the cluster whose bit is set."""
    return types.void(tiles, i, map, bars, b, n, d, h, w, c, t, r, s, mask), _load(IM2COL, 5, 3, True)


@intrinsic
def tma_store2(typing_context, map, row, column, tiles, i):
    """Start the map's box from (row, column) on = tiles[i:], swizzled; nothing outside the array is written."""

    def generate(context, builder, signature, args):
        kinds = signature.args
        place = [context.cast(builder, args[n], kinds[n], types.int32) for n in (2, 1)]
        start = _shared_address(context, builder, kinds[3], args[3], args[4], kinds[4])
        operands = [builder.ptrtoint(_data(context, builder, kinds[0], args[0]), LONG), *place, start]
        text = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$0, {$1, $2}], [$3];"
        _assembly(builder, ir.VoidType(), text, "l,r,r,r,~{memory}", operands)
        return context.get_dummy_value()

    return types.void(map, row, column, tiles, i), generate


@intrinsic
def tma_commit(typing_context):
    """The stores that this thread has started since its last tma_commit become a group."""
    return types.void(), _instruction("cp.async.bulk.commit_group;", "")


@intrinsic
def tma_wait_read(typing_context, pending):
    """Wait until all but `pending` groups of this thread's stores have read shared memory; a constant."""
    if _literal(pending) is None:
        return None
    return types.void(pending), _instruction(f"cp.async.bulk.wait_group.read {pending.literal_value};", "-")


@intrinsic
def tma_wait(typing_context, pending):
    """Wait until all but `pending` groups of this thread's stores are in global memory; a constant."""
    if _literal(pending) is None:
        return None
    return types.void(pending), _instruction(f"cp.async.bulk.wait_group {pending.literal_value};", "-")


# --- clusters, registers ---


@intrinsic
def cluster_rank(typing_context):
    """The block's number in its cluster."""

    def generate(context, builder, signature, args):
        return _assembly(builder, WORD, "mov.u32 $0, %cluster_ctarank;", "=r", [])

    return types.uint32(), generate


@intrinsic
def cluster_sync(typing_context):
    """Wait for all threads of all blocks of the cluster; what they wrote before is there."""
    text = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
    return types.void(), _instruction(text, "")


@intrinsic
def take_registers(typing_context, count):
    """Let each thread of this warpgroup hold `count` registers, as soon as others gave them; a multiple of 8."""
    if _literal(count) is None:
        return None
    return types.void(count), _instruction(f"setmaxnreg.inc.sync.aligned.u32 {count.literal_value};", "-")


@intrinsic
def give_registers(typing_context, count):
    """Keep `count` registers for each thread of this warpgroup, and give the others away; a multiple of 8."""
    if _literal(count) is None:
        return None
    return types.void(count), _instruction(f"setmaxnreg.dec.sync.aligned.u32 {count.literal_value};", "-")

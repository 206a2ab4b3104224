"""Tensor cores and what feeds them: instructions that a whole warp carries out, and copies that arrive in groups.

``mma_m16n8k16`` multiplies fragments: each of the 32 lanes holds a few elements of A, B and the sum. With
``g = lane // 4`` and ``t = lane % 4`` a lane holds, in this order,

- of A (16 x 16): (g, 2t) and its right neighbour, the same of row g + 8, then both again 8 columns on;
- of B (16 x 8): (2t, g) and the element below it, then the same 8 rows on;
- of the sum (16 x 8): (g, 2t) and its right neighbour, then the same of row g + 8.

``mma_m16n8k8`` takes float32 as TF32: of A (16 x 8) (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); of B (8 x 8)
(t, g) and (t + 4, g). All 32 lanes of a warp must come to such an instruction, and to ``ldmatrix4``, together. Arrays
are addressed by one flat row-major offset, as in ``lessons/wide.py``. Compute capability 8.0 or newer.
"""

import sys

import numpy as np
from numba import config, cuda, float32, types
from numba.types import float16

WARP = 32
HALVES = 8  # float16 values in 16 bytes


def aligned8(*arrays):
    """True if every row of every float16 array starts on a 16-byte boundary."""
    return all(array.shape[1] % HALVES == 0 and _address(array) % 16 == 0 for array in arrays)


def aligned2(*arrays):
    """True if every row of every float16 array starts on a 4-byte boundary."""
    return all(array.shape[1] % 2 == 0 and _address(array) % 4 == 0 for array in arrays)


def _address(array):
    on_gpu = getattr(array, "__cuda_array_interface__", None)
    return (on_gpu or array.__array_interface__)["data"][0]


if config.ENABLE_CUDASIM:
    import threading

    from numba.cuda.simulator.kernel import _get_kernel_context

    from lessons import wide

    # --- lanes that meet ---

    _PATIENCE = 30.0  # seconds that Numba's own simulator waits for a lane

    def _thread():
        """This thread's number in its block, and what belongs to the block as long as it runs."""
        context = _get_kernel_context()
        block = getattr(context, "block", None)
        if block is not None:  # the workbook's simulator, whose threads take turns
            return context.thread.number, vars(block).setdefault("of_lanes", {})
        thread = threading.current_thread()
        return thread.thread_id, vars(thread._manager).setdefault("of_lanes", {})

    class _Warp:
        """The lanes of a warp in Numba's own simulator, where each is a thread of the operating system."""

        def __init__(self):
            self.gate = threading.Barrier(WARP, self._together)
            self.brought, self.places = [None] * WARP, [None] * WARP

        def meet(self, lane, place, value, join):
            self.brought[lane], self.places[lane], self.join = value, place, join
            try:
                self.gate.wait(_PATIENCE)
            except threading.BrokenBarrierError:
                raise RuntimeError(_apart(*place)) from None
            return self.joined

        def _together(self):
            if len(set(self.places)) > 1:
                raise RuntimeError(_apart(*self.places[0]))
            self.joined = self.join(self.brought)

    def _apart(call, line):
        return f"{call} at line {line}: all {WARP} lanes of a warp must come to it together, and some do not"

    def _meet(value, join):
        """Wait until all lanes of the warp have come to this call; this lane's part of join([what each brings])."""
        helper = sys._getframe(1)
        call, frame = helper.f_code.co_name, helper.f_back
        number, state = _thread()
        warp, lane = divmod(number, WARP)
        block = getattr(_get_kernel_context(), "block", None)
        if block is None:
            met = state.setdefault(("warp", warp), _Warp())
            return met.meet(lane, (call, frame.f_lineno), value, join)[lane]
        brought = block.meet(call, 0xFFFFFFFF, value, frame)
        if "joined" not in brought:
            if len(brought) < WARP:
                raise RuntimeError(_apart(call, frame.f_lineno))
            brought["joined"] = join([brought[i] for i in range(WARP)])
        return brought["joined"][lane]

    # --- elements ---

    def _require(array, i, count, dtype):
        if array.dtype != dtype:
            raise TypeError(f"an array of {np.dtype(dtype)} is needed, and this is one of {array.dtype}")
        if i < 0 or i + count > array.size:
            wrong = f"{i} is negative" if i < 0 else f"{i + count - 1} is out of bounds"
            raise IndexError(f"elements {i} to {i + count - 1} of an array of {array.size}: index {wrong}")

    def _read(array, i, count, dtype):
        """A copy of array[i:i+count]; raises IndexError and TypeError."""
        _require(array, i, count, dtype)
        return array.flat[i : i + count]

    def _write(array, i, values):
        _require(array, i, len(values), values.dtype)
        array.flat[i : i + len(values)] = values

    def _require_aligned(bits, step, *offsets):
        for offset in offsets:
            if offset % step:
                raise RuntimeError(f"misaligned {bits}-bit access: offset {offset} is not a multiple of {step}")

    # --- mma ---

    _LANES = np.arange(WARP)[:, None]
    _G, _T = _LANES // 4, _LANES % 4
    _E2, _E4, _E8 = (np.arange(count) for count in (2, 4, 8))
    # rows and columns of the elements that each lane holds
    _SUMS = _G + 8 * (_E4 // 2), 2 * _T + _E4 % 2
    _A16 = _G + 8 * (_E8 // 2 % 2), 2 * _T + _E8 % 2 + 8 * (_E8 // 4)
    _B16 = 2 * _T + _E4 % 2 + 8 * (_E4 // 2), _G + 0 * _E4
    _A8 = _G + 8 * (_E4 % 2), _T + 4 * (_E4 // 2)
    _B8 = _T + 4 * _E2, _G + 0 * _E2

    def _multiplied(depth, a_places, b_places):
        def join(brought):
            # Products are exact in float64, and the sum is rounded once. The hardware rounds in an order that NVIDIA
            # does not tell; where every partial sum fits float32, as in sums of small integers, both agree.
            sums, a, b = (np.array(part, np.float64) for part in zip(*brought, strict=True))
            left, right, result = np.empty((16, depth)), np.empty((depth, 8)), np.empty((16, 8))
            left[a_places], right[b_places], result[_SUMS] = a, b, sums
            return (result + left @ right)[_SUMS].astype(np.float32)

        return join

    _multiplied_16, _multiplied_8 = _multiplied(16, _A16, _B16), _multiplied(8, _A8, _B8)

    def _cut_to_tf32(values):
        return (np.array(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    def mma_m16n8k16(acc, i, a_frag, j, b_frag, k):
        fragments = (
            _read(acc, i, 4, np.float32),
            _read(a_frag, j, 8, np.float16),
            _read(b_frag, k, 4, np.float16),
        )
        _write(acc, i, _meet(fragments, _multiplied_16))

    def mma_m16n8k8(acc, i, a_frag, j, b_frag, k):
        fragments = (
            _read(acc, i, 4, np.float32),
            _cut_to_tf32(_read(a_frag, j, 4, np.float32)),
            _cut_to_tf32(_read(b_frag, k, 2, np.float32)),
        )
        _write(acc, i, _meet(fragments, _multiplied_8))

    def to_tf32(value):
        bits = np.float32(value).view(np.uint32)
        if bits & 0x7F800000 != 0x7F800000:  # neither infinite nor NaN
            bits = bits + np.uint32(0x1000)  # half of the last place that is kept
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)

    def to_half(value):
        return np.float16(value)

    # --- ldmatrix ---

    def _rows(tile, offset):
        """The row of 16 bytes that this lane names."""
        if tile.dtype not in (np.float16, np.float32):
            raise TypeError(f"a tile of float16 or float32 is needed, and this is one of {tile.dtype}")
        width = 16 // tile.dtype.itemsize
        _require_aligned(128, width, offset)
        return _read(tile, offset, width, tile.dtype)

    def _dealt(brought):
        """What each lane gets of four matrices of 8 rows."""
        matrices = np.array(brought).reshape(4, 8, -1)
        places = (_G, 2 * _T + _E2) if matrices.dtype == np.float16 else (_G, _T)
        return np.concatenate([matrix[places] for matrix in matrices], axis=1)

    def _dealt_transposed(brought):
        return np.concatenate([matrix[2 * _T + _E2, _G] for matrix in np.array(brought).reshape(4, 8, 8)], axis=1)

    def ldmatrix4(frag, i, tile, offset):
        _write(frag, i, _meet(_rows(tile, offset), _dealt))

    def ldmatrix4_transposed(frag, i, tile, offset):
        if tile.dtype != np.float16:
            raise TypeError(f"ldmatrix4_transposed takes a tile of float16, and this is one of {tile.dtype}")
        _write(frag, i, _meet(_rows(tile, offset), _dealt_transposed))

    def shared_address(tile, offset):
        return np.uint32(offset * tile.dtype.itemsize)

    def ldmatrix4_at(frag, i, tile, address):
        _require_aligned(128, 16, address)
        _write(frag, i, _meet(_rows(tile, int(address) // tile.dtype.itemsize), _dealt))

    def ldmatrix4_transposed_at(frag, i, tile, address):
        _require_aligned(128, 16, address)
        _write(frag, i, _meet(_rows(tile, int(address) // tile.dtype.itemsize), _dealt_transposed))

    # --- copies ---

    def _groups():
        """This thread's groups of copies that are on their way, the oldest first; the last one is still open."""
        number, state = _thread()
        return state.setdefault(("groups", number), [[]])

    def copy8_async(tile, i, array, offset):
        copy8_or_zero(tile, i, array, offset, True)

    def copy8_or_zero(tile, i, array, offset, inside):
        _require_aligned(128, HALVES, i)
        values = np.zeros(HALVES, np.float16)
        if inside:
            _require_aligned(128, HALVES, offset)
            values = _read(array, offset, HALVES, np.float16)
        # it may arrive at any time from now on: here as late as it may, and until then nobody finds a number there
        _write(tile, i, np.full(HALVES, np.nan, np.float16))
        if hasattr(tile, "under_way"):  # the workbook's simulator watches who reads it
            tile.under_way(i, i + HALVES)
        _groups()[-1].append((tile, i, values))

    def _arrive(copies):
        for tile, i, values in copies:
            _write(tile, i, values)

    def commit_group():
        _groups().append([])

    def wait_group(pending):
        groups = _groups()
        while len(groups) - 1 > pending:
            _arrive(groups.pop(0))

    def _wait_for_all():
        groups = _groups()
        for copies in groups:
            _arrive(copies)
        groups[:] = [[]]

    def _wait_async():
        sys.modules["lessons.tensorcores"]._wait_for_all()

    # wide.wait_async waits for these copies, too, under whatever name it was imported
    wide.wait_async.__code__ = _wait_async.__code__

    # --- halves, two and eight at a time ---

    def store2_rounded(array, offset, acc, i):
        _require_aligned(32, 2, offset)
        _write(array, offset, _read(acc, i, 2, np.float32).astype(np.float16))

    def store8(array, offset, registers, i):
        _require_aligned(128, HALVES, offset)
        _write(array, offset, _read(registers, i, HALVES, np.float16))

    def half_array(size):
        if size == 0:  # all of the dynamic shared memory
            return _get_kernel_context().shared.array(0, np.float16)
        line = sys._getframe(1)  # one array per line of the kernel, as cuda.shared.array does it
        arrays = _get_kernel_context().shared._allocations
        return arrays.setdefault((line.f_code.co_filename, line.f_lineno), np.full(size, np.nan, np.float16))

else:
    from llvmlite import ir
    from numba.cuda import cgutils
    from numba.cuda.extending import intrinsic

    BITS, WORD, FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
    WORD4 = ir.VectorType(WORD, 4)
    SHARED = 3  # LLVM's number of the shared address space

    @cuda.jit(device=True, inline="always")
    def half_array(size):
        """`size` float16 of shared memory from a 16-byte boundary on; the simulator's array() knows no alignment."""
        return cuda.shared.array(size, float16, alignment=16)

    def _pointer(context, builder, array_type, array, offset, to):
        data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
        return builder.bitcast(builder.gep(data, [offset]), to.as_pointer())

    def _shared_address(context, builder, array_type, array, offset):
        """32 bits reach all of shared memory, so the offset is not widened to 64."""
        data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
        start = builder.ptrtoint(builder.addrspacecast(data, WORD.as_pointer(SHARED)), WORD)
        offset = builder.trunc(offset, WORD) if offset.type.width > WORD.width else offset
        return builder.add(start, builder.mul(offset, WORD(array_type.dtype.bitwidth // 8)))

    def _words(builder, first, count):
        """The addresses of the `count` 32-bit words from `first` on."""
        return [builder.gep(first, [WORD(i)]) for i in range(count)]

    def _assembly(builder, result, text, constraints, operands):
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        return builder.call(ir.InlineAsm(kind, text, constraints, side_effect=True), operands)

    def _mma(text, a_words, b_words):
        def generate(context, builder, signature, args):
            fragments = [
                _pointer(context, builder, signature.args[n], args[n], args[n + 1], to)
                for n, to in ((0, FLOAT), (2, WORD), (4, WORD))
            ]
            sums = _words(builder, fragments[0], 4)
            left, right = _words(builder, fragments[1], a_words), _words(builder, fragments[2], b_words)
            operands = [builder.load(word) for word in (*left, *right, *sums)]
            constraints = ",".join(["=f"] * 4 + ["r"] * (a_words + b_words) + ["0", "1", "2", "3"])
            found = _assembly(builder, ir.LiteralStructType([FLOAT] * 4), text, constraints, operands)
            for n, one in enumerate(sums):
                builder.store(builder.extract_value(found, n), one)
            return context.get_dummy_value()

        return generate

    @intrinsic
    def mma_m16n8k16(typing_context, acc, i, a_frag, j, b_frag, k):
        """The warp's acc[i:i+4] += A (16 x 16, a_frag[j:j+8]) @ B (16 x 8, b_frag[k:k+4]); float16, sums float32.

        a_frag: A[group, 2 member], its right neighbour; the same 8 rows below; both again 8 columns to the right.
        b_frag: B[2 member, group], the element below it; both again 8 rows below. acc: C[group, 2 member], its right
        neighbour; the same 8 rows below.
        """
        text = (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$0, $1, $2, $3};"
        )
        return types.void(acc, i, a_frag, j, b_frag, k), _mma(text, 4, 2)

    @intrinsic
    def mma_m16n8k8(typing_context, acc, i, a_frag, j, b_frag, k):
        """The warp's acc[i:i+4] += A (16 x 8, a_frag[j:j+4]) @ B (8 x 8, b_frag[k:k+2]); float32, read as TF32.

        a_frag: A[group, member], 8 rows below; both again 4 columns to the right. b_frag: B[member, group], and 4
        rows below. acc: as in mma_m16n8k16. The last 13 bits of a_frag and b_frag are cut off: see to_tf32.
        """
        text = (
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$0, $1, $2, $3};"
        )
        return types.void(acc, i, a_frag, j, b_frag, k), _mma(text, 4, 2)

    @intrinsic
    def to_tf32(typing_context, value):
        """The float32 nearest to `value` that has 10 bits of fraction, as TF32 has."""

        def generate(context, builder, signature, args):
            word = _assembly(builder, WORD, "cvt.rna.tf32.f32 $0, $1;", "=r,f", args)
            return builder.bitcast(word, FLOAT)

        return types.float32(types.float32), generate

    @intrinsic
    def to_half(typing_context, value):
        """The float16 nearest to a float32; Numba's own conversion goes by way of float64."""

        def generate(context, builder, signature, args):
            return _assembly(builder, BITS, "cvt.rn.f16.f32 $0, $1;", "=h,f", args)

        return float16(types.float32), generate

    def _load_matrices(context, builder, signature, args, text, address):
        result = ir.LiteralStructType([WORD] * 4)
        found = _assembly(builder, result, text, "=r,=r,=r,=r,r,~{memory}", [address])
        first = _pointer(context, builder, signature.args[0], args[0], args[1], WORD)
        for n, word in enumerate(_words(builder, first, 4)):
            builder.store(builder.extract_value(found, n), word)
        return context.get_dummy_value()

    def _ldmatrix(text):
        def generate(context, builder, signature, args):
            address = _shared_address(context, builder, signature.args[2], args[2], args[3])
            return _load_matrices(context, builder, signature, args, text, address)

        return generate

    def _ldmatrix_at(text):
        def generate(context, builder, signature, args):
            return _load_matrices(context, builder, signature, args, text, args[3])

        return generate

    LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
    LDMATRIX_TRANSPOSED = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];"

    @intrinsic
    def ldmatrix4(typing_context, frag, i, tile, offset):
        """Four 8 x 8 matrices of shared memory: each lane says where a row begins, and gets two elements of each.

        Lanes 0-7 give the rows of the first matrix, 8-15 of the second, and so on; rows are 16 bytes, on a 16-byte
        boundary. frag[i:i+2] = the first matrix's [group, 2 member] and its right neighbour, frag[i+2:i+4] the
        second's, to frag[i+8]. Rows of 4 float32 go to frag[i:i+4]: [group, member] of each.
        """
        return types.void(frag, i, tile, offset), _ldmatrix(LDMATRIX)

    @intrinsic
    def ldmatrix4_transposed(typing_context, frag, i, tile, offset):
        """ldmatrix4 of float16 that gives [2 member, group] and the element below it."""
        return types.void(frag, i, tile, offset), _ldmatrix(LDMATRIX_TRANSPOSED)

    @intrinsic
    def shared_address(typing_context, tile, offset):
        """Where tile[offset] lies in shared memory, in bytes; in the simulator, from the tile's beginning."""

        def generate(context, builder, signature, args):
            return _shared_address(context, builder, signature.args[0], *args)

        return types.uint32(tile, offset), generate

    @intrinsic
    def ldmatrix4_at(typing_context, frag, i, tile, address):
        """ldmatrix4 of rows of the tile that begin at a shared_address: nothing is left to work out for a load."""
        return types.void(frag, i, tile, types.uint32), _ldmatrix_at(LDMATRIX)

    @intrinsic
    def ldmatrix4_transposed_at(typing_context, frag, i, tile, address):
        """ldmatrix4_transposed of rows of the tile that begin at a shared_address."""
        return types.void(frag, i, tile, types.uint32), _ldmatrix_at(LDMATRIX_TRANSPOSED)

    @intrinsic
    def store8(typing_context, array, offset, tile, i):
        """array[offset:offset+8] = tile[i:i+8], float16, both on 16-byte boundaries."""

        def generate(context, builder, signature, args):
            source = _pointer(context, builder, signature.args[2], args[2], args[3], WORD4)
            target = _pointer(context, builder, signature.args[0], args[0], args[1], WORD4)
            builder.store(builder.load(source, align=16), target, align=16)
            return context.get_dummy_value()

        return types.void(array, offset, tile, i), generate

    @intrinsic
    def copy8_async(typing_context, tile, i, array, offset):
        """Start tile[i:i+8] = array[offset:offset+8], float16, both on 16-byte boundaries."""

        def generate(context, builder, signature, args):
            target = _shared_address(context, builder, signature.args[0], args[0], args[1])
            source = _pointer(context, builder, signature.args[2], args[2], args[3], WORD)
            text = "cp.async.cg.shared.global.L2::128B [$0], [$1], 16;"
            _assembly(builder, ir.VoidType(), text, "r,l,~{memory}", [target, source])
            return context.get_dummy_value()

        return types.void(tile, i, array, offset), generate

    @intrinsic
    def copy8_or_zero(typing_context, tile, i, array, offset, inside):
        """copy8_async, or tile[i:i+8] = 0 without reading the array where not `inside`."""

        def generate(context, builder, signature, args):
            target = _shared_address(context, builder, signature.args[0], args[0], args[1])
            source = _pointer(context, builder, signature.args[2], args[2], args[3], WORD)
            read = builder.select(args[4], WORD(16), WORD(0))  # what is not read is filled with zeros
            text = "cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;"
            _assembly(builder, ir.VoidType(), text, "r,l,r,~{memory}", [target, source, read])
            return context.get_dummy_value()

        return types.void(tile, i, array, offset, types.boolean), generate

    @intrinsic
    def commit_group(typing_context):
        """The copies that this thread has started since its last commit_group become a group."""

        def generate(context, builder, signature, args):
            _assembly(builder, ir.VoidType(), "cp.async.commit_group;", "~{memory}", [])
            return context.get_dummy_value()

        return types.void(), generate

    @intrinsic
    def wait_group(typing_context, pending):
        """Wait until at most `pending` groups, the youngest, of this thread are on their way; a constant."""
        if not isinstance(pending, types.IntegerLiteral):
            return None

        def generate(context, builder, signature, args):
            text = f"cp.async.wait_group {pending.literal_value};"
            _assembly(builder, ir.VoidType(), text, "~{memory}", [])
            return context.get_dummy_value()

        return types.void(pending), generate

    @intrinsic
    def store2_rounded(typing_context, array, offset, acc, i):
        """array[offset:offset+2] = acc[i:i+2], each rounded to the nearest float16, to a 4-byte boundary."""

        def generate(context, builder, signature, args):
            array_type, _, acc_type, _ = signature.args
            sums = _words(builder, _pointer(context, builder, acc_type, args[2], args[3], FLOAT), 2)
            low, high = (builder.load(one) for one in sums)
            pair = _assembly(builder, WORD, "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high])
            builder.store(pair, _pointer(context, builder, array_type, args[0], args[1], WORD), align=4)
            return context.get_dummy_value()

        return types.void(array, offset, acc, i), generate


@cuda.jit(device=True, inline="always")
def copy1_guarded(tile, i, array, row, column):
    """tile[i] = array[row, column], or zero outside, at once."""
    rows, columns = array.shape
    tile[i] = array[row, column] if row < rows and column < columns else to_half(float32(0.0))


@cuda.jit(device=True, inline="always")
def copy8_guarded(tile, i, array, row, column, wide):
    """copy8_async of array[row, column:column+8], zeros outside; one by one, and at once, unless rows are aligned."""
    rows, columns = array.shape
    if wide:
        inside = row < rows and column < columns
        copy8_or_zero(tile, i, array, row * columns + column if inside else 0, inside)
    else:
        for v in range(HALVES):
            copy1_guarded(tile, i + v, array, row, column + v)


@cuda.jit(device=True, inline="always")
def store2_guarded(array, row, column, acc, i, paired):
    """array[row, column:column+2] = acc[i:i+2], rounded, nothing outside; one by one unless rows are even."""
    rows, columns = array.shape
    if row < rows:
        if paired and column < columns:
            store2_rounded(array, row * columns + column, acc, i)
        else:
            for v in range(2):
                if column + v < columns:
                    array[row, column + v] = to_half(acc[i + v])


@cuda.jit(device=True, inline="always")
def store8_guarded(array, row, column, tile, i, wide):
    """array[row, column:column+8] = tile[i:i+8], nothing outside; one by one unless rows are aligned."""
    rows, columns = array.shape
    if wide and row < rows and column < columns:
        store8(array, row * columns + column, tile, i)
    else:
        for v in range(HALVES):
            if row < rows and column + v < columns:
                array[row, column + v] = tile[i + v]

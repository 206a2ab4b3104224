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
from numba import config

WARP = 32
HALVES = 8  # float16 values in 16 bytes


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

    def load8(registers, i, array, offset):
        _require_aligned(128, HALVES, offset)
        _write(registers, i, _read(array, offset, HALVES, np.float16))

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
    pass  # the intrinsics around PTX stand here

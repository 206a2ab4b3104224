"""wgmma: four warps multiply tiles of shared memory that descriptors name, into registers that they may not touch.

Bits and orders are those of the PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions:
Matrix Descriptor Format" and "Tensors" (swizzles of 128, 64 and 32 bytes). Addresses are bytes from the beginning of
a block's tiles, which lie on a 1024-byte boundary.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import codes
from common.trace import helpers, values, views
from common.trace.cost import WARP, Cost, Ints, Key
from common.trace.hopper.tiles import ROW, WARPGROUP, WGMMA, swizzled
from common.trace.intrinsics import on_engines, one_number
from common.trace.races import Access
from common.trace.shared import READ
from common.trace.state import Mask, State
from common.trace.values import FLOAT32, Value
from common.trace.views import View

ATOM = 8 * ROW  # after so many bytes the swizzle repeats
ROWS = 64  # of A, and of the sums
KEPT = 14  # bits of the largest addend that a sum of e4m3 keeps
_SPANS = {1: 128, 2: 64, 3: 32}  # bytes of a row, by the descriptor's field
_THREAD = np.arange(WARPGROUP)


# --- where operands lie ---


class Descriptor(NamedTuple):
    """Fields in bytes: from the beginning of shared memory, of the offsets, and of the swizzle's rows."""

    start: int
    leading: int
    stride: int
    swizzle: int  # 0: none

    @staticmethod
    def of(bits: int) -> Descriptor:
        start, leading, stride = ((bits >> low & 0x3FFF) << 4 for low in (0, 16, 32))
        return Descriptor(start, leading, stride, _SPANS.get(bits >> 62 & 3, 0))

    def wrong(self, groups: int, any_row: bool = False) -> str:
        """What no operand of so many groups of eight rows may have, in words; or nothing. ``any_row``: it may begin
        in the middle of a group, as B of float16 or int8 along k was seen to do on an H200; others are not known."""
        if not self.swizzle:
            return "names no swizzle, and tiles have one"
        whole = 8 * self.swizzle
        if self.start % whole >= self.swizzle and not any_row:
            return f"begins at byte {self.start}, in row {self.start % whole // self.swizzle} of a group of eight"
        if groups > 1 and (self.stride < whole or self.stride % whole):
            return f"has a stride of {self.stride} bytes, and eight rows of {self.swizzle} bytes take {whole}"
        return ""


def encoded(start: Any, leading: Any, stride: Any) -> Any:
    """The bits of a descriptor whose offsets are given in bytes; the swizzle is that of rows of stride / 8 bytes."""
    start, leading, stride = (np.asarray(value).astype(np.uint64) for value in (start, leading, stride))
    found = np.select([stride == 512, stride == 256], [2, 3], 1).astype(np.uint64) << np.uint64(62)
    for value, low in ((start, 0), (leading, 16), (stride, 32)):
        found = found | (value >> np.uint64(4) & np.uint64(0x3FFF)) << np.uint64(low)
    return found[()]


@lru_cache(maxsize=512)
def operand(rows: int, columns: int, itemsize: int, at: Descriptor) -> Ints:
    """Elements (row, k) of a K-major operand, with k no wider than the swizzle; or (k, n) of one whose rows run along
    n, in panels as wide as the swizzle."""
    row, column = np.arange(rows)[:, None], np.arange(columns)[None]
    panel, byte = np.divmod(column * itemsize, at.swizzle)
    address = at.start + panel * at.leading + row // 8 * at.stride + row % 8 * at.swizzle + byte
    return np.asarray(swizzled(address, at.swizzle) // itemsize)


@on_engines
def descriptor(state: State, line: int, tiles: View, offset: Value, leading: Value, stride: Value) -> Value:
    start = values.mul(offset, tiles.dtype.itemsize)
    for name, value in (("address", start), ("leading", leading), ("stride", stride)):
        numbers = np.broadcast_to(np.asarray(value).astype(np.int64), state.mask.bits.shape)
        wrong = (numbers % 16 != 0) | (numbers < 0) | (numbers >= 1 << 18)
        text = f"{name} is {state.first(numbers, wrong)} bytes: must be a multiple of 16 from 0 to {(1 << 18) - 16}"
        state.fault("descriptor", line, tiles.name, text, wrong)
    return encoded(start, leading, stride)


# --- instructions ---


class Form(NamedTuple):
    """An instruction."""

    name: str
    depth: int  # the k that it takes
    dtype: Any  # of its operands
    rows: bool = False  # does B run along n
    registers: bool = False  # is A in registers
    sums: Any = FLOAT32
    packed: Any = None  # tiles are of words: what a word holds two or four of; depth counts words
    sparse: bool = False  # of every four values of A two are kept


HALF, INT32 = np.dtype(np.float16), np.dtype(np.int32)
E4M3 = Form("wgmma_e4m3", 8, FLOAT32, packed=codes.E4M3)
F16 = Form("wgmma_f16", 16, HALF)
S8 = Form("wgmma_s8", 8, INT32, sums=INT32, packed=np.dtype(np.int8))
_BOTH = (  # with A in tiles, or in registers
    F16, S8, Form("wgmma_f16_rows", 16, HALF, rows=True), Form("wgmma_tf32", 8, FLOAT32),
)  # fmt: skip
_FORMS = (
    E4M3, Form("wgmma_bf16", 8, FLOAT32, packed=codes.BFLOAT16), Form("wgmma_sp_f16", 32, HALF, sparse=True), *_BOTH,
    *(form._replace(name=f"{form.name}_registers", registers=True) for form in _BOTH),
)  # fmt: skip


class Sums:
    """The 64 x N sums of a warpgroup that products are being added to, in these ``registers``."""

    def __init__(self, product: Product, registers: range) -> None:
        state, lead, view = product.state, product.lead, product.view
        self.name, self.storage, self.registers = view.name, view.storage, registers
        self.line, self.lead, self.open = product.line, lead, 0  # products under way
        self.mask = Mask((state.lane_numbers >= lead) & (state.lane_numbers < lead + WARPGROUP))
        self.matrix = np.zeros((ROWS, 2 * len(registers)), view.dtype)
        r = np.arange(len(registers))[:, None]  # rows and columns of the registers' elements: (register, thread)
        rows = 16 * (_THREAD // WARP) + _THREAD % WARP // 4 + 8 * (r % 4 // 2)
        self.places = rows, 8 * (r // 4) + 2 * (_THREAD % 4) + r % 2
        if product.add:  # else what they hold is not read
            whole, state.mask = state.mask, self.mask
            held = [self.storage.value_at(state, view, register, self.line) for register in registers]
            state.mask = whole
            self.matrix[self.places] = helpers.by_lane(state, held)[lead : lead + WARPGROUP].T
        for register in registers:
            self.storage.lacking[register] = self.storage.lacking.get(register, state.none.bits) | self.mask.bits
        self.storage.flight.append(self)

    def land(self, state: State) -> None:
        storage = self.storage
        storage.flight.remove(self)
        if not all(r in storage.lacking and storage.lacking[r][self.mask.bits].all() for r in self.registers):
            text = f"{self.name} is written by its threads while wgmma is under way: after wgmma_wait they may"
            state.fault("wgmma-order", self.line, self.name, text, self.mask.bits, lane=self.lead)
        views.spread_taint(state)
        whole = np.zeros((len(self.registers), len(state.lane_numbers)), self.matrix.dtype)
        whole[:, self.lead : self.lead + WARPGROUP] = self.matrix[self.places]
        for register, value in zip(self.registers, whole, strict=True):
            storage.put(state, register, value, self.mask)
            if storage.fenced is not None:
                storage.fenced[register] = storage.values[register]


def warpgroups(state: State, line: int, name: str) -> list[int]:
    """The first lanes of the warpgroups that come here whole; the others are at fault."""
    size, found = state.lanes_per_block, []
    for block, first in np.ndindex(state.blocks_at_once, -(-size // WARPGROUP)):
        lead = block * size + first * WARPGROUP
        active = state.mask.bits[lead : min(lead + WARPGROUP, (block + 1) * size)]
        if len(active) == WARPGROUP and active.all():
            found.append(lead)
        elif active.any():
            text = f"{name} is for all {WARPGROUP} threads of a warpgroup together, and some do not come to it"
            state.engines.teams.require_whole(line, name)
            state.fault("warp-sync", line, "", text, lane=lead + int(np.argmax(active)), count=int(active.sum()))
    return found


class Product:
    """One instruction of the warpgroup from the lane ``lead`` on; ``asked``: its arguments by name."""

    def __init__(self, state: State, line: int, form: Form, lead: int, asked: dict[str, Any]) -> None:
        self.state, self.line, self.form, self.lead, self.asked = state, line, form, lead, asked
        self.tiles: View = asked["tiles"]
        self.view: View = asked["acc"]
        self.add = bool(self._same(asked["add"], "answers to whether it adds"))
        self.sums: Any = None
        self.places: dict[str, Ints] = {}  # of the operands in tiles, by row, or column, and k
        self.held: list[Value] = []  # A, where it is in registers
        self.stages: list[int] = []  # of the pipeline, that it reads

    def _fault(self, kind: str, array: str, text: str) -> None:
        self.state.fault(kind, self.line, array, text, lane=self.lead, count=WARPGROUP)

    def _same(self, value: Value, what: str = "descriptors") -> int:
        """A number that all threads of the warpgroup must agree on."""
        if np.ndim(value) == 0:
            return int(value)
        own = value[self.lead : self.lead + WARPGROUP]
        if (own != own[0]).any():
            self._fault("warp-sync", "", f"{self.form.name}: threads of a warpgroup name different {what}")
        return int(own[0])

    def _find(self, side: str, rows: int) -> None:
        """Find the operand's elements among all blocks' tiles; a fault where its descriptor is wrong."""
        form, found = self.form, Descriptor.of(self._same(self.asked[side.lower()]))
        along_n, storage = side == "B" and form.rows, self.tiles.storage
        depth = form.depth // 2 if side == "A" and form.sparse else form.depth
        text = found.wrong((depth if along_n else rows) // 8, side == "B" and form in (F16, S8))
        if text:
            self._fault("descriptor", self.tiles.name, f"the descriptor of {side} {text}")
            if not found.swizzle:
                return
        extents = (depth, rows) if along_n else (rows, depth)
        places = operand(*extents, form.dtype.itemsize, found)
        last = int(places.max())
        if last >= storage.size:
            text = f"{self.tiles.name} is read at {last} by the descriptor of {side}, its extent is {storage.size}"
            self._fault("outside", self.tiles.name, text)
            return
        places = places + int(self.state.block_number[self.lead]) * storage.size
        self.places[side] = places.T if along_n else places

    def _require_fenced(self, view: View, registers: range) -> None:
        """A fault if threads have set or read the registers since their last wgmma_fence (PTX ISA, wgmma.fence)."""
        now, then = view.storage.values, view.storage.fenced
        if any(sums.lead == self.lead and registers.start in sums.registers for sums in view.storage.flight):
            return
        if then is None or any(now[r] is not then[r] for r in registers):
            read = then is not None and any(then[r] is READ for r in registers)
            verb = "read" if read else "set"
            text = f"{view.name} is {verb} by its threads, and no wgmma_fence follows before wgmma takes it"
            self._fault("wgmma-order", view.name, text)

    def begin(self, registers: range) -> None:
        """Add to the sums that are on their way already, or to those that the registers hold."""
        state, form, tiles, acc = self.state, self.form, self.tiles.storage, self.view
        if form.registers:
            frag, count = self.asked["frag"], ROWS * form.depth // WARPGROUP
            self.fragment = range(self.asked["j"], self.asked["j"] + count)
            self._require_fenced(frag, self.fragment)
            self.held = [frag.storage.value_at(state, frag, r, self.line) for r in self.fragment]
        else:
            self._find("A", ROWS)
        self._find("B", 2 * len(registers))
        if len(self.places) < (1 if form.registers else 2):
            return
        self._require_fenced(acc, registers)
        flight = (one for one in acc.storage.flight if one.lead == self.lead and one.registers == registers)
        self.sums = next(flight, None) or Sums(self, registers)
        clocks, groups = state.engines.clocks, state.engines.groups(WGMMA, self.lead)
        known = clocks.known[self.lead : self.lead + WARPGROUP].min(axis=0)
        for side, places in self.places.items():
            if text := tiles.misread(places, side == "B" and form.rows):
                self._fault("descriptor", self.tiles.name, f"the descriptor of {side} {text}")
            self.stages.append(int(tiles.column[places[0, 0]]))
            state.engines.pipeline.turn(self.stages[-1], "multiplied", self.line)
            at = places.reshape(-1)
            access = Access("read by wgmma", state, self.tiles, at, self.lead, self.line, state.stamps, row=known)
            tiles.read_by_engine(access, groups)
        self.sums.open += 1
        groups.begin("wgmma", self.view.name, self.line, self._carry_out)

    def _by_lane(self, held: list[Value]) -> NDArray[Any]:
        return helpers.by_lane(self.state, held)[self.lead : self.lead + WARPGROUP]

    def _carry_out(self) -> None:
        """Read the operands now, as late as wgmma may, and add."""
        form, data, sums = self.form, self.tiles.storage.data, self.sums
        right = data[self.places["B"]]
        if form.registers:
            frag, shape = self.asked["frag"], helpers.K16 if form.depth == helpers.K16.depth else helpers.K8
            if any(frag.storage.values[r] is not held for r, held in zip(self.fragment, self.held, strict=True)):
                text = f"{frag.name} is written while wgmma may still read it: after wgmma_wait it may be"
                self._fault("wgmma-order", frag.name, text)
            left = helpers.whole(self._by_lane(self.held), shape.a, (16, form.depth))
            left = left.reshape(ROWS, form.depth).astype(form.dtype)
        else:
            left = data[self.places["A"]]
        if form.packed:
            left, right = left.view(form.packed), right.view(form.packed)
        elif form.sparse:
            words = self._by_lane([self.asked["places"]])
            kept = left.astype(np.float64).reshape(-1, 16, 16)
            left = helpers.unpacked(kept, words, self.asked["half"]).reshape(ROWS, -1)
        elif form.dtype == FLOAT32:
            left, right = helpers.cut_to_tf32(left), helpers.cut_to_tf32(right)
        before = sums.matrix if self.add else np.zeros_like(sums.matrix)
        # products are exact in float64; the hardware adds them in an order of its own
        left, right = codes.values(left), codes.values(right).T
        added = cut_sums(before, left, right) if form is E4M3 else before + np.matmul(left, right)
        sums.matrix[:] = helpers.summed(added, form.sums)
        sums.open -= 1
        if not sums.open:
            sums.land(self.state)
        for column in self.stages:
            self.state.engines.pipeline.turn(column, "free")


def cut_sums(sums: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Sums, and products of e4m3 added to them, as one instruction adds: each brought to the exponent of the largest,
    and cut off where the largest has 14 bits."""
    finest = np.min(np.abs(left[left != 0]), initial=1.0) * np.min(np.abs(right[right != 0]), initial=1.0)
    bound = np.abs(sums).max() + left.shape[1] * np.abs(left).max() * np.abs(right).max()
    if bound < 2**13 * finest and all((part == np.rint(part)).all() for part in (sums, left, right)):
        return np.asarray(sums + left @ right)
    products = left[:, :, None] * right[None]
    largest = np.maximum(np.abs(sums), np.abs(products).max(axis=1))
    last = np.ldexp(1.0, np.frexp(largest)[1] - KEPT)
    return np.asarray((np.trunc(products / last[:, None]).sum(axis=1) + np.trunc(sums / last)) * last)


def _multiply(state: State, line: int, acc: View, i: Value, *given: Any, form: Form, **named: Any) -> None:
    """Begin acc[i:i+N/2] += A @ B for the warpgroups that come here; A may be ``frag`` from j on. Where not ``add``,
    the product takes the sums' place."""
    names = [*(("frag", "j", "tiles") if form.registers else ("tiles", "a")), "b", "N"]
    names += ["places", "half", "add"] if form.sparse else ["add"]
    asked = {"acc": acc, "add": True, "j": 0, "half": 0, **dict(zip(names, given, strict=False)), **named}
    first, asked["j"], asked["half"] = (one_number(state, line, form.name, n) for n in (i, asked["j"], asked["half"]))
    tiles, columns = asked["tiles"], int(asked["N"])
    tiles.require(state, line, form.name, "shared", form.dtype)
    acc.require(state, line, form.name, "local", form.sums)
    count = columns // 2
    if columns % 8 or not 8 <= columns <= 256 or not 0 <= first <= acc.size - count:
        raise state.error(line, f"{form.name}: N = {columns} and {acc.name}[{first}:{first + count}] do not fit")
    leads = warpgroups(state, line, form.name)
    if (ledger := state.ledger).recording and leads:
        packed = form.dtype.itemsize // form.packed.itemsize if form.packed else 1
        ledger.fma[line] += len(leads) * ROWS * columns * form.depth * packed
        held = (0 if form.registers else ROWS // 2 if form.sparse else ROWS) + columns
        size = held * form.depth * form.dtype.itemsize
        passes = len(leads) * size // ROW  # swizzled rows never meet in a bank
        tally = ledger.tallies[Key(line, "shared", "wgmma", tiles.name, 8 * size)]
        tally.add(len(leads), Cost(len(leads), passes, passes, len(leads)))
        for op in ("read", "write"):
            taken = Cost(len(leads) * WARPGROUP // WARP, 0, 0, 0)
            ledger.tallies[Key(line, "local", op, acc.name, 32)].add(len(leads) * WARPGROUP * count, taken)
    for lead in leads:
        Product(state, line, form, lead, asked).begin(range(acc.start + first, acc.start + first + count))


for _form in _FORMS:
    on_engines(partial(_multiply, form=_form), _form.name)


@on_engines
def wgmma_fence(state: State, line: int) -> None:
    """What the threads did to their registers is there for the wgmma that follow."""
    warpgroups(state, line, "wgmma_fence")
    for storage in list(state.engines.locals[state.engines.teams.now]):
        if storage.dtype in (FLOAT32, HALF, INT32):
            storage.fenced = list(storage.values)

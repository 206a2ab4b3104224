"""wgmma: four warps multiply tiles of shared memory that descriptors name, into registers that they may not touch.

Fields of a descriptor and places of elements are those of the PTX ISA, "Asynchronous Warpgroup Level Matrix
Multiply-Accumulate Instructions: Matrix Descriptor Format", with a swizzle of 128, 64 or 32 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import codes
from common.trace import helpers, values, views
from common.trace.cost import WARP, Cost, Ints, Key
from common.trace.hopper import layouts
from common.trace.hopper.layouts import Descriptor, encoded
from common.trace.hopper.mbarriers import on_engines
from common.trace.hopper.tiles import WARPGROUP, WGMMA, Agent
from common.trace.intrinsics import one_number
from common.trace.state import Mask, State
from common.trace.values import FLOAT32, Value, spread
from common.trace.views import View, as_offset

ROWS = 64  # of A, and of the sums
_WAVEFRONT = 128  # bytes that shared memory delivers at a time

_T = np.arange(WARPGROUP)


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


F16 = Form("wgmma_f16", 16, np.dtype(np.float16))
E4M3 = Form("wgmma_e4m3", 8, FLOAT32, packed=codes.E4M3)
INT32 = np.dtype(np.int32)
_IN_TILES = (  # with A in tiles alone
    E4M3, Form("wgmma_bf16", 8, FLOAT32, packed=codes.BFLOAT16),
    Form("wgmma_sp_f16", 32, np.dtype(np.float16), sparse=True),
)  # fmt: skip
_BOTH = (  # with A in tiles, or in registers
    F16, Form("wgmma_f16_rows", 16, np.dtype(np.float16), rows=True), Form("wgmma_tf32", 8, FLOAT32),
    Form("wgmma_s8", 8, INT32, sums=INT32, packed=np.dtype(np.int8)),
)  # fmt: skip


class Sums:
    """What a warpgroup holds of the 64 x N sums, on its way: registers of ``view``."""

    def __init__(self, product: Product, view: View, registers: range) -> None:
        state, lead = product.state, product.lead
        self.view, self.storage, self.registers = view, view.storage, registers
        self.line, self.lead, self.open = product.line, lead, 0
        self.mask = Mask((state.lane_numbers >= lead) & (state.lane_numbers < lead + WARPGROUP))
        self.matrix = np.zeros((ROWS, product.columns), view.dtype)
        r = np.arange(len(registers))[:, None]  # rows and columns of the registers' elements: (register, thread)
        self.places = 16 * (_T // WARP) + _T % WARP // 4 + 8 * (r % 4 // 2), 8 * (r // 4) + 2 * (_T % 4) + r % 2
        if product.add:  # else what they hold is not read
            whole, state.mask = state.mask, self.mask
            values = [view.storage.value_at(state, view, register, self.line) for register in registers]
            state.mask = whole
            self.matrix[self.places] = _of_lanes(state, values, lead)
        for register in registers:
            view.storage.lacking[register] = view.storage.lacking.get(register, state.none.bits) | self.mask.bits
        view.storage.flight.append(self)

    def land(self, state: State) -> None:
        storage = self.storage
        storage.flight.remove(self)
        if not all(r in storage.lacking and storage.lacking[r][self.mask.bits].all() for r in self.registers):
            text = f"{self.view.name} is written by its threads while wgmma is under way: after wgmma_wait they may"
            state.fault("wgmma-order", self.line, self.view.name, text, self.mask.bits, lane=self.lead)
        views.spread_taint(state)
        whole = np.zeros((len(self.registers), len(state.lane_numbers)), self.matrix.dtype)
        whole[:, self.lead : self.lead + WARPGROUP] = self.matrix[self.places]
        for register, value in zip(self.registers, whole, strict=True):
            storage.put(state, register, value, self.mask)
            if storage.fenced is not None:
                storage.fenced[register] = storage.values[register]


def _of_lanes(state: State, values: list[Value], lead: int) -> NDArray[Any]:
    """Values of all lanes as those of a warpgroup have them: (value, thread)."""
    size = len(state.lane_numbers)
    return np.array([spread(value, (size,))[lead : lead + WARPGROUP] for value in values])


def warpgroups(state: State, line: int, name: str) -> list[int]:
    """The first lanes of the warpgroups that come here whole; the others are at fault."""
    size, total = state.lanes_per_block, len(state.lane_numbers)
    found = []
    for lead in (block + at for block in range(0, total, size) for at in range(0, size, WARPGROUP)):
        active = state.mask.bits[lead : min(lead + WARPGROUP, lead // size * size + size)]
        if len(active) == WARPGROUP and active.all():
            found.append(lead)
        elif active.any():
            text = f"{name} is for all {WARPGROUP} threads of a warpgroup together, and some do not come to it"
            state.engines.teams.require_whole(line, name)
            state.fault("warp-sync", line, "", text, lane=lead + int(np.argmax(active)), count=int(active.sum()))
    return found


@dataclass
class Product:
    """One instruction of the warpgroup from the lane ``lead`` on; A is in tiles, or in ``frag`` from j on."""

    state: State
    line: int
    form: Form
    tiles: View
    columns: int
    lead: int
    add: bool = True  # or does it take the place of the sums
    words: Any = None  # of the warpgroup's lanes: where the kept values of a sparse A belong
    half: int = 0  # which of the lanes say so
    frag: View | None = None
    j: int = 0
    held: list[Value] = field(default_factory=list)  # in these registers
    stages: list[int] = field(default_factory=list)  # of the pipeline, that it reads

    def fault(self, kind: str, array: str, text: str) -> None:
        self.state.fault(kind, self.line, array, text, lane=self.lead, count=WARPGROUP)

    def same(self, value: Value, what: str = "descriptors") -> int:
        """A number that all threads of the warpgroup must agree on."""
        if np.ndim(value) == 0:
            return int(value)
        own = value[self.lead : self.lead + WARPGROUP]
        if (own != own[0]).any():
            self.fault("warp-sync", "", f"{self.form.name}: threads of a warpgroup name different {what}")
        return int(own[0])

    def operand(self, side: str, value: Value) -> Ints | None:
        """The operand's elements among all blocks' tiles; None, and a fault, where the descriptor is wrong."""
        form, found = self.form, Descriptor.of(self.same(value))
        size, along_n = form.dtype.itemsize, side == "B" and form.rows
        depth = form.depth // 2 if side == "A" and form.sparse else form.depth
        rows = ROWS if side == "A" else self.columns
        text = found.wrong((depth if along_n else rows) // 8, side == "B" and not along_n and form is F16)
        if text:
            self.fault("descriptor", self.tiles.name, f"the descriptor of {side} {text}")
            if not found.swizzle:
                return None
        places = layouts.operand(*((depth, rows) if along_n else (rows, depth)), size, found)
        places = places.T if side == "B" and not along_n else places
        last, storage = int(places.max()), self.tiles.storage
        if last >= storage.size:
            text = f"{self.tiles.name} is read at {last} by the descriptor of {side}, its extent is {storage.size}"
            self.fault("outside", self.tiles.name, text)
            return None
        return np.asarray(places + int(self.state.block_number[self.lead]) * storage.size)

    def require_fenced(self, view: View, first: int, count: int) -> None:
        """A fault if the threads have set the registers since their last wgmma_fence."""
        storage = view.storage
        if any(sums.lead == self.lead and first in sums.registers for sums in storage.flight):
            return
        now, then = storage.values[first : first + count], storage.fenced
        if then is None or any(a is not b for a, b in zip(now, then[first : first + count], strict=True)):
            text = f"{view.name} is set by its threads, and no wgmma_fence follows before wgmma takes it"
            self.fault("wgmma-order", view.name, text)

    def begin(self, acc: View, registers: range, a: Ints | None, b: Ints) -> None:
        """Add to the sums that are on their way already, or to those that the registers hold."""
        own = [one for one in acc.storage.flight if one.lead == self.lead and set(registers) & set(one.registers)]
        same = [one for one in own if one.registers == registers]
        if own and not same:
            text = f"{acc.name} is added to by wgmma of different shapes, with no wgmma_wait between"
            self.fault("wgmma-order", acc.name, text)
        self.a, self.b, self.sums = a, b, same[0] if same else Sums(self, acc, registers)
        engines, tiles = self.state.engines, self.tiles.storage
        queue = engines.queues[self.lead]
        row = engines.clocks.known[self.lead : self.lead + WARPGROUP].min(axis=0)
        agent = Agent(self.state, self.tiles, self.lead, self.line, "read by wgmma", row)
        for side, places, along_n in (("A", a, False), ("B", b.T, self.form.rows)):
            if places is None:
                continue
            if text := tiles.misread(places, along_n):
                self.fault("descriptor", self.tiles.name, f"the descriptor of {side} {text}")
            flat = places.reshape(-1)
            self.stages.append(int(tiles.column[flat[0]]))
            engines.pipeline.read(self.stages[-1], self.line)
            tiles.read_by_engine(agent, flat, WGMMA, queue.committed + 1)
        self.sums.open += 1
        queue.begin(self)

    def _fragment(self, frag: View) -> NDArray[Any]:
        """A, of all four warps, from the registers that hold it."""
        now, depth = frag.storage.values[self.j : self.j + len(self.held)], self.form.depth
        if any(a is not b for a, b in zip(now, self.held, strict=True)):
            text = f"{frag.name} is written while wgmma may still read it: after wgmma_wait it may be"
            self.fault("wgmma-order", frag.name, text)
        places = helpers.K16.a if depth == helpers.K16.depth else helpers.K8.a
        values = list(_of_lanes(self.state, self.held, self.lead))
        matrices = helpers.whole(values, places, (16, depth), WARPGROUP)  # one for each warp
        return matrices.reshape(ROWS, depth).astype(self.form.dtype)

    def carry_out(self, state: State) -> None:
        """Read the operands now, as late as wgmma may, and add."""
        form, data, sums = self.form, self.tiles.storage.data, self.sums
        left, right = self._fragment(self.frag) if self.frag else data[self.a], data[self.b]
        if form.packed:
            left, right = left.view(form.packed), np.ascontiguousarray(right.T).view(form.packed).T
        elif form.sparse:
            kept = left.astype(np.float64).reshape(-1, 16, 16)
            left = helpers.unpacked(kept, self.words, self.half).reshape(ROWS, -1)
        elif form.dtype == FLOAT32:
            left, right = helpers.cut_to_tf32(left), helpers.cut_to_tf32(right)
        before = sums.matrix if self.add else np.zeros_like(sums.matrix)
        # products are exact in float64; the hardware adds them in an order of its own
        left, right = codes.values(left), codes.values(right)
        added = layouts.cut_sums(before, left, right) if form is E4M3 else before + np.matmul(left, right)
        sums.matrix[:] = helpers.summed(added, form.sums)
        sums.open -= 1
        if not sums.open:
            sums.land(state)
        for column in self.stages:
            state.engines.pipeline.multiplied(column)


def _multiply(state: State, line: int, acc: View, i: Value, *given: Any, form: Form, **named: Any) -> None:
    """Begin acc[i:i+N/2] += A @ B for the warpgroups that come here; A may be ``frag`` from j on. Where not ``add``,
    the product takes the sums' place."""
    names = [*(("frag", "j", "tiles") if form.registers else ("tiles", "a")), "b", "N"]
    names += ["places", "half", "add"] if form.sparse else ["add"]
    asked = {"add": True, "j": 0, "places": 0, "half": 0, **dict(zip(names, given, strict=False)), **named}
    tiles, columns, first, j = asked["tiles"], int(asked["N"]), as_offset(i), as_offset(asked["j"])
    if type(first) is not int:
        raise state.error(line, f"{form.name} takes registers at an index known when compiling")
    tiles.require(state, line, form.name, "shared", form.dtype)
    acc.require(state, line, form.name, "local", form.sums)
    count = columns // 2
    if columns % 8 or not 8 <= columns <= 256 or not 0 <= first <= acc.size - count:
        raise state.error(line, f"{form.name}: N = {columns} and {acc.name}[{first}:{first + count}] do not fit")
    registers = range(acc.start + first, acc.start + first + count)
    leads = warpgroups(state, line, form.name)
    if (ledger := state.ledger).recording and leads:
        packed = form.dtype.itemsize // form.packed.itemsize if form.packed else 1
        ledger.fma[line] += len(leads) * ROWS * columns * form.depth * packed
        held = (0 if form.registers else ROWS // 2 if form.sparse else ROWS) + columns
        size = held * form.depth * form.dtype.itemsize
        passes = len(leads) * size // _WAVEFRONT  # swizzled rows never meet in a bank
        tally = ledger.tallies[Key(line, "shared", "wgmma", tiles.name, 8 * size)]
        tally.add(len(leads), Cost(len(leads), passes, passes, len(leads)))
        for op in ("read", "write"):
            taken = Cost(len(leads) * WARPGROUP // WARP, 0, 0, 0)
            ledger.tallies[Key(line, "local", op, acc.name, 32)].add(len(leads) * WARPGROUP * columns // 2, taken)
    for lead in leads:
        product, left = Product(state, line, form, tiles, columns, lead), None
        if form.registers:
            words, product.frag, product.j = ROWS * form.depth // WARPGROUP, asked["frag"], j
            product.require_fenced(product.frag, j, words)
            product.held = [product.frag.storage.value_at(state, product.frag, j + r, line) for r in range(words)]
        else:
            left = product.operand("A", asked["a"])
        right = product.operand("B", asked["b"])
        if right is None or (left is None and not form.registers):
            continue
        product.require_fenced(acc, registers.start, count)
        product.add = bool(product.same(asked["add"], "answers to whether it adds"))
        (product.words,) = _of_lanes(state, [asked["places"]], lead)
        product.half = helpers.one_half(state, line, form.name, asked["half"])
        product.begin(acc, registers, left, right)


@on_engines
def wgmma_fence(state: State, line: int) -> None:
    """What the threads did to their registers is there for the wgmma that follow."""
    warpgroups(state, line, "wgmma_fence")
    for storage in list(state.engines.locals[state.engines.teams.now]):
        if storage.dtype in (FLOAT32, F16.dtype, INT32):
            storage.fenced = list(storage.values)


@on_engines
def wgmma_commit(state: State, line: int) -> None:
    for lead in warpgroups(state, line, "wgmma_commit"):
        state.engines.queues[lead].committed += 1


@on_engines
def wgmma_wait(state: State, line: int, pending: Value) -> None:
    groups = one_number(state, line, "wgmma_wait", pending)
    for lead in warpgroups(state, line, "wgmma_wait"):
        clocks = state.engines.clocks
        done = clocks.done(WGMMA, lead // WARP, state.engines.queues[lead].finish(state, groups))
        clocks.acquire(list(range(lead, lead + WARPGROUP)), done)


@on_engines
def descriptor(state: State, line: int, tiles: View, offset: Value, leading: Value, stride: Value) -> Value:
    start = values.mul(offset, tiles.dtype.itemsize)
    for name, value in (("address", start), ("leading", leading), ("stride", stride)):
        numbers = np.broadcast_to(np.asarray(value).astype(np.int64), state.mask.bits.shape)
        wrong = (numbers % 16 != 0) | (numbers < 0) | (numbers >= 1 << 18)
        text = f"{name} is {state.first(numbers, wrong)} bytes: must be a multiple of 16 from 0 to {(1 << 18) - 16}"
        state.fault("descriptor", line, tiles.name, text, wrong)
    return encoded(start, leading, stride)


for _form in (*_IN_TILES, *_BOTH, *(f._replace(name=f"{f.name}_registers", registers=True) for f in _BOTH)):
    on_engines(partial(_multiply, form=_form), _form.name)


def end(state: State) -> None:
    for lead, queue in state.engines.queues.items():
        for group, product in queue.under_way:
            what = "wgmma_wait" if group <= queue.committed else "wgmma_commit and no wgmma_wait"
            text = f"wgmma is still under way when its threads end: no {what} comes after it"
            state.fault_of(lead, "wgmma-order", product.line, product.sums.view.name, text, "no wait for wgmma")

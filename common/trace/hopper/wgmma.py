"""wgmma: four warps multiply tiles of shared memory that descriptors name, into registers that they may not touch.

Fields of a descriptor and places of elements are those of the PTX ISA, "Asynchronous Warpgroup Level Matrix
Multiply-Accumulate Instructions: Matrix Descriptor Format", with a swizzle of 128, 64 or 32 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.catalog import bfloat16, codes, e4m3
from common.trace import helpers, values, views
from common.trace.cost import WARP, Cost, Ints, Key
from common.trace.hopper import layouts
from common.trace.hopper.layouts import Descriptor, along_k, along_rows, encoded
from common.trace.hopper.mbarriers import on_engines
from common.trace.hopper.tiles import Agent, Tiles
from common.trace.hopper.warps import WARPGROUP, WGMMA, SplitError
from common.trace.intrinsics import intrinsic, one_number
from common.trace.shared import Local
from common.trace.state import Mask, State
from common.trace.values import FLOAT32, Value, spread
from common.trace.views import View, as_offset

ROWS = 64  # of A, and of the sums
_WAVEFRONT = 128  # bytes that shared memory delivers at a time

_T = np.arange(WARPGROUP)


def _require_fields(state: State, line: int, tiles: View, **fields: Any) -> None:
    """A fault if a field of a descriptor, in bytes, is none that its bits can hold."""
    for name, value in fields.items():
        numbers = np.broadcast_to(np.asarray(value).astype(np.int64), state.mask.bits.shape)
        wrong = state.mask.bits & ((numbers % 16 != 0) | (numbers < 0) | (numbers >= 1 << 18))
        if wrong.any():
            first = int(numbers[int(np.argmax(wrong))])
            text = f"{name} is {first} bytes: must be a multiple of 16 from 0 to {(1 << 18) - 16}"
            state.fault("descriptor", line, tiles.name, text, wrong)


class Form(NamedTuple):
    """An instruction: its name, the k that it takes, its operands' type, does B run along n, is A in registers? And
    the type of its sums."""

    name: str
    depth: int
    dtype: Any
    rows: bool = False
    registers: bool = False
    sums: Any = FLOAT32
    packed: Any = None  # tiles are of words: what a word holds two or four of; depth counts words
    half: int | None = None  # two of every four values of A are kept: which lanes say where these belong

    @property
    def held(self) -> int:
        """Values of A that a thread has in registers."""
        return ROWS * self.depth // WARPGROUP

    @property
    def values(self) -> int:
        """Along k."""
        return self.depth * self.dtype.itemsize // self.packed.itemsize if self.packed else self.depth


F16 = Form("wgmma_f16", 16, np.dtype(np.float16))
F16_ROWS = Form("wgmma_f16_rows", 16, np.dtype(np.float16), rows=True)
TF32 = Form("wgmma_tf32", 8, FLOAT32)
E4M3 = Form("wgmma_e4m3", 8, FLOAT32, packed=e4m3.CODES)
BF16 = Form("wgmma_bf16", 8, FLOAT32, packed=bfloat16.CODES)
INT32 = np.dtype(np.int32)
S8 = Form("wgmma_s8", 8, INT32, sums=INT32, packed=np.dtype(np.int8))
SPARSE = [Form(f"wgmma_sp_f16_{half}", 32, np.dtype(np.float16), half=half) for half in range(2)]


class Sums:
    """What a warpgroup holds of the 64 x N sums, on its way: ``storage``'s registers from ``first`` on."""

    def __init__(
        self, state: State, view: View, first: int, columns: int, lead: int, line: int, held: bool
    ) -> None:  # fmt: skip
        """``held``: are the products added to what the registers hold? If not, that is not read."""
        self.view, self.storage, self.first, self.line = view, view.storage, first, line
        self.columns, self.count = columns, columns // 2
        self.mask = Mask((state.lane_numbers >= lead) & (state.lane_numbers < lead + WARPGROUP))
        self.lead, self.open = lead, 0
        self.matrix = np.zeros((ROWS, columns), view.dtype)
        if held:
            whole, state.mask = state.mask, self.mask
            values = [view.storage.value_at(state, view, first + r, line) for r in range(self.count)]
            state.mask = whole
            lanes, size = slice(lead, lead + WARPGROUP), len(state.lane_numbers)
            self.matrix[self.places()] = np.array([spread(value, (size,))[lanes] for value in values])
        for r in range(first, first + self.count):
            lacking = view.storage.lacking.get(r)
            view.storage.lacking[r] = self.mask.bits if lacking is None else lacking | self.mask.bits
        view.storage.flight.append(self)

    def places(self) -> tuple[Ints, Ints]:
        """Rows and columns of the registers' elements: (register, thread of the warpgroup)."""
        r = np.arange(self.count)[:, None]
        rows = 16 * (_T // WARP) + _T % WARP // 4 + 8 * (r % 4 // 2)
        return rows, 8 * (r // 4) + 2 * (_T % 4) + r % 2

    def covers(self, register: int) -> bool:
        return self.first <= register < self.first + self.count

    def land(self, state: State) -> None:
        """All is added up: the registers are the threads' again."""
        storage = self.storage
        storage.flight.remove(self)
        registers = range(self.first, self.first + self.count)
        if not all(r in storage.lacking and storage.lacking[r][self.mask.bits].all() for r in registers):
            text = f"{self.view.name} is written by its threads while wgmma is under way: after wgmma_wait they may"
            state.fault("wgmma-order", self.line, self.view.name, text, self.mask.bits, lane=self.lead)
        views.spread_taint(state)
        whole = np.zeros((self.count, len(state.lane_numbers)), self.matrix.dtype)
        whole[:, self.lead : self.lead + WARPGROUP] = self.matrix[self.places()]
        fenced = storage.fenced
        for n in range(self.count):
            storage.put(state, self.first + n, whole[n], self.mask)
            if fenced is not None:
                fenced[self.first + n] = storage.values[self.first + n]


@dataclass
class Product:
    """One instruction of one warpgroup, under way."""

    form: Form
    sums: Sums
    tiles: Tiles
    a: Ints | None  # elements of all blocks' tiles
    b: Ints
    fragment: _Fragment | None
    line: int
    add: bool = True  # or does it take the place of the sums?
    words: Any = None  # of the warpgroup's lanes: where the kept values of a sparse A belong
    stages: list[Any] = field(default_factory=list)  # of the pipeline, that it reads

    def carry_out(self, state: State) -> None:
        """Read the operands now, as late as wgmma may, and add."""
        left = self.fragment.matrix(state) if self.fragment else self.tiles.data[self.a]
        right = self.tiles.data[self.b]
        if self.form.packed:
            left, right = left.view(self.form.packed), np.ascontiguousarray(right.T).view(self.form.packed).T
        elif self.form.half is not None:
            kept = left.astype(np.float64).reshape(-1, 16, 16)
            left = helpers.unpacked(kept, self.words, self.form.half).reshape(ROWS, -1)
        elif self.form.dtype == FLOAT32:
            left, right = helpers.cut_to_tf32(left), helpers.cut_to_tf32(right)
        matrix = self.sums.matrix
        if not self.add:
            matrix[:] = 0
        # products are exact in float64; the hardware adds them in an order of its own
        left, right = codes.values(left), codes.values(right)
        added = layouts.cut_sums if self.form is E4M3 else _exact
        matrix[:] = helpers.summed(added(matrix, left, right), self.form.sums)
        self.sums.open -= 1
        if not self.sums.open:
            self.sums.land(state)
        state.engines.pipeline.multiplied(self.stages)


def _exact(sums: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(sums + np.matmul(left, right))


class _Fragment:
    """A (64 x 8 or 64 x 16) in registers, four words of each thread."""

    def __init__(self, state: State, view: View, first: int, form: Form, lead: int, line: int) -> None:
        self.view, self.first, self.form, self.lead, self.line = view, first, form, lead, line
        self.held = [view.storage.value_at(state, view, first + r, line) for r in range(form.held)]

    def matrix(self, state: State) -> NDArray[Any]:
        now = self.view.storage.values[self.first : self.first + self.form.held]
        if any(a is not b for a, b in zip(now, self.held, strict=True)):
            text = f"{self.view.name} is written while wgmma may still read it: after wgmma_wait it may be"
            state.fault("wgmma-order", self.line, self.view.name, text, lane=self.lead)
        size = len(state.lane_numbers)
        by_lane = np.stack([np.broadcast_to(value, size)[self.lead : self.lead + WARPGROUP] for value in self.held])
        r, in_word = np.arange(self.form.held)[:, None], self.form.held // 4
        word, column = r // in_word, in_word * (_T % 4) + r % in_word
        found = np.empty((ROWS, self.form.depth), self.form.dtype)
        rows = 16 * (_T // WARP) + _T % WARP // 4 + 8 * (word % 2)
        found[rows, column + self.form.depth // 2 * (word // 2)] = by_lane
        return found


def _wait(state: State, lead: int, pending: int) -> None:
    done, clocks, first = state.engines.queues[lead].finish(state, pending), state.engines.clocks, lead // WARP
    clocks.learn(range(first, first + WARPGROUP // WARP), clocks.of(WGMMA, first), done)


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
            teams = state.engines.teams
            if teams.now is not None and teams.now.warpgroup in teams.split:
                raise SplitError(f"line {line}: {name} by warps that run apart is not traced")
            state.fault("warp-sync", line, "", text, lane=lead + int(np.argmax(active)), count=int(active.sum()))
    return found


def _same(state: State, line: int, name: str, value: Value, lead: int, what: str = "descriptors") -> int:
    """A number that all threads of the warpgroup must agree on."""
    if np.ndim(value) == 0:
        return int(value)
    own = value[lead : lead + WARPGROUP]
    if (own != own[0]).any():
        text = f"{name}: threads of a warpgroup name different {what}"
        state.fault("warp-sync", line, "", text, lane=lead, count=WARPGROUP)
    return int(own[0])


def _operand(
    state: State, line: int, tiles: View, bits: int, form: Form, side: str, columns: int, lead: int
) -> Ints | None:
    """The operand's elements among all blocks' tiles; None, and a fault, where the descriptor is wrong."""
    storage: Tiles = tiles.storage
    descriptor = Descriptor.of(bits)
    size, along_n = form.dtype.itemsize, side == "B" and form.rows
    depth = form.depth // 2 if side == "A" and form.half is not None else form.depth
    groups = depth // 8 if along_n else (ROWS if side == "A" else columns) // 8
    text = descriptor.wrong(groups, any_row=side == "B" and not along_n and form is F16)
    if text:
        state.fault("descriptor", line, tiles.name, f"the descriptor of {side} {text}", lane=lead, count=WARPGROUP)
        if not descriptor.swizzle:
            return None
    within = descriptor.start % (8 * descriptor.swizzle)
    if along_n:
        places = along_rows(depth, columns, size, within, descriptor.leading, descriptor.stride, descriptor.swizzle)
    else:
        rows = ROWS if side == "A" else columns
        places = along_k(rows, depth, size, within, descriptor.stride, descriptor.swizzle)
        places = places if side == "A" else places.T
    places = places + (descriptor.start - within) // size
    last = int(places.max())
    if last >= storage.size:
        text = f"{tiles.name} is read at {last} by the descriptor of {side}, its extent is {storage.size}"
        state.fault("outside", line, tiles.name, text, lane=lead, count=WARPGROUP)
        return None
    return storage.flat(int(state.block_number[lead]), places)


def _start(
    state: State, line: int, form: Form, acc: View, i: Value, tiles: View, a: Any, b: Value, columns: int,
    add: Value, j: Value = 0, places: Value = 0,
) -> None:  # fmt: skip
    """Begin acc[i:i+N/2] += A @ B for the warpgroups that come here; with ``registers``, A is ``a`` from j on.

    Where not ``add``, the product takes the sums' place.
    """
    columns, first, count = int(columns), as_offset(i), int(columns) // 2
    if type(first) is not int or not isinstance(acc.storage, Local) or acc.dtype != form.sums:
        raise state.error(line, f"{form.name} takes {form.sums} registers at an index known when compiling")
    if not isinstance(tiles.storage, Tiles) or tiles.dtype != form.dtype:
        raise state.error(line, f"{form.name} takes tiles of {form.dtype} in shared memory, not {tiles.name}")
    if columns % 8 or not 8 <= columns <= 256 or not 0 <= first <= acc.size - count:
        raise state.error(line, f"{form.name}: N = {columns} and {acc.name}[{first}:{first + count}] do not fit")
    first += acc.start
    leads = warpgroups(state, line, form.name)
    _count(state, line, form, acc, tiles, columns, len(leads))
    for lead in leads:
        left = fragment = None
        if form.registers:
            _fenced(state, line, a, as_offset(j), form.held, lead)
            fragment = _Fragment(state, a, as_offset(j), form, lead, line)
        else:
            left = _operand(state, line, tiles, _same(state, line, form.name, a, lead), form, "A", columns, lead)
        right = _operand(state, line, tiles, _same(state, line, form.name, b, lead), form, "B", columns, lead)
        if right is None or (left is None and fragment is None):
            continue
        _fenced(state, line, acc, first, count, lead)
        adds = bool(_same(state, line, form.name, add, lead, "answers to whether it adds"))
        sums = _sums(state, acc, first, columns, lead, line, adds)
        words = spread(places, (len(state.lane_numbers),))[lead : lead + WARPGROUP]
        product = Product(form, sums, tiles.storage, left, right, fragment, line, adds, words)
        _begin(state, line, tiles, product, lead)


def _begin(state: State, line: int, tiles: View, product: Product, lead: int) -> None:
    engine = state.engines
    queue = engine.queues[lead]
    warps = np.arange(lead // WARP, lead // WARP + WARPGROUP // WARP)
    agent = Agent(warps, lead, line, "read by wgmma")
    operands = (("A", product.a, False), ("B", product.b.T, product.form.rows))
    for side, places, along_n in operands:
        if places is not None:
            text = product.tiles.misread(places, along_n)
            if text:
                text = f"the descriptor of {side} {text}"
                state.fault("descriptor", line, tiles.name, text, lane=lead, count=WARPGROUP)
            flat = places.reshape(-1)
            product.stages += engine.pipeline.read(int(product.tiles.column[flat[0]]), line)
            product.tiles.read_by_engine(state, tiles, flat, agent, WGMMA, queue.committed + 1)
    product.sums.open += 1
    queue.begin(product)


def _sums(state: State, acc: View, first: int, columns: int, lead: int, line: int, held: bool) -> Sums:
    """The sums that are on their way already, or those that the registers hold, or none."""
    under_way: list[Sums] = acc.storage.flight
    for sums in under_way:
        if sums.lead == lead and sums.first < first + columns // 2 and first < sums.first + sums.count:
            if (sums.first, sums.columns) == (first, columns):
                return sums
            text = f"{acc.name} is added to by wgmma of different shapes, with no wgmma_wait between"
            state.fault("wgmma-order", line, acc.name, text, lane=lead, count=WARPGROUP)
            while sums.open:
                _wait(state, lead, 0)
                sums.open = 0
            break
    return Sums(state, acc, first, columns, lead, line, held)


def _fenced(state: State, line: int, view: View, first: int, count: int, lead: int) -> None:
    """A fault if the threads have set the registers since their last wgmma_fence."""
    storage = view.storage
    if any(sums.lead == lead and sums.covers(first) for sums in storage.flight):
        return
    now, then = storage.values[first : first + count], storage.fenced
    if then is None or any(a is not b for a, b in zip(now, then[first : first + count], strict=True)):
        text = f"{view.name} is set by its threads, and no wgmma_fence follows before wgmma takes it"
        state.fault("wgmma-order", line, view.name, text, lane=lead, count=WARPGROUP)


def _count(state: State, line: int, form: Form, acc: View, tiles: View, columns: int, groups: int) -> None:
    ledger = state.ledger
    if not ledger.recording or not groups:
        return
    ledger.fma[line] += groups * ROWS * columns * form.values
    held = (0 if form.registers else ROWS if form.half is None else ROWS // 2) + columns
    size = held * form.depth * form.dtype.itemsize
    passes = groups * size // _WAVEFRONT  # swizzled rows never meet in a bank
    tally = ledger.tallies[Key(line, "shared", "wgmma", tiles.name, 8 * size)]
    tally.add(groups, Cost(groups, passes, passes, groups))
    for op in ("read", "write"):
        registers = ledger.tallies[Key(line, "local", op, acc.name, 32)]
        registers.add(groups * WARPGROUP * columns // 2, Cost(groups * WARPGROUP // WARP, 0, 0, 0))


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
        _wait(state, lead, groups)


@on_engines
def descriptor(state: State, line: int, tiles: View, offset: Value, leading: Value, stride: Value) -> Value:
    start = values.mul(offset, tiles.dtype.itemsize)
    _require_fields(state, line, tiles, address=start, leading=leading, stride=stride)
    return encoded(start, leading, stride)


def _register(form: Form) -> None:
    def of_tiles(
        state: State, line: int, acc: View, i: Value, tiles: View, a: Value, b: Value, N: int, add: Value = True
    ) -> None:  # fmt: skip
        _start(state, line, form, acc, i, tiles, a, b, N, add)

    def of_registers(
        state: State, line: int, acc: View, i: Value, frag: View, j: Value, tiles: View, b: Value, N: int,
        add: Value = True,
    ) -> None:  # fmt: skip
        _start(state, line, form, acc, i, tiles, frag, b, N, add, j)

    def of_sparse(
        state: State, line: int, acc: View, i: Value, tiles: View, a: Value, b: Value, N: int, places: Value,
        add: Value = True,
    ) -> None:  # fmt: skip
        _start(state, line, form, acc, i, tiles, a, b, N, add, places=places)

    taken = of_registers if form.registers else of_tiles if form.half is None else of_sparse
    intrinsic(taken, form.name, engines=True)


for _form in (E4M3, BF16, *SPARSE):
    _register(_form)
for _form in (F16, F16_ROWS, TF32, S8):
    _register(_form)
    _register(_form._replace(name=f"{_form.name}_registers", registers=True))


def end(state: State) -> None:
    """All threads have ended: what is still under way is at fault."""
    for lead, queue in state.engines.queues.items():
        for group, product in queue.under_way:
            what = "wgmma_wait" if group <= queue.committed else "wgmma_commit and no wgmma_wait"
            text = f"wgmma is still under way when its threads end: no {what} comes after it"
            state.fault_of(lead, "wgmma-order", product.line, product.sums.view.name, text, "no wait for wgmma")

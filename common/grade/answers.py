"""What a prediction is compared with: counted in code, worked out from a shape, or read from a record.

An expected value is written as words: a kind and its arguments, and ``within P`` for a tolerance in percent. Whole
numbers must match exactly and others within 1%, unless ``within`` says more. A figure that tables round is right as
it is, and rounded to the digits that they show.

``blocks STEP PRESET``, ``threads STEP PRESET``   what launch starts, all kernels together
``block STEP PRESET``                             threads in a block of its last kernel
``idle STEP PRESET``                              percent of its threads that have no output of their own
``gflop PRESET``, ``least_mb PRESET``, ``gemm_k PRESET``   of the problem; the last is the length of a sum
``floor_ms PRESET``                               from the ceilings in a record
``registers STEP``, ``shared_bytes STEP``         from the machine-code record, as are, of its multiply loop,
``per_fma``, ``loads_per_fma``, ``global_per_fma``, ``shared_per_fma STEP``
``warps STEP PRESET``                             that fit a multiprocessor, by registers, shared memory and threads
``fits THREADS REGISTERS BYTES``                  warps of such blocks that fit a multiprocessor
``fixed ARITHMETIC``                              what it comes to, written without spaces
``turns STRIDE``                                  wavefronts when lane l of a warp reads float l * STRIDE
``lanes turns PLACE [WIDTH]``                     the same when it reads WIDTH floats from PLACE on, arithmetic with l
``lanes sectors PLACE [WIDTH]``                   sectors of global memory that the warp touches when it does
``magic ...``                                     of a division by multiplication, see :func:`magic`
``sectors STEP SHAPE``                            sectors per request of the worst instruction, SHAPE as M=32,N=32,...
``ratio``, ``ms``, ``share``, ``counter``, ``perfma``   as :mod:`common.report.figures` has them: measured
``worked ...``                                    of the worked example, see :func:`worked`
"""

from __future__ import annotations

import ast
import math
import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from common.catalog import catalog, occupancy, problems
from common.catalog.problems import Conv3d
from common.grade import source
from common.jobs import messages
from common.jobs.messages import Started
from common.machine_code.loops import HotLoop
from common.machine_code.messages import Kernel
from common.records import records
from common.records.entries import MachineCode
from common.records.records import Record
from common.report import figures
from common.run import isolate
from common.trace import memory, trace

SECONDS = 120.0
NEAR = 1.0  # percent, where a value is no whole number
MEASURED = ("ratio", "ms", "share", "counter", "perfma")  # of figures.NAMED
ARCHITECTURE = "9.0"  # of the machine-code record

_WORKED_OUT = "worked out"

# NHWC input {2, 5, 6, 3}, KRSC filter {4, 3, 2, 3}
WORKED = Conv3d(N=2, C=3, D=1, H=5, W=6, K=4, T=1, R=3, S=2, stride_h=2, pad_h=1)


class AnswerError(ValueError):
    """A file of answers, or an expected value, cannot be read."""


@dataclass(frozen=True)
class Expected:
    """A value, the tolerance in percent, and where it comes from.

    ``shown`` is the value rounded to the digits that tables show, if they show it: what is near enough to either is
    right, so that an answer copied from a table is.
    """

    value: float
    within: float
    source: str
    shown: float | None = None

    @property
    def told(self) -> float:
        """The value as whoever reads the tables knows it."""
        return self.value if self.shown is None else self.shown

    @property
    def reason(self) -> str:
        """What a wrong answer was compared with, where that says more than that it can be worked out."""
        return "" if self.source == _WORKED_OUT else self.source

    def compare(self, answer: float) -> str:
        """Empty if the answer is right, else which way it is off."""
        if any(abs(answer - value) <= abs(value) * self.within / 100 for value in (self.value, self.told)):
            return ""
        return "too low" if answer < self.value else "too high"

    def slip(self, answer: float, slips: Mapping[str, str]) -> str:
        """What is said of the first of these mistakes, arithmetic and words, that comes to this answer; empty if
        none does. A mistake is met as nearly as the value itself must be.
        """
        for text, said in slips.items():
            wrong = evaluated(text)
            if abs(answer - wrong) <= abs(wrong) * max(self.within / 100, 1e-9):
                return said
        return ""


class Facts:
    """Works expected values out; what takes a process of its own is done once, and for many at a time."""

    def __init__(self) -> None:
        self._launches: dict[tuple[str, str], list[Started]] = {}
        self._touched: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def prepare(self, texts: Iterable[str]) -> None:
        """Count beforehand what all these expected values need."""
        pairs, touched = set(), set()
        for text in texts:
            kind, *arguments = text.split()
            if kind in ("blocks", "threads", "block", "idle", "warps", "staged"):
                pairs.add((arguments[0], arguments[1]))
            elif kind == "sectors":
                touched.add((arguments[0], arguments[1]))
        with self._lock:
            self._record(sorted(pairs - self._launches.keys()))
            self._touch(sorted(touched - self._touched.keys()))

    def expected(self, text: str) -> Expected:
        """The value that these words stand for; raises AnswerError if they make no sense."""
        self.prepare([text])
        words, _, tolerance = text.partition(" within ")
        kind, *arguments = words.split()
        if kind in MEASURED:
            return _measured(self, kind, arguments, float(tolerance or NEAR))
        if kind not in KINDS:
            raise AnswerError(f"{text!r}: kind {kind!r} is unknown: kinds are {', '.join((*KINDS, *MEASURED))}")
        value, source = KINDS[kind](self, arguments)
        within = float(tolerance) if tolerance else 0.0 if isinstance(value, int) else NEAR
        return Expected(value, within, source)

    @cached_property
    def record(self) -> Record | None:
        """The reference GPU's record, as the pages show it."""
        return records.other(records.REFERENCE_GPU)

    @cached_property
    def code(self) -> MachineCode:
        """The record of machine code."""
        return records.load_code()

    def launches(self, name: str, preset: str) -> list[Started]:
        return self._launches[name, preset]

    def _record(self, pairs: list[tuple[str, str]]) -> None:
        named = [(_file(name), problems.preset(preset)) for name, preset in pairs]
        tasks = [messages.Launches(ladder=one.ladder, path=str(path), shape=one.shape()) for path, one in named]
        for pair, (_, result) in zip(pairs, isolate.run(tasks, False, SECONDS), strict=True):
            if result["status"] != "right":
                raise AnswerError(f"{pair[0]}: {result['message']}")
            self._launches[pair] = result["launches"]

    def _touch(self, pairs: list[tuple[str, str]]) -> None:
        named = [(catalog.find(name), shape.replace(",", " ")) for name, shape in pairs]
        tasks = [trace.task(step, problems.parse_shape(step.ladder, shape), every=True) for step, shape in named]
        for pair, found in zip(pairs, trace.results(tasks), strict=True):
            self._touched[pair] = trace.worst(found)["sectors"]

    def sectors(self, name: str, shape: str) -> float:
        return self._touched[name, shape]


def worked(arguments: list[str]) -> int:
    """A number of the worked example, :data:`WORKED`.

    ``P``, ``Q``, ``GEMM_M``, ``GEMM_N``, ``GEMM_K``; ``n M``, ``p M`` or ``q M``, the output pixel of row M; ``r K``,
    ``s K`` or ``c K``, the tap and channel of column K; ``h M K`` or ``w M K``, the input pixel of both, and
    ``offset M K``, its place in x as it lies in memory; ``zeros M``, the elements of row M that are padding.
    """
    problem = WORKED
    name, numbers = arguments[0], [int(word) for word in arguments[1:]]
    outputs, taps = (problem.N, problem.P, problem.Q), (problem.R, problem.S, problem.C)
    sizes = {
        "P": problem.P, "Q": problem.Q, "GEMM_N": problem.K,
        "GEMM_M": math.prod(outputs), "GEMM_K": math.prod(taps),
    }  # fmt: skip
    if name in sizes:
        return sizes[name]
    if name in "npq":
        return int(np.unravel_index(numbers[0], outputs)["npq".index(name)])
    if name in "rsc":
        return int(np.unravel_index(numbers[0], taps)["rsc".index(name)])
    n, p, q = np.unravel_index(numbers[0], outputs)
    columns = np.arange(sizes["GEMM_K"]) if name == "zeros" else numbers[1]
    r, s, c = np.unravel_index(columns, taps)
    h, w = p * problem.stride_h - problem.pad_h + r, q * problem.stride_w - problem.pad_w + s
    places = {"h": h, "w": w, "offset": ((n * problem.H + h) * problem.W + w) * problem.C + c}
    if name == "zeros":
        return int(np.count_nonzero((h < 0) | (h >= problem.H) | (w < 0) | (w >= problem.W)))
    if name not in places:
        raise AnswerError(f"worked {name}: unknown")
    return int(places[name])


Kind = Callable[[Facts, list[str]], tuple[float, str]]


def _of_launch(count: Callable[[list[Started]], float], text: str) -> Kind:
    def kind(facts: Facts, arguments: list[str]) -> tuple[float, str]:
        name, preset = arguments
        return count(facts.launches(name, preset)), f"{text} of {name} on {preset}, counted"

    return kind


def _total(entries: list[Started], *keys: Literal["grid", "block"]) -> int:
    return sum(math.prod(extent for key in keys for extent in entry[key]) for entry in entries)


def _idle(facts: Facts, arguments: list[str]) -> tuple[float, str]:
    name, preset = arguments
    outputs = int(np.prod(problems.preset(preset).output_shape))
    threads = _total(facts.launches(name, preset), "grid", "block")
    return 100 * (1 - outputs / threads), f"percent of {name}'s threads without an output on {preset}, counted"


def _of_problem(value: Callable[[Any], float], text: str) -> Kind:
    def kind(_: Facts, arguments: list[str]) -> tuple[float, str]:
        return value(problems.preset(arguments[0])), f"{text} of {arguments[0]}"

    return kind


def _of_code(value: Callable[[Kernel], float], text: str) -> Kind:
    def kind(_: Facts, arguments: list[str]) -> tuple[float, str]:
        return value(_compiled(arguments[0])), f"{text} of {arguments[0]}, in its machine code"

    return kind


def _of_loop(count: Callable[[HotLoop], int], text: str) -> Kind:
    """So many in the multiply loop for each multiply-add."""

    def value(kernel: Kernel) -> float:
        loop = HotLoop.recorded(kernel)
        each = loop.per_multiply_add(count(loop))
        if each is None:
            raise AnswerError(f"{kernel.kernel}: multiplies in no loop")
        return each

    return _of_code(value, text)


def _compiled(name: str) -> Kernel:
    """The step's main kernel in the machine-code record; raises AnswerError without one."""
    kernel = records.main_kernel(records.load_code(), name)
    if kernel is None:
        raise AnswerError(f"{name}: not in the machine-code record; python -m common inspect --record writes it")
    return kernel


def _warps(facts: Facts, arguments: list[str]) -> tuple[float, str]:
    name, preset = arguments
    kernel = _compiled(name)
    threads = _total(facts.launches(name, preset)[-1:], "block")
    fits = occupancy.occupancy(ARCHITECTURE, threads, kernel.registers, kernel.shared_bytes)
    return fits.warps, f"warps of {name} that fit a multiprocessor"


def _floor(facts: Facts, arguments: list[str]) -> tuple[float, str]:
    record = facts.record
    if record is None or record.ceilings is None:
        raise AnswerError("no record has ceilings: make bench writes them")
    derived = records.derive(problems.preset(arguments[0]), 1.0, record.ceilings)
    if derived is None:
        raise AnswerError(f"no record has the ceiling of {arguments[0]}: make bench writes it")
    return derived.floor_ms, f"floor of {arguments[0]} on {record.gpu_name}"


def _measured(facts: Facts, kind: str, arguments: list[str], within: float) -> Expected:
    record = facts.record
    figure = figures.named(kind, record or records.nothing(), facts.code, arguments)
    if figure is None or record is None:
        raise AnswerError(f"{kind} {' '.join(arguments)}: nothing has been measured for it yet")
    source = f"{kind} {' '.join(arguments)}, measured on {record.gpu_name}"
    return Expected(figure.value, within, source, figure.shown)


def _turns(_: Facts, arguments: list[str]) -> tuple[float, str]:
    stride = int(arguments[0])
    count = _wavefronts(stride * np.arange(memory.WARP)[None], 1)
    return count, f"wavefronts at a stride of {stride} floats, counted"


def _wavefronts(words: NDArray[Any], width: int) -> int:
    return memory.wavefronts(words, np.ones_like(words, np.bool_), width).moved


def _fits(_: Facts, arguments: list[str]) -> tuple[float, str]:
    threads, registers, shared_bytes = map(int, arguments)
    found = occupancy.occupancy(ARCHITECTURE, threads, registers, shared_bytes).warps
    return found, f"warps that fit a multiprocessor, with {registers} registers in each of {threads} threads"


def _fixed(_: Facts, arguments: list[str]) -> tuple[float, str]:
    (text,) = arguments
    return evaluated(text), _WORKED_OUT


def evaluated(text: str, known: Mapping[str, float | None] | None = None) -> float:
    """What arithmetic of numbers, and of these names, comes to."""
    value = _value(ast.parse(text, mode="eval").body, known or {})
    assert value is not None
    return value


def _lanes(_: Facts, arguments: list[str]) -> tuple[float, str]:
    kind, place, *width = arguments
    words = np.array([[int(evaluated(place, {"l": lane})) for lane in range(memory.WARP)]])
    wide = int(width[0]) if width else 1
    if kind == "turns":
        return _wavefronts(words, wide), "wavefronts of a warp's read, counted"
    if kind != "sectors":
        raise AnswerError(f"lanes {kind}: unknown")
    touched = np.unique((words[..., None] + np.arange(wide)) * 4 // memory.SECTOR_BYTES)
    return len(touched), "sectors of a warp's read, counted"


def magic(arguments: list[str]) -> int:
    """A number of n // D done as n * M >> S, where M is 2**S / D rounded up.

    ``multiplier D S``, M; ``first_wrong D S``, the least n for which that is not n // D; ``least_shift D LIMIT``, the
    least S that is right for all n below LIMIT; ``bits D LIMIT``, of the largest product then.
    """
    name, divisor, last = arguments[0], int(arguments[1]), int(arguments[2])
    if name == "multiplier":
        return _multiplier(divisor, last)
    if name == "first_wrong":
        return _first_wrong(divisor, last, 1 << 62)
    if name in ("least_shift", "bits"):
        shift = next(shift for shift in range(64) if _first_wrong(divisor, shift, last) >= last)
        return shift if name == "least_shift" else (_multiplier(divisor, shift) * (last - 1)).bit_length()
    raise AnswerError(f"magic {name}: unknown")


def _multiplier(divisor: int, shift: int) -> int:
    return -(-(1 << shift) // divisor)


def _first_wrong(divisor: int, shift: int, limit: int) -> int:
    multiplier = _multiplier(divisor, shift)
    return next((n for n in range(limit) if n * multiplier >> shift != n // divisor), limit)


KINDS: dict[str, Kind] = {
    "blocks": _of_launch(lambda entries: _total(entries, "grid"), "blocks"),
    "threads": _of_launch(lambda entries: _total(entries, "grid", "block"), "threads"),
    "block": _of_launch(lambda entries: _total(entries[-1:], "block"), "threads in a block"),
    "idle": _idle,
    "gflop": _of_problem(lambda problem: problem.flops / 1e9, "GFLOP"),
    "least_mb": _of_problem(lambda problem: problem.least_bytes / 1e6, "least MB"),
    "gemm_k": _of_problem(lambda problem: problem.reduction, "products in a sum"),
    "floor_ms": _floor,
    "registers": _of_code(lambda kernel: kernel.registers, "registers"),
    "shared_bytes": _of_code(lambda kernel: kernel.shared_bytes, "bytes of shared memory"),
    "per_fma": _of_loop(lambda loop: loop.total, "instructions per multiply-add"),
    "global_per_fma": _of_loop(lambda loop: loop.count("LDG"), "global loads"),
    "shared_per_fma": _of_loop(lambda loop: loop.count("LDS", "LDSM"), "shared loads"),
    "loads_per_fma": _of_loop(lambda loop: loop.loads, "loads per multiply-add"),
    "warps": _warps,
    "fits": _fits,
    "fixed": _fixed,
    "turns": _turns,
    "lanes": _lanes,
    "magic": lambda _, arguments: (magic(arguments), f"division by {arguments[1]}, counted"),
    "sectors": lambda facts, words: (facts.sectors(*words), f"sectors per request of {words[0]}, counted"),
    "worked": lambda _, arguments: (worked(arguments), _WORKED_OUT),
}


def _file(name: str) -> Path:
    """A step's file, or a solution's."""
    found = sorted(catalog.LESSONS.glob(f"*/solutions/{name}.py"))
    return found[0] if found else catalog.find(name).path


# --- reading a student's answers, without running them ---

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
_LARGEST = 10.0**30
_MUST = f"must be NAME = number of at most {_LARGEST:g}, or arithmetic of numbers"


def read(path: Path, text: str | None = None) -> dict[str, float | None]:
    """The names a file assigns and their values: numbers, arithmetic of numbers and of names assigned before.

    ``text`` is the file's, if it was taken before. None where nothing is answered yet. Raises AnswerError naming the
    line of anything else.
    """
    try:
        text = source.text_of(source.take(path)) if text is None else text
        tree = ast.parse(text)
    except source.SourceError as error:
        raise AnswerError(f"{path.name}: {error}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        said = _cut((text or "").split("\n")[line - 1 :][:1])
        raise AnswerError(f"{path.name}:{line}: {said}: not readable as Python: {_MUST}") from None
    found: dict[str, float | None] = {}
    lines = text.split("\n")
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        names, value = _assigned(statement)
        said = f"{path.name}:{statement.lineno}: {_cut(lines[statement.lineno - 1 :][:1])}"
        if len(names) != 1 or not isinstance(names[0], ast.Name) or value is None:
            raise AnswerError(f"{said}: {_MUST}")
        try:
            found[names[0].id] = _value(value, found)
        except (ArithmeticError, TypeError, KeyError, RecursionError) as error:
            reason = f"cannot be worked out: {_MUST}"
            if isinstance(error, KeyError):
                reason = f"{error.args[0]} has no value yet"
            raise AnswerError(f"{said}: {reason}") from None
    return found


def _assigned(statement: ast.stmt) -> tuple[list[ast.expr], ast.expr | None]:
    """What a statement assigns to, and what; nothing if it is another."""
    if isinstance(statement, ast.Assign):
        return statement.targets, statement.value
    return ([statement.target], statement.value) if isinstance(statement, ast.AnnAssign) else ([], None)


def _cut(lines: list[str]) -> str:
    """A line as it is quoted: without what is beside it, and not too long."""
    line = "".join(lines).strip()
    return f"`{line}`" if len(line) <= 80 else f"`{line[:77]}...`"


def _value(node: ast.expr, known: Mapping[str, float | None]) -> float | None:
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.Name):
        value = known[node.id]
        if value is None:
            raise KeyError(node.id)
        return value
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _bounded(_OPERATORS[type(node.op)](_value(node.operand, known)))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, known), _value(node.right, known)
        if isinstance(node.op, ast.Pow):
            if left is None or right is None or abs(right) > 64 or abs(left) > 10**6:
                raise ArithmeticError
            return _bounded(left**right)
        if type(node.op) in _OPERATORS:
            return _bounded(_OPERATORS[type(node.op)](left, right))
    raise TypeError


def _bounded(value: Any) -> float:
    if isinstance(value, complex) or not abs(value) <= _LARGEST:
        raise ArithmeticError
    return value  # type: ignore[no-any-return]

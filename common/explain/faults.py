"""What went wrong, in the book's words: errors and findings, each with its source line and what to look at.

Numba's and the driver's messages are matched by patterns; one that none of them matches has no explanation, and is
then shown as it is.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import pkgutil
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypedDict, TypeVar, cast

_Node = TypeVar("_Node", bound=ast.AST)

# What to look at, by kind of fault.
LOOK_AT = {
    "bytes": "the file's bytes: a step file is plain text in UTF-8",
    "too-deep": "the expression here: split it",
    "syntax": "this line, and the one before it: a bracket, quote or colon that is missing shows late",
    "import": "the spelling, and whether the package is installed in this environment",
    "launch": "the function launch at the file's end: the workbook calls it by this name, with these arguments",
    "shape-not-constant": "give the shape a name above the kernel, in the blank if there is one, such as "
    "TILE_SHAPE = (TILE, TILE + 1), and use that name: inside the call Numba computes nothing, and a value known "
    "only at run time is no shape",
    "dtype": "the dtype: a Numba type such as float32, imported from numba",
    "float-index": "how the index is computed: / gives a float, // an integer",
    "index-count": "the number of indices against the array's axes",
    "two-types": "the lines that set it: a variable has one type throughout a kernel",
    "unknown-name": "the spelling, and whether the name is set before this line or outside the kernel",
    "unset-variable": "the branches before this line: one of them does not set it",
    "unknown-attribute": "the spelling",
    "argument-count": "this call against the function's parameters",
    "unsupported": "kernels know numbers, arrays by element, loops, math and cuda: write it with these",
    "allocates": "a loop in its place, acc += a[m, k] * b[k, n], and cuda.local.array(SIZE, float32) for values that "
    "a thread keeps: a kernel allocates no array",
    "returns": "store the value in an array: a kernel returns nothing",
    "launch-form": "the line that starts the kernel: kernel[grid, block](arguments), sizes in whole numbers",
    "no-decorator": "the line above def: @cuda.jit makes a kernel, @cuda.jit(device=True) a function for kernels",
    "returns-nothing": "the return at the end of this function: launch gets what it returns",
    "array-for-number": "the number of indices: an element takes one number, and an array has an index for each axis",
    "constant-written": "the array: what a kernel takes from its module is constant, arguments can be written",
    "raises": "this line: only launch, prepare, workspace and the import may refuse a shape, by a ValueError that "
    "says why; what a kernel raises, a GPU does not hear",
    "in-kernel": "the values that this line computes with, for this thread",
    "recursion": "what ends the recursion: it must be reached",
    "ends-process": "this line: a step file returns, and neither exits nor interrupts",
    "died": "this line, and what it calls outside Python: an address that is not its own ends the whole process",
    "builtins": "this line: the workbook and Numba need Python's own names as they are",
    "warp-sync": "the branches around this call, and its mask: all lanes that it names must come to this line",
    "launch-limits": "what launch asks for: threads per block are block x times y times z, and dynamic shared "
    "memory comes on top of the arrays in the kernel",
    "constant-memory": "pass the array to the kernel as an argument, or refuse large filters: a host array "
    "that a kernel names is compiled in, a copy in constant memory",
    "grid-barrier": "the grid in launch: as many blocks as are resident at once, which "
    "kernel.overloads[...].max_cooperative_grid_blocks(block) tells, each in a loop over its tiles",
    "dynamic-overlap": "one cuda.shared.array(0, dtype), and slices of it: tiles[:SIZE] and tiles[SIZE:]",
    "not-called": "the brackets: without () the line does nothing",
    "whole-numbers": "the array's dtype: float32 holds what is stored in it",
    "stream": "the stream here: leave it out, of launches and of copies",
    "registers": "fewer threads per block, or fewer values that each thread keeps: the register tile",
    "shared-memory": "the shapes of the shared arrays: elements times 4 bytes, added up over all of them",
    "outside": "this index and its guard: does it belong to this axis, and is it compared with the axis's extent?",
    "negative-index": "the index's lower bound: as in Python, -1 is the last element and raises nothing",
    "illegal-address": "the indices of every access to an argument array, and their guards",
    "misaligned": "the offset: a 128-bit access needs a multiple of 4 elements, of 8 if they are float16, a 64-bit "
    "access one of 2",
    "launch-failed": "the accesses to shared and global memory: one of them hit an address that nothing owns",
    "endless": "what ends this loop: does the variable it tests change in every round, for every thread?",
    "watchdog": "a smaller problem: a GPU that draws the screen stops kernels after a few seconds",
    "divergent-barrier": "the conditions around cuda.syncthreads(): all threads of a block must come to the same one",
    "memory": "what workspace and prepare allocate: their shapes times the bytes of an element",
    "not-compiled": "whether kernels know the function; a signature in @cuda.jit(...) and forall ask for a GPU, too",
    "float64": "the literals: write float32(0.0) for 0.0, and for a sum that starts as 0; and device_array(shape, "
    "np.float32)",
    "race": "the barriers: cuda.syncthreads() after a tile is staged, and again before the next is staged over it",
    "copy-not-awaited": "wait_async(), or wait_group() with fewer groups pending, before the barrier that the copied "
    "tile is read after",
    "descriptor": "its fields: a tile begins on a 1024-byte boundary, and eight rows of 128 bytes are one stride",
    "mbarrier": "barrier_init, publish_barriers and the barrier of the block behind them; then the arrivals "
    "and bytes of a phase against what barrier_init and barrier_expect say",
    "deadlock": "who completes the phase that is waited for: arrivals, bytes, and its parity, 0 for the first",
    "proxy-fence": "fence_async() by every thread that wrote, then a barrier, before wgmma or tma_store2 reads it",
    "wgmma-order": "wgmma_fence() after the sums were set, wgmma_commit(), and wgmma_wait(0) before they are read",
    "operand": "this call's arguments, against what the helper's docstring says",
    "left-cluster": "the kernel's end: cluster_sync() keeps a block and its shared memory until the others are done",
    "zero-division": "what this divides by: on a GPU the quotient is some number, and no error",
    "input-written": "this store: a program's other kernels may read the input meanwhile",
    "unsound": "what this line shares with other threads, or reads before it is set",
    "refused": "the conditions under which launch, prepare or workspace raise: every positive extent must be right",
    "overlap": "how launch's grid and the kernel's first lines divide the output: no two blocks may own one element",
    "read-before-write": "set it first: neither shared nor local arrays start at zero",
    "unwritten": "what leads to this store: its guard, the loop around it, and the grid in launch",
    "nan": "reads beyond an input's end, and sums that nothing set to zero",
    "wrote_outside": "the guard of this store, and the index it compares",
    "modified_input": "this store: inputs are only read",
    "stale": "what is kept between launches: a cache with too short a key, weights read once, an old workspace",
    "unstable": "the barriers, and memory that is read before it is written",
    "imprecise": "the types: a sum that is an integer or a float16, TF32; or a term that is left out",
}

# What no right kernel does, whatever it computes: kinds in the order in which they are told, and their names.
UNSOUND = {
    "raises": "exception in a kernel",
    "misaligned": "misaligned access",
    "outside": "out of bounds",
    "negative-index": "negative index",
    "operand": "operand that an instruction does not take",
    "descriptor": "wrong descriptor",
    "divergent-barrier": "barrier not reached by all threads",
    "warp-sync": "threads of a warp that do not meet",
    "mbarrier": "wrong use of a barrier that counts bytes",
    "copy-not-awaited": "read of a copy that was not waited for",
    "proxy-fence": "tile handed over without a fence",
    "wgmma-order": "sums used while wgmma is under way",
    "left-cluster": "block that may have ended",
    "race": "race",
    "read-before-write": "uninitialised read",
    "overlap": "race between blocks",
    "deadlock": "wait that never ends",
    "zero-division": "division by zero",
    "input-written": "store in an input",
}

_OF_UNSET_MEMORY = ("nan", "unstable", "unsound")  # findings that a read of what nobody wrote explains


class FindingFields(TypedDict):
    """A :class:`common.check.check.Finding` ready for JSON."""

    kind: str
    message: str


class FaultFields(TypedDict):
    """A :class:`Fault` ready for JSON."""

    kind: str
    what: str
    line: int | None
    code: str
    look_at: str
    array: str
    thread: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    count: int
    met: int


@dataclass(frozen=True)
class Fault:
    """One fault. ``kind`` is a key of LOOK_AT; ``line`` counts from 1 in the step's file, ``code`` is its text.

    What the tracer saw has the ``array`` that it concerns, the first ``thread`` of a ``block`` that met it, each as
    (x, y, z), and of how many times it is the first. ``met``: as which of its kernel's faults it was met, from 1 on,
    where the later ones may follow from those before them; else 0.
    """

    kind: str
    what: str
    line: int | None = None
    code: str = ""
    look_at: str = ""
    array: str = ""
    thread: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    count: int = 1
    met: int = 0

    @property
    def placed(self) -> str:
        """What it is, with the place of the thread that met it if that is known."""
        if self.thread is None or self.block is None:
            return self.what
        thread, block = (", ".join(map(str, place)) for place in (self.thread, self.block))
        return f"{self.what} (line {self.line}, thread ({thread}) of block ({block}))"

    def as_dict(self) -> FaultFields:
        """Its fields, as results have them."""
        return cast(FaultFields, {**vars(self)})

    @classmethod
    def of(cls, fields: FaultFields) -> Fault:
        """The fault of which these are :meth:`as_dict`."""
        return cls(**fields)


def telling(one: Fault) -> tuple[int, int]:
    """A key that sorts what is unsound as it is told: by kind, and what may follow from another fault after it."""
    return max(one.met - 1, 0), list(UNSOUND).index(one.kind)


def of_error(error: BaseException, path: Path) -> Fault | None:
    """Explain what the step file at ``path`` raised, or a compiler or driver on its behalf; None if unknown."""
    text = f"{type(error).__name__}: {error}"
    for kind, pattern, say in _ERRORS:
        found = re.search(pattern, text, re.DOTALL)
        if found is None:
            continue
        said = (found.expand(say), "") if isinstance(say, str) else say(found, path)
        if said:
            return fault(kind, said[0], path, _line(error, kind, found, path), said[1])
    return None


def of_mistake(text: str, path: Path, line: int | None) -> Fault:
    """What a kernel does that no GPU does as it is meant, in the tracer's words."""
    if re.match(r"line \d+: np\.\w+ (makes|takes)", text):
        return fault("allocates", re.sub(r"^line \d+: ", "", text), path, line)
    if "lies in constant memory" in text:
        return fault("constant-written", "the kernel writes to an array that it takes as a constant", path, line)
    return fault("in-kernel", text, path, line)


def of_end(message: str, path: Path) -> Fault | None:
    """Explain how the process of the step file at ``path`` ended; ``message`` has :func:`last_words`."""
    died = re.search(r"the process died of (\w+)(?:.*[;:] ([\w ]+) in \S+:\d+)?", message)
    line = re.search(rf"{re.escape(path.name)}:(\d+)", message)
    if died:
        how = f"{died[1]}, {died[2].lower()}" if died[2] and line else died[1]
        at = int(line[1]) if line else next(_calls(path, "kill", "killpg", "abort", "raise_signal"), None)
        return fault("died", f"the file's process died of {how}", path, at)
    ended = re.search(r"the process ended with exit code (\d+)", message)
    at = next(_calls(path, "_exit"), None)
    if ended and at:
        return fault("ends-process", f"the file ends its process with exit code {ended[1]}", path, at)
    return None


_FRAMES = 12  # of a crash that are told


def last_words(log: list[str]) -> str:
    """The last line of a log, and what a crash handler wrote after it: where Python was, innermost first."""
    fatal = [number for number, line in enumerate(log) if line.startswith("Fatal Python error: ")]
    if not fatal:
        return cut(log[-1], 300) if log else ""
    dump = log[fatal[-1] :]
    frames = [re.match(r'  File "(.*)", line (\d+) in ', line) for line in dump]
    places = [f"{Path(frame[1]).name}:{frame[2]}" for frame in frames if frame]
    said = [cut(line, 300) for line in log[: fatal[-1]] if line.strip()][-1:]
    return "; ".join([*said, f"{dump[0].partition(': ')[2]} in {', '.join(places[:_FRAMES])}"])


def of_changed_builtins(names: list[str], path: Path) -> Fault:
    """The step file at ``path`` took away or replaced these names of Python."""
    statements = (node for node in _walk(path) if isinstance(node, ast.Delete | ast.Assign | ast.Call))
    line = next((one.lineno for one in statements if any(name in ast.unparse(one) for name in names)), None)
    return fault("builtins", f"the file changes Python's own {', '.join(sorted(names))}", path, line)


def cut(text: str, most: int = 160) -> str:
    """A text no longer than a reader reads, what is left out said, and nothing in it that a terminal obeys."""
    shown = text[:most].replace("\t", " ")
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
    return shown if len(text) <= most else f"{shown} ... ({len(text) - most} more characters)"


def of_finding(finding: FindingFields, seen: list[Fault], path: Path, operands: tuple[str, ...]) -> Fault | None:
    """Explain a check's finding.

    ``seen`` is what is unsound about the launches that it is of. ``operands`` are the names of the two inputs and the
    output.
    """
    kind = finding["kind"]
    for one in sorted((one for one in seen if one.kind in UNSOUND), key=telling):
        if one.kind != "read-before-write" or kind in _OF_UNSET_MEMORY or one.met == 1:
            return fault(one.kind, one.placed, path, one.line, one.look_at)
    if kind not in LOOK_AT:
        return None
    names = operands[:2] if kind == "modified_input" else operands[2:]
    lines = sorted(set(stores(path, names)))
    told = kind in ("unwritten", "wrote_outside", "modified_input") or (kind == "nan" and len(lines) == 1)
    line = lines[0] if told and lines else None
    return fault(kind, finding["message"], path, line)


_BARRIERS = ("syncthreads", "syncwarp", "threadfence", "threadfence_block")
_WHOLE = re.compile(r"u?int(8|16|32|64)$")


def of_text(path: Path) -> list[Fault]:
    """Mistakes that stand in the text of a file that is not right."""
    found = []
    for node in _each(path, ast.Expr):
        if isinstance(node.value, ast.Attribute) and node.value.attr in _BARRIERS:
            text = f"{ast.unparse(node.value)} is named here and not called: () is missing"
            found.append(fault("not-called", text, path, node.lineno))
    for function in _each(path, ast.FunctionDef):
        made = [
            (name, call, line) for name, call, line in _arrays(function) if ast.unparse(call.args[0]) in ("0", "(0,)")
        ]
        if len(made) > 1:
            names = " and ".join(name for name, _, _ in made)
            text = f"{names} are the same memory and overlap: each cuda.shared.array(0, ...) starts at byte 0"
            found.append(fault("dynamic-overlap", text, path, made[1][2]))
        parameters = {one.arg for one in function.args.args}
        for name, call, line in _arrays(function):
            whole = len(call.args) > 1 and _WHOLE.search(kind := ast.unparse(call.args[1]))
            if whole and _holds(function, name, parameters):
                text = f"{name} holds {kind}: what is stored in it loses its fraction"
                found.append(fault("whole-numbers", text, path, line))
    return found


def _holds(function: ast.FunctionDef, array: str, operands: set[str]) -> bool:
    """Is an element of an operand stored in an array?"""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith(f"{array}["):
            read = (part.value for part in ast.walk(node.value) if isinstance(part, ast.Subscript))
            if any(isinstance(one, ast.Name) and one.id in operands for one in read):
                return True
    return False


def _arrays(function: ast.FunctionDef) -> Iterator[tuple[str, ast.Call, int]]:
    """The shared and local arrays that are given names here, each with its call and line."""
    for node in ast.walk(function):
        call = node.value if isinstance(node, ast.Assign) else None
        if (
            isinstance(call, ast.Call)
            and call.args
            and ast.unparse(call.func).endswith(("shared.array", "local.array"))
        ):
            yield ast.unparse(node.targets[0]), call, node.lineno  # type: ignore[attr-defined]


def of_float64(path: Path) -> Fault:
    """The compiled kernel computes in float64, which is right and slow."""
    places = (_float_literals(path), _integer_sums(path), _untyped_arrays(path))
    line = next((line for lines in places for line in lines), None)
    return fault("float64", "the compiled kernel computes in float64", path, line)


def of_time_out(seconds: float, path: Path, line: int | None, what: str = "the kernel") -> Fault:
    """The kernel, or ``what`` else of the file, did not end; ``line`` is where it was, and that of the loop around
    it is named."""
    loop = _loop_around(path, line) if line else None
    return fault("endless", f"{what} was still running after {seconds:.0f} s", path, loop or line)


def fault(kind: str, what: str, path: Path, line: int | None = None, look_at: str = "") -> Fault:
    """A fault with its line's text, and what to look at for its kind unless that is given."""
    return Fault(kind, cut(what, 600), line, cut(_text_of(path, line)), look_at or LOOK_AT[kind])


# --- where ---


def _line(error: BaseException, kind: str, found: re.Match[str], path: Path) -> int | None:
    """The line to show, from the error's own words, from where it came, or from the file's text."""
    if isinstance(error, SyntaxError) and Path(error.filename or path.name).name == path.name:
        return syntax_line(error, path)
    if kind in ("no-decorator", "returns-nothing"):
        return _defined_at(kind, error, found, path)
    if kind == "too-deep":
        lines = _text(path).split("\n")
        return 1 + max(range(len(lines)), key=lambda number: len(lines[number]))
    called = re.match(r"TypeError: (launch|prepare|workspace)\(\) ", found.string)
    if called and _raised_at(error, path) is None:
        return next(_definitions(path, called[1]), None)
    if kind == "launch":
        return next(_definitions(path, "launch"), None)
    named = re.findall(rf'File "[^"]*{re.escape(path.name)}", line (\d+)', str(error))
    if named and kind != "two-types":
        return int(named[-1])
    if kind == "two-types":
        return next(_assignments(path, found[3]), None)
    if kind == "endless":
        return _tested(path, found[1])[1]
    if (at := _raised_at(error, path)) is not None:
        return at
    if kind in ("argument-count", "registers", "launch-limits", "grid-barrier"):
        return next(launches(path), None)
    if kind == "recursion":
        return next(_own_calls(path), None)
    if kind == "shared-memory":
        return next(_calls(path, "array", "shared_array"), None)
    return None


def _raised_at(error: BaseException, path: Path) -> int | None:
    """The file's line that the error came from, or that Numba was working on."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if Path(frame.f_code.co_filename).name == path.name:
            return line
        if (worked_on := kernel_line(frame, path)) is not None:
            return worked_on
    return None


def syntax_line(error: SyntaxError, path: Path) -> int | None:
    """The line of an error in the file at ``path``; Python does not say it of bytes that are no text."""
    try:
        data = path.read_bytes()
    except OSError:
        return error.lineno
    message = str(error.msg)
    undecodable = re.search(r"codec can't decode byte .* in position (\d+)", message)
    at = data.find(b"\0") if "null byte" in message else None
    if undecodable:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as wrong:
            at = wrong.start
    if at is not None and at >= 0:
        return len(re.findall(rb"\r\n|\r|\n", data[:at])) + 1
    if "encoding" in message:
        return next((n for n, line in enumerate(data.split(b"\n")[:2], 1) if b"coding" in line), 1)
    return error.lineno


def _defined_at(kind: str, error: BaseException, found: re.Match[str], path: Path) -> int | None:
    """The line of the function whose decorator or return is missing."""
    at = _raised_at(error, path)
    name = found.groupdict().get("name") or (_started(path, at) if at else None)
    if kind == "returns-nothing":
        name = _nothing_returned(path) or "workspace"
    elif not name:
        inner = _function_around(path, at)
        return at if inner is None or inner.name == "launch" else inner.lineno
    return next(_definitions(path, name), at) if name else at


def kernel_line(frame: FrameType, path: Path) -> int | None:
    """The line of the file at ``path`` that Numba was working on in this frame of its own, if it was."""
    for name in ("inst", "self"):
        with suppress(AttributeError):
            # not getattr: the driver's objects do much when asked for an attribute
            place = object.__getattribute__(frame.f_locals.get(name), "__dict__").get("loc")
            if type(place).__name__ == "Loc" and Path(place.filename).name == path.name:
                return int(place.line)
    return None


def stores(path: Path, names: tuple[str, ...]) -> Iterator[int]:
    """Lines that store into elements of the arrays called ``names``."""
    for node in _each(path, ast.Subscript):
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id in names:
            yield node.lineno


def launches(path: Path) -> Iterator[int]:
    """Lines that start a kernel: ``kernel[grid, block](...)``."""
    return (node.lineno for node in _each(path, ast.Call) if isinstance(node.func, ast.Subscript))


def _started(path: Path, line: int) -> str | None:
    """The name that this line starts as a kernel: ``name[...](...)``."""
    for node in _each(path, ast.Subscript):
        started = node.lineno <= line <= (node.end_lineno or 0) and node.value
        if isinstance(started, ast.Name) and next(_definitions(path, started.id), None):
            return started.id
    return None


def _function_around(path: Path, line: int | None) -> ast.FunctionDef | None:
    """The innermost function that holds this line."""
    functions = _each(path, ast.FunctionDef)
    around = [one for one in functions if line and one.lineno <= line <= (one.end_lineno or 0)]
    return max(around, key=lambda one: one.lineno, default=None)


def _nothing_returned(path: Path) -> str | None:
    """Which of ``prepare`` and ``workspace`` is there and has no ``return`` with a value."""
    for function in _each(path, ast.FunctionDef):
        returns = (node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None)
        if function.name in ("prepare", "workspace") and next(returns, None) is None:
            return function.name
    return None


def _loop_around(path: Path, line: int) -> int | None:
    """The first line of the innermost loop that holds ``line``: a ``while`` if there is one, as others end."""
    loops = _each(path, ast.While, ast.For)
    around = [loop for loop in loops if loop.lineno <= line <= (loop.end_lineno or 0)]
    whiles = [loop for loop in around if isinstance(loop, ast.While)]
    return max((loop.lineno for loop in whiles or around), default=None)


def _while_testing(path: Path, name: str) -> Iterator[int]:
    """Lines of ``while`` loops that test a variable."""
    for node in _each(path, ast.While):
        if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.test)):
            yield node.lineno


def _definitions(path: Path, name: str) -> Iterator[int]:
    return (node.lineno for node in _each(path, ast.FunctionDef) if node.name == name)


def _assignments(path: Path, name: str) -> Iterator[int]:
    names = _each(path, ast.Name)
    return (node.lineno for node in names if isinstance(node.ctx, ast.Store) and node.id == name)


def _calls(path: Path, *names: str) -> Iterator[int]:
    for node in _each(path, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in names:
            yield node.lineno


def _float_literals(path: Path) -> Iterator[int]:
    """Lines with a float that no float32(...) is around."""
    nodes = list(_walk(path))
    arguments = (argument for node in nodes if isinstance(node, ast.Call) for argument in node.args)
    wrapped = {id(inner) for argument in arguments for inner in ast.walk(argument)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and id(node) not in wrapped:
            yield node.lineno


def _own_calls(path: Path) -> Iterator[int]:
    """Lines of functions that call themselves."""
    for node in _each(path, ast.FunctionDef):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == node.name:
                yield inner.lineno


def _untyped_arrays(path: Path) -> Iterator[int]:
    """Lines that make an array on the device and leave it to Numba that it holds float64."""
    for line in _calls(path, "device_array"):
        if "dtype" not in _text_of(path, line) and "np." not in _text_of(path, line):
            yield line


def _integer_sums(path: Path) -> Iterator[int]:
    """Lines that set to a whole number what is added to later, in place."""
    sums = {node.target.id for node in _each(path, ast.AugAssign) if isinstance(node.target, ast.Name)}
    for node in _each(path, ast.Assign):
        if isinstance(node.value, ast.Constant) and type(node.value.value) is int:
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            yield from [node.lineno] if names & sums else []


def _walk(path: Path) -> Iterator[ast.AST]:
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from ast.walk(tree)


def _each(path: Path, *kinds: type[_Node]) -> Iterator[_Node]:
    return (node for node in _walk(path) if isinstance(node, kinds))


def _text_of(path: Path, line: int | None) -> str:
    """A line of the file, as Python counts them: a form feed ends none."""
    lines = _text(path).split("\n")
    return lines[line - 1].strip() if line and line <= len(lines) else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- what ---

# What kernels mostly ask of cuda.
_CUDA = (
    "threadIdx", "blockIdx", "blockDim", "gridDim", "grid", "gridsize", "syncthreads", "shared", "local", "const",
    "atomic", "laneid", "warpsize", "fma", "popc", "syncwarp", "shfl_sync", "shfl_up_sync", "shfl_down_sync",
    "shfl_xor_sync", "ballot_sync", "all_sync", "any_sync", "activemask", "lanemask_lt",
)  # fmt: skip

_Say = Callable[[re.Match[str], Path], tuple[str, str] | None]


def _did_you_mean(name: str, known: list[str], before: str = "") -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f". Did you mean {before}{close[0]}?" if close else ""


def _syntax(found: re.Match[str], path: Path) -> tuple[str, str]:
    message, file, line = found.groups()
    if file is None:
        return f"syntax error: {cut(message)}", ""
    imported = "" if file == path.name else f"line {line} of {file}, which is imported here, and the line before it"
    return f"{file}:{line}: syntax error: {message}", imported


def _bytes(found: re.Match[str], path: Path) -> tuple[str, str]:
    if "null" in found[0]:
        return f"{path.name} holds a NUL byte, which no Python source has", ""
    said = re.sub(r" \([^()]*, line \d+\)$", "", found.string.partition(": ")[2])
    return f"{path.name} cannot be read as text: {said}", ""


def _plain_started(_: re.Match[str], path: Path) -> tuple[str, str]:
    defined = {node.name: node for node in _each(path, ast.FunctionDef)}
    for line in launches(path):
        name = _started(path, line)
        if name and not any("cuda" in ast.unparse(decorator) for decorator in defined[name].decorator_list):
            what = "is compiled for the CPU" if defined[name].decorator_list else "is a plain function"
            return f"line {line} starts {name} as a kernel, and {name} {what}: @cuda.jit is missing above it", ""
    return "what is started as a kernel here is none: @cuda.jit is missing above it", ""


def _outside_kernel(found: re.Match[str], _: Path) -> tuple[str, str]:
    return f"cuda.{found[1]} is used in plain Python, and only kernels have it: @cuda.jit is missing above it", ""


def _returned_nothing(found: re.Match[str], path: Path) -> tuple[str, str] | None:
    places = {"prepare": "the weights' place in launch", "workspace": "the last place in launch"}
    name = _nothing_returned(path)
    if name is None and "launch()" in found[0] and next(_definitions(path, "workspace"), None):
        name = "workspace"
    return (f"{name} returns nothing, and what it returns takes {places[name]}", "") if name else None


def _none_used(_: re.Match[str], path: Path) -> tuple[str, str] | None:
    makers = [name for name in ("prepare", "workspace") if next(_definitions(path, name), None)]
    return ("None is used as an array", f"what {' and '.join(makers)} return, in every case") if makers else None


def _too_deep(found: re.Match[str], path: Path) -> tuple[str, str] | None:
    try:
        compile(_text(path), path.name, "exec", dont_inherit=True)
    except (RecursionError, MemoryError):
        return "an expression nests deeper than Python compiles", ""
    except (SyntaxError, ValueError):
        pass
    return None


def _keyword(found: re.Match[str], _: Path) -> tuple[str, str]:
    if found[1] in ("__call__", "_call", "called", "checked", "counted", "note", "record"):
        return f"the kernel is given {found[2]} by its name: a kernel takes its arguments by their order", ""
    return f"{found[1]} has no parameter {found[2]}", ""


def _exit(found: re.Match[str], _: Path) -> tuple[str, str]:
    code = found[1].strip()
    numbered = not code or re.fullmatch(r"-?\d+|None", code)
    how = f" with exit code {code.strip('None') or 0}" if numbered else f": {code}"
    return f"the file ends its process{how}", ""


def _no_module(found: re.Match[str], _: Path) -> tuple[str, str]:
    name = found[1]
    parent, _dot, last = name.rpartition(".")
    try:
        spec = importlib.util.find_spec(parent) if parent else None
    except ImportError:
        spec = None
    folders = list(spec.submodule_search_locations or []) if spec else []
    known = [module.name for module in pkgutil.iter_modules(folders or None)]
    return f"there is no module {name}" + _did_you_mean(last, known, f"{parent}." if parent else ""), ""


def _no_name(found: re.Match[str], _: Path) -> tuple[str, str]:
    return _not_in(found["name"], found["module"]), ""


def _no_cuda(found: re.Match[str], _: Path) -> tuple[str, str]:
    return f"cuda has no {found[1]}" + _did_you_mean(found[1], list(_CUDA)), ""


def _not_in(name: str, module: str) -> str:
    try:
        known = dir(importlib.import_module(module))
    except Exception:
        known = []
    return f"{module} has no {name}" + _did_you_mean(name, known)


def _tested(path: Path, named: str) -> tuple[str, int | None]:
    """The first of the quoted variables that a ``while`` tests, and that line."""
    for name in re.findall(r"'(\w+?)(?:\.\d+)?'", named):
        for line in _while_testing(path, name):
            return name, line
    return "what it tests", None


def _endless(found: re.Match[str], path: Path) -> tuple[str, str]:
    return f"a loop has no end: {_tested(path, found[1])[0]} never changes", ""


def _two_types(found: re.Match[str], path: Path) -> tuple[str, str]:
    first, second, name = _plain_type(found[1]), _plain_type(found[2]), found[3]
    lines = " and ".join(map(str, _assignments(path, name)))
    look_at = f"lines {lines}, which set {name}: a variable has one type throughout a kernel" if lines else ""
    return f"{name} is {first} in one place and {second} in another", look_at


_IMPORTS = {"np": "import numpy as np", "math": "import math"} | {
    name: f"from numba import {name}" for name in ("cuda", "float32", "float16", "int32", "uint32")
}


def _undefined(found: re.Match[str], path: Path) -> tuple[str, str]:
    name = found[1]
    if name in _IMPORTS:
        called = re.search(rf"\bnp\.({'|'.join(ARRAY_MAKERS)})\b", _text(path)) if name == "np" else None
        more = f"; and {made(called[1])}" if called else ""
        return f"{name} is not imported: {_IMPORTS[name]} is missing{more}", "the imports at the file's top"
    known = sorted({node.id for node in _each(path, ast.Name)} - {name})
    return f"nothing is called {name} here" + _did_you_mean(name, known), ""


def _never_set(found: re.Match[str], path: Path) -> tuple[str, str]:
    name = found[1]
    added = any(getattr(node.target, "id", "") == name for node in _each(path, ast.AugAssign))
    start = f"the lines before the loop: {name} = float32(0.0) is missing" if added else ""
    return f"{name} is read before it is set", start


# What of NumPy makes an array in a kernel, or takes whole ones.
ARRAY_MAKERS = (
    "zeros", "empty", "ones", "full", "array", "zeros_like", "empty_like", "ones_like", "full_like", "arange", "dot",
    "vdot", "inner", "matmul", "einsum", "copy", "transpose", "concatenate", "stack", "outer", "linspace", "eye",
)  # fmt: skip
_OF_WHOLE = ("dot", "vdot", "inner", "matmul", "einsum", "outer")


def made(name: str) -> str:
    """That a kernel has no such function of NumPy."""
    takes = "takes whole arrays, and a kernel takes" if name in _OF_WHOLE else "makes an array, and a kernel makes"
    return f"np.{name} {takes} none"


def _mismatch(found: re.Match[str], _: Path) -> tuple[str, str]:
    return f"the kernel is called with {found[1]} arguments, and it has {found[2]} parameters", ""


def _no_such_function(found: re.Match[str], _: Path) -> tuple[str, str]:
    name = found[1].rpartition(".")[2]
    arguments = found[2] or ""
    for word, what in (("DictType", "a dictionary"), ("unicode", "text"), ("list(", "a list"), ("set(", "a set")):
        if word in arguments:
            return f"{what} is used here, and a kernel has none", ""
    shown = _plain_type(arguments)
    return f"Numba has no {name} for a kernel with these arguments: {shown}", ""


def _outside(found: re.Match[str], _: Path) -> tuple[str, str]:
    wrapped = "the subtraction in this index: it is unsigned, and went below zero" if int(found[2]) >= 2**31 else ""
    return found[1], wrapped


def _shared_data(found: re.Match[str], _: Path) -> tuple[str, str]:
    taken, most = (int(text.replace(",", "")) for text in found.groups())
    return f"the shared arrays take {taken} bytes: a block has at most {most}", ""


def _plain_type(text: str) -> str:
    """Numba's name of a type as a reader would say it."""
    text = re.sub(r"Literal\[(\w+)\]\(([^)]*)\)", r"\1 \2", text)
    text = re.sub(r"array\((\w+), (\d)d, \w+\)", r"a \2D array of \1", text)
    return " ".join(text.split())


def _too_constant(found: re.Match[str], _: Path) -> tuple[str, str]:
    taken, most = (int(text.replace(",", ""), 0) for text in found.groups())
    return f"the host arrays that the kernel names take {taken} bytes of constant memory: it holds {most}", ""


def _no_constant(found: re.Match[str], path: Path) -> tuple[str, str]:
    """A size with a point is no whole number."""
    called = [
        ast.unparse(call.args[0]) for function in _each(path, ast.FunctionDef) for _, call, _ in _arrays(function)
    ]
    for node in _each(path, ast.Assign):
        name, value = ast.unparse(node.targets[0]), node.value
        real = isinstance(value, ast.Constant) and isinstance(value.value, float)
        if real and any(re.search(rf"\b{re.escape(name)}\b", shape) for shape in called):
            text = ast.unparse(value)
            whole = f"line {node.lineno}: sizes are whole numbers, {name} = {text.partition('.')[0]}"
            return f"the shape of a {found[1]} array takes {name}, and that is {text}, a float", whole
    return f"the shape of a {found[1]} array is not a constant", ""


_WHOLE_ARRAYS = "arrays are added or multiplied whole here: that makes an array, and a kernel makes none"
_NO_FUNCTION = r"No implementation of function Function\(<(?:built-in |intrinsic |class )?(?:function )?'?([\w.]+)"
_SIGNATURE = r".*?>>> \w+\((.*?)\)\n"

# Kind, pattern of "ErrorType: message", and what to say: a template of the pattern's groups, or a function that
# returns it with what to look at (or "" for the kind's own). The first that matches counts.
_ERRORS: tuple[tuple[str, str, str | _Say], ...] = (
    ("bytes", r"^SyntaxError: .*(?:null byte|unicode error|encoding|codec)", _bytes),
    ("ends-process", r"^SystemExit:(.*)", _exit),
    ("ends-process", r"^(KeyboardInterrupt|GeneratorExit)", r"the file raises \1, as if its reader had ended it"),
    ("syntax", r"^(?:SyntaxError|IndentationError|TabError): (.*?)(?: \(([^()]*), line (\d+)\))?$", _syntax),
    ("allocates", r"^ImportError: scipy [\d.]+\+ is required", _WHOLE_ARRAYS),
    ("import", r"^ModuleNotFoundError: No module named '([\w.]+)'", _no_module),
    ("import", r"^ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'", _no_name),
    ("import", r"^ImportError: (.*)", r"\1"),
    ("launch", r"^CatalogError: (.*)", r"\1"),
    ("no-decorator", r"^TypeError: '(?:function|CPUDispatcher)' object is not subscriptable", _plain_started),
    ("no-decorator", r"<intrinsic (\w+)> is not usable in pure-python", _outside_kernel),
    ("no-decorator", r"Untyped global name '(?P<name>\w+)':? Cannot determine Numba type of <class 'function'>",
     r"\g<name> is a plain function, and a kernel calls it: @cuda.jit(device=True) is missing above it"),
    ("launch-form", r"^LaunchFormError: (.*)", r"\1"),
    ("launch-form", r"'_LaunchConfiguration' object is not subscriptable",
     "a kernel's grid and block are named twice: write kernel[grid, block]"),
    ("launch-form", r"Kernel launch configuration was not specified",
     "a kernel is called without a grid and a block: it is started by kernel[grid, block](...)"),
    ("returns-nothing", r"'NoneType' object|NoneType|\(none, |TypeError: launch\(\) missing \d+ required",
     _returned_nothing),
    ("in-kernel", r"'NoneType' object|NoneType|\(none, ", _none_used),
    ("raises", r"^ValueError: *$", "a shape is refused without a reason"),
    ("too-deep", r"^(?:RecursionError: .* during compilation|MemoryError: *$)", _too_deep),
    ("recursion", r"^RecursionError|runaway recursion", "a function calls itself without end"),
    ("array-for-number", r"setting an array element with a sequence|a real number, not .View|"
     r"only [\w-]+ arrays can be converted|"
     r"setitem\(array\(\w+, \d+d, \w+\), [^\n]*, array\(\w+, \d+d, \w+\)\)",
     "an array is stored where one number belongs"),
    ("constant-written", r"lies in constant memory|assignment destination is read-only|setitem\(readonly array",
     "the kernel writes to an array that it takes as a constant"),
    ("nan", r"cannot convert float (NaN|infinity) to integer",
     r"\1 is made an integer: it comes from memory that nobody set"),
    ("dtype", r"Function\(<function (?:shared|local)\.array .*?dtype=Function", "the array's dtype is no Numba type"),
    ("shape-not-constant", r"Function\(<function (\w+)\.array ", _no_constant),
    ("float-index", r"Unsupported array index type (float\d+)", r"an index is a \1, and an index must be an integer"),
    ("index-count", r"cannot index array\(\w+, (\d)d, \w+\) with (\d+) indices",
     r"an array with \1 axes is given \2 indices"),
    ("index-count", r"IndexError: (.* has \d+ indices, and .*)", r"\1"),
    # Numba says so of a loop that it has found to have no end
    ("endless", r"liveness info missing for vars: \{(.*?)\}", _endless),
    ("two-types", r"Cannot unify (.*?) and (.*?) for '(\w+?)(?:\.\d+)?'", _two_types),
    ("unknown-name", r"NameError: (?:.*: )?name '(\w+)' is not defined", _undefined),
    ("unset-variable", r"UnboundLocalError: .*variable '(\w+)'", _never_set),
    ("unset-variable", r"NotDefinedError.*Variable '(\w+?)(?:\.\d+)?' is not defined", _never_set),
    ("allocates", r"_ol_array_allocate|operand type\(s\) for [^\n]*'View'", _WHOLE_ARRAYS),
    ("allocates", rf"No implementation of function Function\(<[^>]*?\b({'|'.join(ARRAY_MAKERS)})\b",
     lambda found, _: (made(found[1]), "")),
    ("allocates", r"of type list\(", "a list is made here, and a kernel has none"),
    ("unknown-attribute", r"AttributeError: .*'(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'", _no_name),
    ("unknown-attribute", r"AttributeError: .*'_CudaModule' object has no attribute '(\w+)'", _no_cuda),
    ("unknown-attribute", r"Unknown attribute '(\w+)' of type ([^\n]*)",
     lambda found, _: (f"{_plain_type(found[2])} has no attribute {found[1]}", "")),
    ("argument-count", r"^TypeError: .*?(\w+)\(\) got an unexpected keyword argument '(\w+)'", _keyword),
    ("argument-count", r"Cannot bind 'args=.*?' to signature '\((.*?)\)' due to \"TypeError: (.*?)\"",
     r"a function with the parameters (\1) is called wrongly: \2"),
    ("argument-count", r"Signature mismatch: (\d+) argument types given, but function takes (\d+)", _mismatch),
    ("argument-count", r"TypeError: (?:.*: )?((?:\w+\(\) )?(?:missing|takes) .*argument.*)", r"\1"),
    ("argument-count", r"TypeError: (?:.*: )?((?:not enough|too many|missing a required) arguments?.*)", r"\1"),
    ("returns", r"No conversion from (\S+) to none for '\$", "the kernel returns a value"),
    ("unsupported", _NO_FUNCTION + _SIGNATURE, _no_such_function),
    ("unsupported", r"^Unsupported\w*Error: (.*?)(?:\. Raised from .*)?$", r"Numba does not compile this: \1"),
    ("unsupported", r"(?:Unsupported\w*Error|NotImplementedError): ([^\n]*)", r"Numba does not compile this: \1"),
    ("stream", r"^StreamError: (.*)", r"\1"),
    ("registers", r"LaunchLimitError: (?:.*: )?(\d+ registers .*)", r"\1"),
    ("shared-memory", r"LaunchLimitError: (the shared arrays .*)", r"\1"),
    ("shared-memory", r"uses too much shared data \(([\d,]+) bytes, ([\d,]+) max\)", _shared_data),
    ("constant-memory", r"LaunchLimitError: (?:.*?: )?(the host arrays .*)", r"\1"),
    ("constant-memory", r"too much global constant data \((\w+) bytes, (\w+) max\)", _too_constant),
    ("grid-barrier", r"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "a barrier of the whole grid needs all its blocks resident at once, and this grid has more than the card holds"),
    ("launch-limits", r"LaunchLimitError: (.*)", r"\1"),
    ("launch-limits", r"CUDA_ERROR_INVALID_VALUE", "the driver refused the launch: its grid, block or arguments"),
    ("registers", r"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "a block of this size needs more registers than there are"),
    ("negative-index", r"IndexError: (.*is negative.*)", r"\1"),
    ("outside", r"IndexError: (.*index (\d+).* is out of bounds.*)", _outside),
    ("illegal-address", r"CUDA_ERROR_ILLEGAL_ADDRESS", "the kernel read or wrote an address that it does not own"),
    ("misaligned", r"CUDA_ERROR_MISALIGNED_ADDRESS", "the kernel accessed an address that its width does not divide"),
    ("misaligned", r"(misaligned \d+-bit access: .*)", r"\1"),
    ("watchdog", r"CUDA_ERROR_LAUNCH_TIMEOUT", "the driver stopped the kernel: it ran too long"),
    ("launch-failed", r"CUDA_ERROR_LAUNCH_FAILED", "the kernel was stopped by an error of the hardware"),
    ("memory", r"CUDA_ERROR_OUT_OF_MEMORY", "the GPU has less free memory than was asked for"),
    ("memory", r"MemoryError: (Unable to allocate .*)", r"more memory than there is: \1"),
    ("memory", r"^MemoryError: ", "more memory than its process may take"),
    ("not-compiled", r"CudaSupportError: Error at driver init", "this line cannot be compiled without a GPU"),
)  # fmt: skip

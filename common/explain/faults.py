"""One fault: what went wrong, at which line of a step's file, and what to look at."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from common.catalog import store

# What to look at, by kind of fault.
LOOK_AT = {
    "syntax": "this line, and the one before it: a bracket, quote or colon that is missing shows late",
    "import": "the spelling, and whether the package is installed in this environment",
    "launch": "the function launch at the file's end: the workbook calls it by this name, with these arguments",
    "shape-not-constant": "give the shape a name above the kernel, in the blank if there is one, such as "
    "TILE_SHAPE = (TILE, TILE + 1), and use that name: inside the call Numba computes nothing",
    "dtype": "the dtype: a Numba type such as float32, imported from numba",
    "float-index": "how the index is computed: / gives a float, // an integer",
    "unpacked": "the right side: cuda.grid(1) gives one number, cuda.grid(2) two",
    "float-size": "the sizes on this line: 8 for 8.0, // for /; a block, a grid and a shape are whole numbers",
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
    "constant-written": "this name: what a kernel takes from its module is constant, arguments can be written",
    "raises": "this line: launch, prepare and workspace may refuse a shape; what a kernel raises, no GPU hears",
    "in-kernel": "the values that this line computes with, for this thread",
    "ends-process": "this line: a step file returns, and neither exits nor interrupts",
    "warp-sync": "the branches around this call, and its mask: all lanes that it names must come to this line",
    "launch-limits": "what launch asks for: blocks, threads of a block (x times y times z), dynamic shared memory",
    "constant-memory": "pass the array as an argument, or refuse large filters: what a kernel names is compiled in",
    "dynamic-overlap": "one cuda.shared.array(0, dtype), and slices of it: tiles[:SIZE] and tiles[SIZE:]",
    "not-called": "this line: () calls a function, = stores a value; without either it does nothing",
    "output-renamed": "this line: c[m, n] = acc stores an element, c = acc makes c another name for acc",
    "whole-numbers": "the array's dtype: float32 holds what is stored in it",
    "stream": "the stream here: leave it out, of launches and of copies",
    "registers": "fewer threads per block, or fewer values that each thread keeps: the register tile",
    "shared-memory": "the shapes of the shared arrays: elements times 4 bytes, added up over all of them",
    "outside": "this index and its guard: does it belong to this axis, and is it compared with the axis's extent?",
    "negative-index": "the index's lower bound: as in Python, -1 is the last element and raises nothing",
    "illegal-address": "the indices of every access to an argument array, and their guards",
    "misaligned": "the offset: a 128-bit access needs a multiple of 4 elements, or of 8 if they are float16",
    "no-end": "what ends this loop: nothing changes that it tests",
    "endless": "what ends this loop: does the variable it tests change in every round, for every thread?",
    "divergent-barrier": "the conditions around cuda.syncthreads(): all threads of a block must come to the same one",
    "memory": "what workspace and prepare allocate: their shapes times the bytes of an element",
    "not-compiled": "whether kernels know the function; a signature in @cuda.jit(...) and forall ask for a GPU, too",
    "float64": "write float32(0.0) for 0.0 and for a sum's 0, and float16(float32(0.0)) for float16(0.0); "
    "convert an integer that meets a float32; name the type in device_array(shape, np.float32)",
    "race": "the barriers: one must stand between these two lines, after what others read is written, and before it "
    "is overwritten; one may do both",
    "copy-not-awaited": "wait_async(), or wait_group() with fewer groups pending, then a barrier, before this read",
    "descriptor": "its fields: a tile begins on a 1024-byte boundary, and eight rows of 128 bytes are one stride",
    "mbarrier": "barrier_init, publish_barriers and the barrier behind them; then a phase's arrivals and bytes",
    "deadlock": "who completes the phase that is waited for: arrivals, bytes, and its parity, 0 for the first",
    "proxy-fence": "fence_async() by every thread that wrote, then a barrier, before wgmma or tma_store2 reads it",
    "wgmma-order": "wgmma_fence() after threads set or read the sums, wgmma_commit(), and wgmma_wait(0) before reads",
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
    "uncaught": "this line, and what it compares or calls: the program ends here",
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
    "no-end": "loop without an end",
    "input-written": "store in an input",
    "dynamic-overlap": "shared arrays that overlap",
}

# What explains the rest: this, and what the text itself shows.
CAUSES = UNSOUND | {
    "not-called": "line without effect", "output-renamed": "array not written", "whole-numbers": "whole numbers",
}  # fmt: skip

_RACE_OF_ENGINES = (
    "who frees the tile: wgmma_wait() or tma_wait_read(), then an arrival at the mbarrier waited for here"
)


@dataclass(frozen=True)
class Fault:
    """One fault. ``kind`` is a key of LOOK_AT; ``line`` counts from 1 in the step's file, ``code`` is its text.

    What the tracer saw has its ``array``, the first ``thread`` of a ``block`` that met it, as (x, y, z), of how many
    times, and as which of its kernel's faults it was ``met``, from 1 on: later ones may follow from earlier ones.
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


def telling(one: Fault) -> tuple[int, int]:
    """A key that sorts what is unsound as it is told: by kind, and what may follow from another fault after it."""
    return max(one.met - 1, 0), list(UNSOUND).index(one.kind)


def cut(text: str, most: int = 160) -> str:
    """A text no longer than a reader reads, what is left out said, and nothing in it that a terminal obeys."""
    shown = text[:most].replace("\t", " ")
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
    return shown if len(text) <= most else f"{shown} ... ({len(text) - most} more characters)"


def of_finding(kind: str, message: str, seen: list[Fault], path: Path, operands: tuple[str, ...]) -> Fault | None:
    """Explain what a check found: a :class:`common.run.messages.Finding` of this kind. ``seen`` is what is unsound
    about the launches that it is of; ``operands`` are the names of the two inputs and the output."""
    for one in sorted((one for one in seen if one.kind in UNSOUND), key=telling):
        # of what shipped kernels read unset, some is thrown away
        if one.kind != "read-before-write" or kind in ("nan", "unstable", "unsound") or one.met == 1:
            return fault(one.kind, one.placed, path, one.line, one.look_at)
    if kind not in LOOK_AT:
        return None
    names = operands[:2] if kind == "modified_input" else operands[2:]
    stores = (one for one in each(path, ast.Subscript) if isinstance(one.ctx, ast.Store))
    lines = sorted({one.lineno for one in stores if getattr(one.value, "id", "") in names})
    told = kind in ("unwritten", "wrote_outside", "modified_input") or (kind == "nan" and len(lines) == 1)
    return fault(kind, message, path, lines[0] if told and lines else None)


def of_text(path: Path, fractions: bool) -> list[Fault]:
    """Mistakes that stand in the text of a file that is not right; ``fractions``: do the operands have any?"""
    found = []
    for alone in each(path, ast.Expr):
        text, why = ast.unparse(alone.value), ""
        if re.fullmatch(r"(cuda\.)?(sync|threadfence)\w*", text):
            why = "is named here and not called: () is missing"
        elif isinstance(alone.value, ast.Compare):
            why = "compares and stores nothing: = stores, == compares"
        elif isinstance(alone.value, ast.BinOp | ast.Subscript):
            why = "is computed here, and the result is not used"
        if why:
            found.append(fault("not-called", f"{cut(text)} {why}", path, alone.lineno))
    for function in each(path, ast.FunctionDef):
        lines = [(ast.unparse(node), node.lineno) for node in ast.walk(function) if isinstance(node, ast.Assign)]
        operands = "|".join(one.arg for one in function.args.args) or "none"
        kernel = any("jit" in ast.unparse(one) for one in function.decorator_list)
        for line, number in lines:
            renamed = re.match(rf"({operands}) = ", line) if kernel else None
            if renamed and any(f" {renamed[1]}.shape" in one for one, _ in lines):
                text = f"from here on {renamed[1]} is another value, and nothing is stored in the array"
                found.append(fault("output-renamed", text, path, number))
            made = re.match(r"(\w+) = [\w.]*\b(?:shared|local)\.array\(.*, ([\w.=]*int(?:8|16|32|64))\)$", line)
            if made and fractions and any(re.match(rf"{made[1]}\[.*\] = .*\b(?:{operands})\[", x) for x, _ in lines):
                text = f"{made[1]} holds {made[2]}: what is stored in it loses its fraction"
                found.append(fault("whole-numbers", text, path, number))
    return found


def of_float64(path: Path) -> Fault:
    """The compiled kernel computes in float64, which is right and slow; the first line that may be why: a literal, a
    whole number that is added to, an array of no dtype."""
    nodes = list(each(path, ast.Call, ast.Constant))  # of one parse
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    cast = [call for call in calls if called(call) != "float16"]  # as in float32(0.0): float16 rounds a float64
    wrapped = {id(inner) for call in cast for inner in ast.walk(call)}
    floats = [one for one in nodes if type(getattr(one, "value", None)) is float and id(one) not in wrapped]
    added = {getattr(node.target, "id", "") for node in each(path, ast.AugAssign)}
    other = r"-?\d+$|[\w.]*(int\d*|float64)\("  # a number of another type
    whole = [node for node in each(path, ast.Assign) if re.match(other, ast.unparse(node.value))]
    sums = [node for node in whole if added & {getattr(one, "id", "") for one in node.targets}]
    made = [call for call in calls if called(call) == "device_array"]
    untyped = [call for call in made if not re.search(r"dtype|np\.", ast.unparse(call))]
    lines = [min(node.lineno for node in nodes) for nodes in (floats, sums, untyped) if nodes]
    return fault("float64", "the compiled kernel computes in float64", path, lines[0] if lines else None)


def of_time_out(seconds: float, path: Path, line: int | None, what: str = "the kernel") -> Fault:
    """The kernel, or ``what`` else of the file, did not end; named is the loop around ``line``, where it was: a
    ``while`` if there is one, as others end."""
    loops = [one for one in each(path, ast.While, ast.For) if line and one.lineno <= line <= (one.end_lineno or 0)]
    whiles = [one for one in loops if isinstance(one, ast.While)]
    loop = max((one.lineno for one in whiles or loops), default=None)
    look_at = "" if whiles or not loops else "how much one thread does here: the work of all, or its own share?"
    return fault("endless", f"{what} was not done after {seconds:.0f} s", path, loop or line, look_at)


def fault(kind: str, what: str, path: Path, line: int | None = None, look_at: str = "") -> Fault:
    """A fault with its line's text, and what to look at for its kind unless that is given."""
    if kind == "race" and re.search(r" is filled |read by (wgmma|a bulk store)", what):
        look_at = look_at or _RACE_OF_ENGINES
    return Fault(kind, cut(what, 600), line, cut(line_of(path, line)), look_at or LOOK_AT[kind])


_Node = TypeVar("_Node", bound=ast.expr | ast.stmt)


def text(path: Path) -> str:
    """The file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def line_of(path: Path, line: int | None) -> str:
    """A line's text, as Python counts them: a form feed ends none."""
    lines = text(path).split("\n")
    return lines[line - 1].strip() if line and line <= len(lines) else ""


@store.kept_by_stamp
def _nodes(path: Path) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(text(path))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def each(path: Path, *kinds: type[_Node]) -> Iterator[_Node]:
    """The nodes of these kinds; none of a file that is no Python."""
    return (node for node in _nodes(path) if isinstance(node, kinds))


def called(node: ast.Call) -> str:
    """The name of the function or method that is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


# What of NumPy takes whole arrays in a kernel, or makes one.
_OF_WHOLE = ("dot", "vdot", "inner", "matmul", "einsum", "outer")
ARRAY_MAKERS = (
    *_OF_WHOLE, "zeros", "empty", "ones", "full", "array", "zeros_like", "empty_like", "ones_like", "full_like",
    "arange", "copy", "transpose", "concatenate", "stack", "linspace", "eye",
)  # fmt: skip


def array_made(name: str) -> str:
    """That a kernel has no such function of NumPy."""
    takes = "takes whole arrays, and a kernel takes" if name in _OF_WHOLE else "makes an array, and a kernel makes"
    return f"np.{name} {takes} none"

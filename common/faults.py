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
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

# What to look at, by kind of fault.
LOOK_AT = {
    "syntax": "this line, and the one before it: a bracket, quote or colon that is missing shows late",
    "import": "the spelling, and whether the package is installed in this environment",
    "launch": "the function launch at the file's end: the workbook calls it by this name, with these arguments",
    "shape-not-constant": "give the shape a name outside the kernel, such as TILE_SHAPE = (TILE, TILE + 1), and use "
    "that name: inside the call Numba computes nothing, and a value known only at run time is no shape",
    "dtype": "the dtype: a Numba type such as float32, imported from numba",
    "float-index": "how the index is computed: / gives a float, // an integer",
    "index-count": "the number of indices against the array's axes",
    "two-types": "the lines that set it: a variable has one type throughout a kernel",
    "unknown-name": "the spelling, and whether the name is set before this line or outside the kernel",
    "unset-variable": "the branches before this line: one of them does not set it",
    "unknown-attribute": "the spelling",
    "argument-count": "this call against the function's parameters",
    "unsupported": "kernels know numbers, arrays by element, loops, math and cuda: write it with these",
    "returns": "store the value in an array: a kernel returns nothing",
    "launch-limits": "the block and the grid in launch: threads per block are block x times y times z",
    "registers": "fewer threads per block, or fewer values that each thread keeps: the register tile",
    "shared-memory": "the shapes of the shared arrays: elements times 4 bytes, added up over all of them",
    "outside": "this index and its guard: does it belong to this axis, and is it compared with the axis's extent?",
    "negative-index": "the index's lower bound: as in Python, -1 is the last element and raises nothing",
    "illegal-address": "the indices of every access to an argument array, and their guards",
    "misaligned": "the offset: a 128-bit access needs a multiple of 4 elements, a 64-bit access one of 2",
    "launch-failed": "the accesses to shared and global memory: one of them hit an address that nothing owns",
    "endless": "what ends this loop: does the variable it tests change in every round, for every thread?",
    "watchdog": "a smaller problem: a GPU that draws the screen stops kernels after a few seconds",
    "divergent-barrier": "the conditions around cuda.syncthreads(): all threads of a block must come to the same one",
    "memory": "what workspace and prepare allocate: their shapes times the bytes of an element",
    "not-compiled": "whether kernels know the function; a signature in @cuda.jit(...) and forall ask for a GPU, too",
    "float64": "the literals: write float32(0.0) for 0.0, and for a sum that starts as 0",
    "race": "the barriers: cuda.syncthreads() after a tile is staged, and again before the next is staged over it",
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


@dataclass(frozen=True)
class Fault:
    """One fault. ``kind`` is a key of LOOK_AT; ``line`` counts from 1 in the step's file, ``code`` is its text."""

    kind: str
    what: str
    line: int | None = None
    code: str = ""
    look_at: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def of_error(error: BaseException, path: Path) -> Fault | None:
    """Explain what the step file at ``path`` raised, or a compiler or driver on its behalf; None if unknown."""
    text = placed(f"{type(error).__name__}: {error}")
    for kind, pattern, say in _ERRORS:
        found = re.search(pattern, text, re.DOTALL)
        if found:
            what, look_at = say(found, path) if callable(say) else (found.expand(say), "")
            return fault(kind, what, path, _line(error, kind, found, path), look_at)
    return None


def of_finding(
    finding: dict[str, str], hazards: list[dict[str, Any]], path: Path, operands: tuple[str, ...]
) -> Fault | None:
    """Explain a check's finding.

    ``hazards`` are what a watched run of the kernel showed (:mod:`common.hazards`). ``operands`` are the
    names of the two inputs and the output.
    """
    kind = finding["kind"]
    relevant = ["divergent-barrier", "race", *(["read-before-write"] if kind == "nan" else []), "overlap"]
    for name in relevant:
        for hazard in hazards:
            if hazard["kind"] == name:
                return fault(name, hazard["text"], path, hazard["line"])
    if kind not in LOOK_AT:
        return None
    names = operands[:2] if kind == "modified_input" else operands[2:]
    line = next(stores(path, names), None) if kind in ("unwritten", "wrote_outside", "modified_input") else None
    return fault(kind, finding["message"], path, line)


def of_float64(path: Path) -> Fault:
    """The compiled kernel computes in float64, which is right and slow."""
    line = next(_float_literals(path), None) or next(_integer_sums(path), None)
    return fault("float64", "the compiled kernel computes in float64", path, line)


def of_time_out(seconds: float, path: Path, line: int | None) -> Fault:
    """The kernel did not end; ``line`` is where a simulated thread was, and that of the loop around it is named."""
    loop = _loop_around(path, line) if line else None
    return fault("endless", f"the kernel was still running after {seconds:.0f} s", path, loop or line)


def placed(text: str) -> str:
    """The simulator's words for a thread's place, in the book's words."""
    return re.sub(r"tid=\[([^]]*)\] ctaid=\[([^]]*)\]", r"in thread (\1) of block (\2)", text)


def fault(kind: str, what: str, path: Path, line: int | None = None, look_at: str = "") -> Fault:
    """A fault with its line's text, and what to look at for its kind unless that is given."""
    lines = _text(path).splitlines()
    code = lines[line - 1].strip() if line and line <= len(lines) else ""
    return Fault(kind, what, line, code, look_at or LOOK_AT[kind])


# --- where ---


def _line(error: BaseException, kind: str, found: re.Match[str], path: Path) -> int | None:
    """The line to show, from the error's own words, from where it came, or from the file's text."""
    if isinstance(error, SyntaxError) and Path(error.filename or path.name).name == path.name:
        return error.lineno
    if kind == "divergent-barrier":
        return int(re.findall(r"line (\d+)", str(error))[0])
    if kind == "launch":
        return next(_definitions(path, "launch"), None)
    named = re.findall(rf'File "[^"]*{re.escape(path.name)}", line (\d+)', str(error))
    if named and kind != "two-types":
        return int(named[-1])
    if kind == "two-types":
        return next(_assignments(path, found[3]), None)
    if kind == "endless":
        return _tested(path, found[1])[1]
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if Path(frame.f_code.co_filename).name == path.name:
            return line
        if (worked_on := kernel_line(frame, path)) is not None:
            return worked_on
    if kind in ("argument-count", "registers", "launch-limits"):
        return next(launches(path), None)
    if kind == "shared-memory":
        return next(_calls(path, "array", "shared_array"), None)
    return None


def kernel_line(frame: FrameType, path: Path) -> int | None:
    """The line of the file at ``path`` that Numba was working on in this frame of its own, if it was."""
    for name in ("inst", "self"):
        with suppress(AttributeError):
            # not getattr: the driver, and the simulator's arrays, do much when asked for an attribute
            place = object.__getattribute__(frame.f_locals.get(name), "__dict__").get("loc")
            if type(place).__name__ == "Loc" and Path(place.filename).name == path.name:
                return int(place.line)
    return None


def stores(path: Path, names: tuple[str, ...]) -> Iterator[int]:
    """Lines that store into elements of the arrays called ``names``."""
    for node in _walk(path):
        stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and node.value
        if isinstance(stored, ast.Name) and stored.id in names:
            yield stored.lineno


def launches(path: Path) -> Iterator[int]:
    """Lines that start a kernel: ``kernel[grid, block](...)``."""
    for node in _walk(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            yield node.lineno


def _loop_around(path: Path, line: int) -> int | None:
    """The first line of the innermost loop that holds ``line``: a ``while`` if there is one, as others end."""
    loops = [node for node in _walk(path) if isinstance(node, ast.While | ast.For)]
    around = [loop for loop in loops if loop.lineno <= line <= (loop.end_lineno or 0)]
    whiles = [loop for loop in around if isinstance(loop, ast.While)]
    return max((loop.lineno for loop in whiles or around), default=None)


def _while_testing(path: Path, name: str) -> Iterator[int]:
    """Lines of ``while`` loops that test a variable."""
    for node in _walk(path):
        if isinstance(node, ast.While) and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.test)):
            yield node.lineno


def _definitions(path: Path, name: str) -> Iterator[int]:
    for node in _walk(path):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            yield node.lineno


def _assignments(path: Path, name: str) -> Iterator[int]:
    for node in _walk(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            yield node.lineno


def _calls(path: Path, *names: str) -> Iterator[int]:
    for node in _walk(path):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in names:
                yield node.lineno


def _float_literals(path: Path) -> Iterator[int]:
    """Lines with a float that no float32(...) is around."""
    wrapped = {
        id(inner)
        for node in _walk(path)
        if isinstance(node, ast.Call)
        for argument in node.args
        for inner in ast.walk(argument)
    }
    for node in _walk(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and id(node) not in wrapped:
            yield node.lineno


def _integer_sums(path: Path) -> Iterator[int]:
    """Lines that set to a whole number what is added to later, in place."""
    targets = (node.target for node in _walk(path) if isinstance(node, ast.AugAssign))
    sums = {target.id for target in targets if isinstance(target, ast.Name)}
    for node in _walk(path):
        value = node.value if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(value, ast.Constant) and type(value.value) is int:
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            yield from [node.lineno] if names & sums else []


def _walk(path: Path) -> Iterator[ast.AST]:
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError):
        return
    yield from ast.walk(tree)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- what ---

# What kernels mostly ask of cuda.
_CUDA = (
    "threadIdx", "blockIdx", "blockDim", "gridDim", "grid", "gridsize", "syncthreads", "shared", "local", "const",
    "atomic", "laneid", "warpsize", "fma", "popc",
)  # fmt: skip

_Say = Callable[[re.Match[str], Path], tuple[str, str]]


def _did_you_mean(name: str, known: list[str], before: str = "") -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f". Did you mean {before}{close[0]}?" if close else ""


def _syntax(found: re.Match[str], path: Path) -> tuple[str, str]:
    message, file, line = found.groups()
    if file is None:
        return f"syntax error: {message}", ""
    imported = "" if file == path.name else f"line {line} of {file}, which is imported here, and the line before it"
    return f"{file}:{line}: syntax error: {message}", imported


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


def _undefined(found: re.Match[str], path: Path) -> tuple[str, str]:
    name = found[1]
    known = sorted({node.id for node in _walk(path) if isinstance(node, ast.Name)} - {name})
    return f"nothing is called {name} here" + _did_you_mean(name, known), ""


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


_NO_FUNCTION = r"No implementation of function Function\(<(?:built-in |intrinsic |class )?(?:function )?'?([\w.]+)"
_SIGNATURE = r".*?>>> \w+\((.*?)\)\n"

# Kind, pattern of "ErrorType: message", and what to say: a template of the pattern's groups, or a function that
# returns it with what to look at (or "" for the kind's own). The first that matches counts.
_ERRORS: tuple[tuple[str, str, str | _Say], ...] = (
    ("syntax", r"^(?:SyntaxError|IndentationError|TabError): (.*?)(?: \(([^()]*), line (\d+)\))?$", _syntax),
    ("import", r"^ModuleNotFoundError: No module named '([\w.]+)'", _no_module),
    ("import", r"^ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'", _no_name),
    ("import", r"^ImportError: (.*)", r"\1"),
    ("launch", r"^CatalogError: (.*)", r"\1"),
    ("dtype", r"Function\(<function (?:shared|local)\.array .*?dtype=Function", "the array's dtype is no Numba type"),
    ("shape-not-constant", r"Function\(<function (\w+)\.array ", r"the shape of a \1 array is not a constant"),
    ("float-index", r"Unsupported array index type (float\d+)", r"an index is a \1, and an index must be an integer"),
    ("index-count", r"cannot index array\(\w+, (\d)d, \w+\) with (\d+) indices",
     r"an array with \1 axes is given \2 indices"),
    ("index-count", r"IndexError: (.* has \d+ indices, and .*)", r"\1"),
    # Numba says so of a loop that it has found to have no end
    ("endless", r"liveness info missing for vars: \{(.*?)\}", _endless),
    ("two-types", r"Cannot unify (.*?) and (.*?) for '(\w+?)(?:\.\d+)?'", _two_types),
    ("unknown-name", r"NameError: (?:.*: )?name '(\w+)' is not defined", _undefined),
    ("unset-variable", r"UnboundLocalError: .*variable '(\w+)'", r"\1 is read before it is set"),
    ("unknown-attribute", r"AttributeError: .*'(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'", _no_name),
    ("unknown-attribute", r"AttributeError: .*'_CudaModule' object has no attribute '(\w+)'", _no_cuda),
    ("unknown-attribute", r"Unknown attribute '(\w+)' of type ([^\n]*)",
     lambda found, _: (f"{_plain_type(found[2])} has no attribute {found[1]}", "")),
    ("argument-count", r"Cannot bind 'args=.*?' to signature '\((.*?)\)' due to \"TypeError: (.*?)\"",
     r"a function with the parameters (\1) is called wrongly: \2"),
    ("argument-count", r"Signature mismatch: (\d+) argument types given, but function takes (\d+)", _mismatch),
    ("argument-count", r"TypeError: (?:.*: )?((?:\w+\(\) )?(?:missing|takes) .*argument.*)", r"\1"),
    ("argument-count", r"TypeError: (?:.*: )?((?:not enough|too many|missing a required) arguments?.*)", r"\1"),
    ("returns", r"No conversion from (\S+) to none for '\$", "the kernel returns a value"),
    ("unsupported", _NO_FUNCTION + _SIGNATURE, _no_such_function),
    ("unsupported", r"^Unsupported\w*Error: (.*?)(?:\. Raised from .*)?$", r"Numba does not compile this: \1"),
    ("unsupported", r"(?:Unsupported\w*Error|NotImplementedError): ([^\n]*)", r"Numba does not compile this: \1"),
    ("registers", r"LaunchLimitError: (?:.*: )?(\d+ registers .*)", r"\1"),
    ("shared-memory", r"LaunchLimitError: (?:in thread .*?: )?(the shared arrays .*)", r"\1"),
    ("shared-memory", r"uses too much shared data \(([\d,]+) bytes, ([\d,]+) max\)", _shared_data),
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
    ("divergent-barrier", r"DivergentBarrierError: (.*)", r"\1"),
    ("memory", r"CUDA_ERROR_OUT_OF_MEMORY", "the GPU has less free memory than was asked for"),
    ("memory", r"MemoryError: (Unable to allocate .*)", r"more memory than there is: \1"),
    ("not-compiled", r"CudaSupportError: Error at driver init", "this line cannot be compiled without a GPU"),
)  # fmt: skip

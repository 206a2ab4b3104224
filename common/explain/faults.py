"""One fault: what went wrong, at which line of a step's file, and what to look at. It is made of what a check found,
of a file's text, or of what Python, Numba or the driver raised. Kinds, patterns: ``kinds.toml``, ``errors.toml``."""

import ast
import difflib
import importlib
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypeVar

from common.catalog import store

_KINDS = store.read_toml(Path(__file__).with_name("kinds.toml"))
LOOK_AT: dict[str, str] = _KINDS["look_at"]
UNSOUND: dict[str, str] = _KINDS["unsound"]  # in the order in which they are told
CAUSES = UNSOUND | _KINDS["causes"]
ARRAYS = {name: f"np.{name} takes whole arrays, and a kernel takes none" for name in _KINDS["arrays"]["taken"]}
ARRAYS |= {name: f"np.{name} makes an array, and a kernel makes none" for name in _KINDS["arrays"]["made"]}
ERRORS: list[tuple[str, str, str]] = [  # kind, pattern and words; read now: one that fails may leave no file to open
    (kind, pattern.replace("{arrays}", "|".join(ARRAYS)), words)
    for kind, pattern, words in store.read_toml(Path(__file__).with_name("errors.toml"))["errors"]
]
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
    def by(self) -> str:
        """The thread that met it first."""
        thread, block = (", ".join(map(str, place or ())) for place in (self.thread, self.block))
        return f"thread ({thread}) of block ({block})"

    @property
    def placed(self) -> str:
        """What it is, with its line and thread if these are known."""
        return self.what if self.thread is None else f"{self.what} (line {self.line}, {self.by})"

    @property
    def sentence(self) -> str:
        """What a trace found, by the name of its kind, with its line, how often, and the thread."""
        times = f"{self.count:,} times, first " if self.count > 1 else ""
        return f"line {self.line}: {UNSOUND[self.kind]}: {self.what} ({times}by {self.by})"


def telling(one: Fault) -> tuple[int, int]:
    """A key that sorts what is unsound as it is told: by kind, and what may follow from another fault after it."""
    return max(one.met - 1, 0), list(UNSOUND).index(one.kind)


def cut(text: str, most: int = 160) -> str:
    """A text no longer than a reader reads, what is left out said, and nothing in it that a terminal obeys."""
    more = f" ... ({len(text) - most} more characters)"
    most, more = (most, more) if len(text) > most + len(more) else (len(text), "")  # no note for less than the note
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:most].replace("\t", " ")) + more


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


# --- what Python, Numba or the driver raised ---


class _Said(NamedTuple):
    what: str
    look_at: str = ""  # in place of what is for its kind
    line: int | None = None  # in place of the traceback's


_Say = Callable[[re.Match[str], Path], _Said | None]


def of_error(error: BaseException, path: Path) -> Fault | None:
    """Explain what the step file at ``path`` raised, or a compiler or driver on its behalf; None if unknown."""
    if misplaced := _misplaced_arguments(error, path):
        return misplaced
    message = re.sub(r"0x[0-9a-f]+", lambda found: str(int(found[0], 16)), f"{type(error).__name__}: {error}")
    at = getattr(error, "line", None) or raised_at(error, path)
    for kind, pattern, words in ERRORS:
        found = re.search(pattern, message, re.DOTALL)
        said = found and (_SAY[words](found, path) if words in _SAY else _Said(found.expand(words)))
        if said:
            return fault(kind, said.what, path, said.line or at or _usual_line(kind, path), said.look_at)
    return None


def _misplaced_arguments(error: BaseException, path: Path) -> Fault | None:
    """Of a kernel that did not compile: its one launch gives a number where it uses an array, and an array where it
    does not. Numba's error is then of some line in the kernel."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "compile_cuda"]
    types, name = (frames[0].f_locals["args"], frames[0].f_locals["pyfunc"].__name__) if frames else ((), "")
    launches = [one for one in each(path, ast.Call) if isinstance(one.func, ast.Subscript)]
    launches = [one for one in launches if len(one.args) == len(types)]
    others = {one.name for one in each(path, ast.FunctionDef)} - {name}
    launches = [one for one in launches if ast.unparse(one.func).split("[")[0] not in others]
    kernels = _functions(path, name)
    for kernel in kernels if len(launches) == len(kernels) == 1 else ():  # else it is not clear of which they are
        told, numbers, arrays = list[str](), 0, 0
        for one, kind, given in zip(kernel.args.args, types, launches[0].args, strict=False):
            used, array, number = _used_as(kernel, one.arg), hasattr(kind, "ndim"), hasattr(kind, "bitwidth")
            if (used == "an array" and number) or (used == "a number" and array):
                gives = "" if told else " in the kernel, this launch gives"
                text = cut(ast.unparse(given), 40)
                told.append(f"for {one.arg}, {used}{gives or ','} the {'array' if array else 'number'} {text}")
                numbers += number
            arrays += array and used != "an array"
        if numbers and arrays:  # else a number is used wrongly
            look_at = f"{LOOK_AT['argument-order']}: {name}({ast.unparse(kernel.args)})"
            return fault("argument-order", "; ".join(told[:3]), path, launches[0].lineno, look_at)
    return None


def _used_as(kernel: ast.FunctionDef, name: str) -> str:
    """What a parameter is taken for: an array, whose elements or extents are asked for, or a number; empty if that
    does not show."""
    if name in {one.id for one in ast.walk(kernel) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}:
        return ""  # set anew
    numbers = False
    for node in ast.walk(kernel):
        if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in ("shape", "size")):
            if getattr(node.value, "id", "") == name:
                return "an array"
        elif isinstance(node, ast.BinOp | ast.Compare) or (isinstance(node, ast.Call) and called(node) == "range"):
            numbers |= any(getattr(one, "id", "") == name for one in ast.iter_child_nodes(node))
    return "a number" if numbers else ""


def raised_at(error: BaseException, path: Path) -> int | None:
    """The file's line that the error names or came from, or that Numba was working on."""
    file = re.escape(path.name)
    for named in re.findall(rf'File "[^"]*{file}", line (\d+)|{file} \((\d+)\)', str(error))[-1:]:
        return int("".join(named))
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if Path(frame.f_code.co_filename).name == path.name:
            return line
        if (worked_on := _kernel_line(frame, path)) is not None:
            return worked_on
    return None


def _kernel_line(frame: FrameType, path: Path) -> int | None:
    """The line of the file at ``path`` that Numba was working on in this frame of its own, if it was."""
    for name in ("inst", "self"):
        with suppress(AttributeError):
            # not getattr: the driver's objects do much when asked for an attribute
            place = object.__getattribute__(frame.f_locals.get(name), "__dict__").get("loc")
            if type(place).__name__ == "Loc" and Path(place.filename).name == path.name:
                return int(place.line)
    return None


def _usual_line(kind: str, path: Path) -> int | None:
    """The line that an error of this kind is mostly of, where the error names none."""
    calls = list(each(path, ast.Call))
    shared = ("shared.array", "shared_array")
    usual: dict[str, Iterable[ast.expr | ast.stmt]] = {
        "shared-memory": [node for node in calls if ast.unparse(node.func).endswith(shared)],
        "endless": each(path, ast.While),
        "launch": _functions(path, "launch"),
    }
    launches = [node for node in calls if isinstance(node.func, ast.Subscript)]
    started = kind in ("argument-count", "registers", "launch-limits")
    return min((node.lineno for node in (launches if started else usual.get(kind, ()))), default=None)


def _functions(path: Path, *names: str) -> list[ast.FunctionDef]:
    return [node for node in each(path, ast.FunctionDef) if node.name in names]


_IMPORTS = {"np": "import numpy as np", "math": "import math"} | {
    name: f"from numba import {name}" for name in ("cuda", "float32", "float16", "int32", "uint32")
}


def _did_you_mean(name: str, known: list[str]) -> str:
    close = [one for one in known if one.lower() == name.lower()] or difflib.get_close_matches(name, known, 1)
    return f". Did you mean {close[0]}?" if close else ""


def _syntax(found: re.Match[str], path: Path) -> _Said:
    message, file, line = found.groups()
    if file is None:
        return _Said(f"syntax error: {cut(message)}")
    said = f"{file}:{line}: syntax error: {message}"
    if file == path.name:
        return _Said(said, line=int(line))
    return _Said(said, f"line {line} of {file}, which is imported here, and the line before it")


def _plain_started(_: re.Match[str], path: Path) -> _Said:
    for node in each(path, ast.Call):
        name = getattr(node.func.value, "id", "") if isinstance(node.func, ast.Subscript) else ""
        for function in _functions(path, name):
            if not function.decorator_list:
                text = f"line {node.lineno} starts {name} as a kernel, and {name} is a plain function"
                return _Said(f"{text}: @cuda.jit is missing above it", line=function.lineno)
    return _Said("what is started as a kernel here is none: @cuda.jit is missing above it")


def _plain_called(found: re.Match[str], path: Path) -> _Said:
    text = f"{found[1]} is a plain function, and a kernel calls it: @cuda.jit(device=True) is missing above it"
    return _Said(text, line=next((one.lineno for one in _functions(path, found[1])), None))


def _returned_nothing(found: re.Match[str], path: Path) -> _Said | None:
    places = {"prepare": "the weights' place in launch", "workspace": "the last place in launch"}
    for function in each(path, ast.FunctionDef):
        name, inner = function.name, [one for one in function.body if isinstance(one, ast.FunctionDef)]
        own = [node for one in function.body if one not in inner for node in ast.walk(one)]
        returns = any(isinstance(node, ast.Return) and node.value for node in own)
        if not returns and (name in places or (inner and name != "launch")):
            missing = f": return {inner[-1].name} is missing at its end" if inner else ""
            what = f", and what it returns takes {places[name]}" if name in places else missing
            return _Said(f"{name} returns nothing{what}", line=function.lineno)
    return None


def _no_name(found: re.Match[str], _: Path) -> _Said:
    known: list[str] = []
    with suppress(Exception):
        known = dir(importlib.import_module(found["module"]))
    module, name = found["module"], found["name"]
    lacks = f"{module} has no {name}{_did_you_mean(name, known)}"
    if name not in known:
        return _Said(lacks)
    wait = "cuda.syncthreads() is how the threads of a block wait for each other" if "sync" in name else ""
    return _Said(f"kernels have no {module}.{name}", look_at=wait or "this name: the host has it, and kernels do not")


def _two_types(found: re.Match[str], path: Path) -> _Said:
    first, second, name = _plain_type(found[1]), _plain_type(found[2]), found[3]
    lines = [one.lineno for one in each(path, ast.Name) if isinstance(one.ctx, ast.Store) and one.id == name]
    which = f"lines {' and '.join(map(str, lines))}, which set {name}: a variable has one type throughout a kernel"
    text = f"{name} is {first} in one place and {second} in another"
    return _Said(text, which, lines[0]) if lines else _Said(text)


def _undefined(found: re.Match[str], path: Path) -> _Said:
    name = found[1]
    if name in _IMPORTS:
        used = re.findall(r"\bnp\.(\w+)", text(path)) if name == "np" else ()
        more = next((f"; and {said}" for said in map(ARRAYS.get, used) if said), "")
        return _Said(f"{name} is not imported: {_IMPORTS[name]} is missing{more}", "the imports at the file's top")
    known = sorted({node.id for node in each(path, ast.Name)} - {name})
    return _Said(f"nothing is called {name} here" + _did_you_mean(name, known))


def _never_set(found: re.Match[str], path: Path) -> _Said:
    name = found[1]
    added = any(getattr(node.target, "id", "") == name for node in each(path, ast.AugAssign))
    start = f"the lines before the loop: {name} = float32(0.0) is missing" if added else ""
    return _Said(f"{name} is read before it is set", start)


def _of_whole_arrays(found: re.Match[str], _: Path) -> _Said:
    return _Said(ARRAYS[found[1]])


def _global_set(_: re.Match[str], path: Path) -> _Said:
    return _Said("the kernel sets a global name", line=next((one.lineno for one in each(path, ast.Global)), None))


def _plain_type(text: str) -> str:
    """Numba's name of a type as a reader would say it."""
    text = re.sub(r"Literal\[(\w+)\]\(([^)]*)\)", r"\1 \2", text)
    text = re.sub(r"array\((\w+), (\d)d, \w+\)", r"a \2D array of \1", text)
    text = re.sub(r"^i(?=\d)", "int", {"double": "float64", "float": "float32"}.get(text, text))
    return " ".join(text.split())


_SAY: dict[str, _Say] = {  # as errors.toml names them
    f"{say.__name__[1:]}()": say
    for say in (
        _syntax, _plain_started, _plain_called, _returned_nothing, _no_name, _two_types, _undefined, _never_set,
        _of_whole_arrays, _global_set,
    )
}  # fmt: skip

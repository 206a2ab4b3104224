"""What Python, Numba or the driver raised, in the book's words: patterns of their messages."""

import ast
import difflib
import importlib
import re
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from common.explain.faults import ARRAY_MAKERS, Fault, array_made, called, cut, each, fault, text


class _Said(NamedTuple):
    what: str
    look_at: str = ""  # in place of what is for its kind
    line: int | None = None  # in place of the traceback's


_Say = Callable[[re.Match[str], Path], _Said | None]


def of_error(error: BaseException, path: Path) -> Fault | None:
    """Explain what the step file at ``path`` raised, or a compiler or driver on its behalf; None if unknown."""
    message = re.sub(r"0x[0-9a-f]+", lambda found: str(int(found[0], 16)), f"{type(error).__name__}: {error}")
    at = getattr(error, "line", None) or raised_at(error, path)
    for kind, pattern, say in _ERRORS:
        found = re.search(pattern, message, re.DOTALL)
        said = found and (_Said(found.expand(say)) if isinstance(say, str) else say(found, path))
        if said:
            return fault(kind, said.what, path, said.line or at or _usual_line(kind, path), said.look_at)
    return None


def raised_at(error: BaseException, path: Path) -> int | None:
    """The file's line that the error names or came from, or that Numba was working on."""
    file = re.escape(path.name)
    for named in re.findall(rf'File "[^"]*{file}", line (\d+)|{file} \((\d+)\)', str(error))[-1:]:
        return int("".join(named))
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if Path(frame.f_code.co_filename).name == path.name:
            return line
        if (worked_on := kernel_line(frame, path)) is not None:
            return worked_on
    return None


def kernel_line(frame: FrameType, path: Path) -> int | None:
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
    usual: dict[str, Iterable[ast.expr | ast.stmt]] = {
        "shared-memory": [node for node in calls if called(node) in ("array", "shared_array")],
        "endless": each(path, ast.While),
        "launch": _functions(path, "launch"),
    }
    launches = [node for node in calls if isinstance(node.func, ast.Subscript)]
    started = kind in ("argument-count", "registers", "launch-limits")
    return next((node.lineno for node in (launches if started else usual.get(kind, ()))), None)


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
        makes = re.search(rf"\bnp\.({'|'.join(ARRAY_MAKERS)})\b", text(path)) if name == "np" else None
        more = f"; and {array_made(makes[1])}" if makes else ""
        return _Said(f"{name} is not imported: {_IMPORTS[name]} is missing{more}", "the imports at the file's top")
    known = sorted({node.id for node in each(path, ast.Name)} - {name})
    return _Said(f"nothing is called {name} here" + _did_you_mean(name, known))


def _never_set(found: re.Match[str], path: Path) -> _Said:
    name = found[1]
    added = any(getattr(node.target, "id", "") == name for node in each(path, ast.AugAssign))
    start = f"the lines before the loop: {name} = float32(0.0) is missing" if added else ""
    return _Said(f"{name} is read before it is set", start)


def _plain_type(text: str) -> str:
    """Numba's name of a type as a reader would say it."""
    text = re.sub(r"Literal\[(\w+)\]\(([^)]*)\)", r"\1 \2", text)
    text = re.sub(r"array\((\w+), (\d)d, \w+\)", r"a \2D array of \1", text)
    text = re.sub(r"^i(?=\d)", "int", {"double": "float64", "float": "float32"}.get(text, text))
    return " ".join(text.split())


_WHOLE_ARRAYS = "arrays are added or multiplied whole here: that makes an array, and a kernel makes none"

# Kind, pattern of "ErrorType: message", and what to say: a template of the pattern's groups, or a function of the
# match, the file and the traceback's line. The first that matches counts.
_ERRORS: tuple[tuple[str, str, str | _Say], ...] = (
    ("allocates", r"^MistakeError: line \d+: (np\.\w+ (?:makes|takes).*)", r"\1"),
    ("constant-written", r"lies in constant memory|assignment destination is read-only|setitem\(readonly array",
     "the kernel writes to an array that it takes as a constant"),
    ("endless", r"^MistakeError: .*goes on for more than .* turns$|liveness info missing for vars: ",
     "this loop has no end: what it tests never changes"),
    ("in-kernel", r"^MistakeError: (?:line \d+: )?(.*)", r"\1"),
    ("ends-process", r"^(SystemExit|KeyboardInterrupt|GeneratorExit)", r"the file raises \1, which ends its process"),
    ("syntax", r"^(?:SyntaxError|IndentationError|TabError): (.*?)(?: \(([^()]*), line (\d+)\))?$", _syntax),
    ("allocates", r"^ImportError: scipy [\d.]+\+ is required", _WHOLE_ARRAYS),
    ("import", r"^ModuleNotFoundError: No module named '([\w.]+)'", r"there is no module \1"),
    ("import", r"^ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'", _no_name),
    ("import", r"^ImportError: (.*)", r"\1"),
    ("launch", r"^CatalogError: (.*)", r"\1"),
    ("no-decorator", r"^TypeError: '(?:function|CPUDispatcher)' object is not subscriptable", _plain_started),
    ("no-decorator", r"<intrinsic (\w+)> is not usable in pure-python",
     r"cuda.\1 is used in plain Python, and only kernels have it: @cuda.jit is missing above it"),
    ("no-decorator", r"Untyped global name '(\w+)':? Cannot determine Numba type of <class 'function'>",
     _plain_called),
    ("launch-form", r"^LaunchFormError: (.*)", r"\1"),
    ("launch-form", r"^TypeError: unhashable type: 'list'", "a list stands where a tuple belongs: (x, y) for [x, y]"),
    ("launch-form", r"Kernel launch configuration was not specified",
     "a kernel is called without a grid and a block: it is started by kernel[grid, block](...)"),
    ("returns-nothing", r"'NoneType' object|NoneType|\(none, |TypeError: launch\(\) missing \d+ required",
     _returned_nothing),
    ("raises", r"^ValueError: *$", "a shape is refused without a reason"),
    ("array-for-number", r"setting an array element with a sequence|only [\w-]+ arrays can be converted|"
     r"setitem\(array\(\w+, \d+d, \w+\), [^\n]*, array\(\w+, \d+d, \w+\)\)",
     "an array is stored where one number belongs"),
    ("dtype", r"Function\(<function (?:shared|local)\.array .*?dtype=Function", "the array's dtype is no Numba type"),
    ("float-size", r"^TypeError: 'float' object cannot be interpreted as an integer",
     "a float stands where only a whole number is allowed"),
    ("argument-count", r"Function\(<function (\w+)\.array [^\n]*\n[^\n]*\n[^\n]*>>> array\([^\n,]*\)\n",
     r"cuda.\1.array takes a shape and a type, such as float32"),
    ("shape-not-constant", r"Function\(<function (\w+)\.array ", r"the shape of a \1 array is not a constant"),
    ("unsupported", r"Invalid use of getiter with parameters \(u?(?:int|float)\d+\)",
     "a loop goes over a number here: range(...) is missing"),
    ("unsupported", r"^TypeError: '(tuple|int|float)' object is not callable",
     r"a \1 is called here, as if it were a function"),
    ("unpacked", r"failed to unpack \w+\d", "there is one number to the right of =, and several names to its left"),
    ("unsupported", r"Invalid use of array\(.*No type info available for Array",
     "an array is called here: an element is read with square brackets, a[m, k] for a(m, k)"),
    ("constant-written", r"STORE_GLOBAL", lambda _, path: _Said(
        "the kernel sets a global name", line=next((one.lineno for one in each(path, ast.Global)), None))),
    ("float-index", r"Unsupported array index type (float\d+)", r"an index is a \1, and an index must be an integer"),
    ("index-count", r"cannot index array\(\w+, (\d)d, \w+\) with (\d+) indices",
     r"an array with \1 axes is given \2 indices"),
    ("two-types", r"Cannot unify (.*?) and (.*?) for '(\w+?)(?:\.\d+)?'", _two_types),
    ("two-types", r"Storing (\w+) to ptr of (\w+) \('(\w+?)(?:\.\d+)?'\)", _two_types),
    ("unknown-name", r"NameError: (?:.*: )?name '(\w+)' is not defined", _undefined),
    ("unset-variable", r"(?:UnboundLocal|NotDefined)Error.*[Vv]ariable '(\w+?)(?:\.\d+)?'", _never_set),
    ("unsupported", r"Function\(<class 'str'>\)", "a string is made here, and a kernel cannot make one: print(m, n)"),
    ("unsupported", r"inline calls to locally defined closures",
     "a generator is made here, and a kernel cannot make one"),
    ("unsupported", r"exception_match", "a kernel cannot catch errors, and an index beyond an array raises none"),
    ("allocates", r"_ol_array_allocate|>>> i?(?:add|sub|mul|truediv)\([^\n]*array\(", _WHOLE_ARRAYS),
    ("allocates", rf"No implementation of function Function\(<[^>]*?\b({'|'.join(ARRAY_MAKERS)})\b",
     lambda found, _: _Said(array_made(found[1]))),
    ("allocates", r"of type list\(|>>> [^\n]*\blist\(|build_list",
     "a list is made here, and a kernel cannot make one"),
    ("allocates", r"NRT required", "memory is allocated here, and a kernel cannot"),
    ("unsupported", r"^KeyError: <ufunc '(\w+)'>",
     r"Numba has no np.\1 for a kernel; math.\1, if there is one, takes a number"),
    ("unknown-attribute", r"AttributeError: .*'(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'", _no_name),
    ("unknown-attribute", r"Unknown attribute '(?P<name>\w+)' of type \w+\(<module '(?P<module>[\w.]+)'", _no_name),
    ("unknown-attribute", r"Unknown attribute '(\w+)' of type ([^\n]*)", r"\2 has no attribute \1"),
    ("argument-count", r"Cannot bind 'args=.*?' to signature '\((.*?)\)' due to \"TypeError: (.*?)\"",
     r"a function with the parameters (\1) is called wrongly: \2"),
    ("argument-count", r"Signature mismatch: (\d+) argument types given, but function takes (\d+)",
     r"the kernel is called with \1 arguments, and it has \2 parameters"),
    ("argument-count", r"TypeError: (?:.*: )?((?:\w+\(\) )?(?:missing|takes|not enough|too many) .*argument.*)",
     lambda found, _: _Said(found[1].replace("_function()", "this function"))),  # as the tracer calls it
    ("returns", r"No conversion from (\S+) to none for '\$", "the kernel returns a value"),
    ("unsupported", r"No implementation of function Function\(.*?>>> [^\n]*DictType",
     "a dictionary is used here, and a kernel has none"),
    ("unsupported", r"No implementation of function Function\(<.*?>>> ([^\n]*)\n",
     r"Numba has no such function for a kernel: \1"),
    ("unsupported", r"(?:Unsupported\w*|NotImplemented)Error: ([^\n]*?)(?:\. Raised from|\n|$)",
     r"Numba does not compile this: \1"),
    ("stream", r"^StreamError: (.*)", r"\1"),
    ("registers", r"LaunchLimitError: (?:.*: )?(\d+ registers .*)", r"\1"),
    ("shared-memory", r"LaunchLimitError: (the shared arrays .*)", r"\1"),
    ("shared-memory", r"uses too much shared data \((\d+) bytes, (\d+) max\)",
     r"the shared arrays take \1 bytes: a block has at most \2"),
    ("constant-memory", r"LaunchLimitError: (?:.*?: )?(the host arrays .*)", r"\1"),
    ("constant-memory", r"too much global constant data \((\d+) bytes, (\d+) max\)",
     r"the host arrays that the kernel names take \1 bytes of constant memory: it holds \2"),
    ("launch-limits", r"LaunchLimitError: (.*)", r"\1"),
    ("launch-limits", r"CUDA_ERROR_INVALID_VALUE", "the driver refused the launch: its grid, block or arguments"),
    ("registers", r"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "a block of this size needs more registers than there are"),
    ("outside", r"IndexError: (.*index \d+.* is out of bounds.*)", r"\1"),
    ("illegal-address", r"CUDA_ERROR_ILLEGAL_ADDRESS", "the kernel read or wrote an address that it does not own"),
    ("misaligned", r"CUDA_ERROR_MISALIGNED_ADDRESS", "the kernel accessed an address that its width does not divide"),
    ("memory", r"CUDA_ERROR_OUT_OF_MEMORY|MemoryError: ", "more memory than there is, or than its process may take"),
)  # fmt: skip

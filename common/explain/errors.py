"""What Python, Numba or the driver raised, in the book's words: patterns of their messages.

One that none of the patterns matches has no explanation, and is then shown as it is.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import pkgutil
import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from common.explain import source
from common.explain.faults import ARRAY_MAKERS, Fault, array_made, cut, fault


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


# --- where ---


def _line(error: BaseException, kind: str, found: re.Match[str], path: Path) -> int | None:
    """The line to show, from the error's own words, from where it came, or from the file's text."""
    if isinstance(error, SyntaxError) and Path(error.filename or path.name).name == path.name:
        return source.of_syntax_error(error, path)
    if kind in ("no-decorator", "returns-nothing"):
        return _defined_at(kind, error, found, path)
    if kind == "too-deep":
        lines = source.text(path).split("\n")
        return 1 + max(range(len(lines)), key=lambda number: len(lines[number]))
    called = re.match(r"TypeError: (launch|prepare|workspace)\(\) ", found.string)
    if called and _raised_at(error, path) is None:
        return next(source.definitions(path, called[1]), None)
    if kind == "launch":
        return next(source.definitions(path, "launch"), None)
    named = re.findall(rf'File "[^"]*{re.escape(path.name)}", line (\d+)', str(error))
    if named and kind != "two-types":
        return int(named[-1])
    if kind == "two-types":
        return next(source.assignments(path, found[3]), None)
    if kind == "endless":
        return _tested(path, found[1])[1]
    if (at := _raised_at(error, path)) is not None:
        return at
    if kind in ("argument-count", "registers", "launch-limits", "grid-barrier"):
        return next(source.launches(path), None)
    if kind == "recursion":
        return next(source.own_calls(path), None)
    if kind == "shared-memory":
        return next(source.calls(path, "array", "shared_array"), None)
    return None


def _raised_at(error: BaseException, path: Path) -> int | None:
    """The file's line that the error came from, or that Numba was working on."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if Path(frame.f_code.co_filename).name == path.name:
            return line
        if (worked_on := kernel_line(frame, path)) is not None:
            return worked_on
    return None


def _defined_at(kind: str, error: BaseException, found: re.Match[str], path: Path) -> int | None:
    """The line of the function whose decorator or return is missing."""
    at = _raised_at(error, path)
    name = found.groupdict().get("name") or (source.started(path, at) if at else None)
    if kind == "returns-nothing":
        name = source.returns_nothing(path) or "workspace"
    elif not name:
        inner = source.function_around(path, at)
        return at if inner is None or inner.name == "launch" else inner.lineno
    return next(source.definitions(path, name), at) if name else at


def kernel_line(frame: FrameType, path: Path) -> int | None:
    """The line of the file at ``path`` that Numba was working on in this frame of its own, if it was."""
    for name in ("inst", "self"):
        with suppress(AttributeError):
            # not getattr: the driver's objects do much when asked for an attribute
            place = object.__getattribute__(frame.f_locals.get(name), "__dict__").get("loc")
            if type(place).__name__ == "Loc" and Path(place.filename).name == path.name:
                return int(place.line)
    return None


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
    defined = {node.name: node for node in source.each(path, ast.FunctionDef)}
    for line in source.launches(path):
        name = source.started(path, line)
        if name and not any("cuda" in ast.unparse(decorator) for decorator in defined[name].decorator_list):
            what = "is compiled for the CPU" if defined[name].decorator_list else "is a plain function"
            return f"line {line} starts {name} as a kernel, and {name} {what}: @cuda.jit is missing above it", ""
    return "what is started as a kernel here is none: @cuda.jit is missing above it", ""


def _outside_kernel(found: re.Match[str], _: Path) -> tuple[str, str]:
    return f"cuda.{found[1]} is used in plain Python, and only kernels have it: @cuda.jit is missing above it", ""


def _returned_nothing(found: re.Match[str], path: Path) -> tuple[str, str] | None:
    places = {"prepare": "the weights' place in launch", "workspace": "the last place in launch"}
    name = source.returns_nothing(path)
    if name is None and "launch()" in found[0] and next(source.definitions(path, "workspace"), None):
        name = "workspace"
    return (f"{name} returns nothing, and what it returns takes {places[name]}", "") if name else None


def _none_used(_: re.Match[str], path: Path) -> tuple[str, str] | None:
    makers = [name for name in ("prepare", "workspace") if next(source.definitions(path, name), None)]
    return ("None is used as an array", f"what {' and '.join(makers)} return, in every case") if makers else None


def _too_deep(found: re.Match[str], path: Path) -> tuple[str, str] | None:
    try:
        compile(source.text(path), path.name, "exec", dont_inherit=True)
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
        for line in source.loops_testing(path, name):
            return name, line
    return "what it tests", None


def _endless(found: re.Match[str], path: Path) -> tuple[str, str]:
    return f"a loop has no end: {_tested(path, found[1])[0]} never changes", ""


def _two_types(found: re.Match[str], path: Path) -> tuple[str, str]:
    first, second, name = _plain_type(found[1]), _plain_type(found[2]), found[3]
    lines = " and ".join(map(str, source.assignments(path, name)))
    look_at = f"lines {lines}, which set {name}: a variable has one type throughout a kernel" if lines else ""
    return f"{name} is {first} in one place and {second} in another", look_at


_IMPORTS = {"np": "import numpy as np", "math": "import math"} | {
    name: f"from numba import {name}" for name in ("cuda", "float32", "float16", "int32", "uint32")
}


def _undefined(found: re.Match[str], path: Path) -> tuple[str, str]:
    name = found[1]
    if name in _IMPORTS:
        called = re.search(rf"\bnp\.({'|'.join(ARRAY_MAKERS)})\b", source.text(path)) if name == "np" else None
        more = f"; and {array_made(called[1])}" if called else ""
        return f"{name} is not imported: {_IMPORTS[name]} is missing{more}", "the imports at the file's top"
    known = sorted({node.id for node in source.each(path, ast.Name)} - {name})
    return f"nothing is called {name} here" + _did_you_mean(name, known), ""


def _never_set(found: re.Match[str], path: Path) -> tuple[str, str]:
    name = found[1]
    added = any(getattr(node.target, "id", "") == name for node in source.each(path, ast.AugAssign))
    start = f"the lines before the loop: {name} = float32(0.0) is missing" if added else ""
    return f"{name} is read before it is set", start


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
    functions = source.each(path, ast.FunctionDef)
    called = [ast.unparse(call.args[0]) for one in functions for _, call, _ in source.arrays(one)]
    for node in source.each(path, ast.Assign):
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
    ("dtype", r"Function\(<function (?:shared|local)\.array .*?dtype=Function", "the array's dtype is no Numba type"),
    ("shape-not-constant", r"Function\(<function (\w+)\.array ", _no_constant),
    ("float-index", r"Unsupported array index type (float\d+)", r"an index is a \1, and an index must be an integer"),
    ("index-count", r"cannot index array\(\w+, (\d)d, \w+\) with (\d+) indices",
     r"an array with \1 axes is given \2 indices"),
    ("endless", r"liveness info missing for vars: \{(.*?)\}", _endless),
    ("two-types", r"Cannot unify (.*?) and (.*?) for '(\w+?)(?:\.\d+)?'", _two_types),
    ("unknown-name", r"NameError: (?:.*: )?name '(\w+)' is not defined", _undefined),
    ("unset-variable", r"UnboundLocalError: .*variable '(\w+)'", _never_set),
    ("unset-variable", r"NotDefinedError.*Variable '(\w+?)(?:\.\d+)?' is not defined", _never_set),
    ("allocates", r"_ol_array_allocate|operand type\(s\) for [^\n]*'View'", _WHOLE_ARRAYS),
    ("allocates", rf"No implementation of function Function\(<[^>]*?\b({'|'.join(ARRAY_MAKERS)})\b",
     lambda found, _: (array_made(found[1]), "")),
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
    ("outside", r"IndexError: (.*index \d+.* is out of bounds.*)", r"\1"),
    ("illegal-address", r"CUDA_ERROR_ILLEGAL_ADDRESS", "the kernel read or wrote an address that it does not own"),
    ("misaligned", r"CUDA_ERROR_MISALIGNED_ADDRESS", "the kernel accessed an address that its width does not divide"),
    ("watchdog", r"CUDA_ERROR_LAUNCH_TIMEOUT", "the driver stopped the kernel: it ran too long"),
    ("launch-failed", r"CUDA_ERROR_LAUNCH_FAILED", "the kernel was stopped by an error of the hardware"),
    ("memory", r"CUDA_ERROR_OUT_OF_MEMORY", "the GPU has less free memory than was asked for"),
    ("memory", r"MemoryError: (Unable to allocate .*)", r"more memory than there is: \1"),
    ("memory", r"^MemoryError: ", "more memory than its process may take"),
    ("not-compiled", r"CudaSupportError: Error at driver init", "this line cannot be compiled without a GPU"),
)  # fmt: skip

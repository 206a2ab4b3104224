"""What a kernel's names stand for when the tracer runs it: translated functions, modules, number types, constants."""

from __future__ import annotations

import ast
import enum
import inspect
import linecache
import operator
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from common.trace import values, views
from common.trace.expressions import numba_constant
from common.trace.intrinsics import INTRINSICS, Cuda, Intrinsic, element_by_element, model_of, unknown
from common.trace.memory import Constant
from common.trace.state import State, TraceError
from common.trace.translate import FUNCTION, Translator
from common.trace.values import Cast
from common.trace.views import View

Code = Callable[..., Any]

_RUNTIME = {
    "_" + name: getattr(values, name)
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "power", "shift_left", "shift_right", "bit_and", "bit_or",
        "bit_xor", "negative", "positive", "logical_not", "invert", "logical_and",
    )
}  # fmt: skip
_RUNTIME |= {"_" + name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_RUNTIME["_slice"] = slice
_BUILTINS = {
    "min": values.minimum, "max": values.maximum, "abs": values.absolute, "len": len, "int": Cast(np.int64),
    "float": Cast(np.float64), "bool": values.truth, "complex": values.python_complex,
    "range": values.make_range, "enumerate": enumerate, "zip": zip, "pow": values.power, "round": values.rounded,
}  # fmt: skip
_INTEGERS = (
    "_add", "_sub", "_mul", "_floordiv", "_mod", "_shift_left", "_shift_right", "_bit_and", "_bit_or", "_bit_xor",
    "_negative", "_invert", "min", "max",
)  # fmt: skip


def _narrowed(number: Any) -> dict[str, Any]:
    """What differs in functions of `lessons.toolkit.narrow` with integers of this type."""
    same = {name: values.narrowing((_RUNTIME | _BUILTINS)[name], number) for name in _INTEGERS}
    return {**same, "_narrow": Cast(number), "_narrow_constant": partial(values.narrow_constant, number=number)}


_NARROW = {"": {}, **{number.__name__: _narrowed(number) for number in (np.uint32, np.int32)}}


class Names:
    """The globals and closed-over values of a kernel and its device functions, read once, as Numba does."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.cuda = Cuda(state)
        self.called: dict[Code, Function] = {}
        self.builtins = {
            **_BUILTINS, "int": Cast(np.int64, partial(views.require_written, self.state)),
            "isinstance": unknown("isinstance"),
            "enumerate": lambda one, start=0: enumerate(self._items(one), start),
            "zip": lambda *several: zip(*map(self._items, several), strict=False),
        }  # fmt: skip

    def wrapped(self, value: Any) -> Any:
        """A global or closed-over value as translated code sees it."""
        if hasattr(value, "storage") and (seen := views.of_device(value, "a global")) is not None:
            return seen
        if isinstance(value, np.ndarray):  # what it holds now stays
            self.state.constants[id(value)] = value
            return View.of(Constant(np.array(value).reshape(-1)), value.shape)
        if isinstance(value, tuple):
            return getattr(value, "_make", tuple)(map(self.wrapped, value))
        if value is None or isinstance(value, bool | int | float | str | np.generic):
            return numba_constant(value)
        if isinstance(value, complex):
            return np.complex128(value)
        if isinstance(value, type) and issubclass(value, enum.IntEnum):
            return SimpleNamespace(**{one.name: int(one) for one in value})
        if isinstance(value, ModuleType):
            if not value.__name__.startswith("numba"):  # what of it is called is not known yet
                self.state.has_engines |= any(INTRINSICS[name].engines for name in INTRINSICS.keys() & vars(value))
            return self.cuda.cg if value.__name__ == "numba.cuda.cg" else Module(self, value)
        if (number := _number_type(value)) is not None:
            number.check = partial(views.require_written, self.state)
            return number
        if (model := model_of(value)) is not None:
            self.state.has_engines |= model.engines
            return model
        home = str(getattr(value, "__module__", ""))
        plain = "numba.cuda.tests.", "numba.cuda.random"  # Python that is run as it stands
        if hasattr(value, "_defn") or (home.startswith("numba.cuda") and not home.startswith(plain)):
            from numba import cuda  # imported by itself, or an intrinsic that Numba compiles

            if home == "numba.cuda.libdevice":
                return values.of_libdevice(value.__name__) or unknown(f"libdevice.{value.__name__}")
            own = getattr(value, "__name__", "") or getattr(value, "name", "?")
            name = next((name for name, one in vars(cuda).items() if one is value), own)
            return getattr(self.cuda, name, None) or unknown(name)
        if isinstance(value, np.ufunc):
            work = values.function(value.__name__) or value
            return Intrinsic(partial(element_by_element, function=work, inputs=value.nin))
        if inspect.isbuiltin(value) and home in ("math", "cmath"):
            return values.function(value.__name__) or value
        return self._called(value) if inspect.isfunction(getattr(value, "py_func", value)) else value

    def _called(self, function: Code) -> Function:
        made: Any = [] if getattr(function, "_can_compile", True) else [*function.overloads.values()]  # type: ignore
        function = getattr(function, "py_func", function)
        if function not in self.called:
            self.called[function] = Function(function, self, made[0].signature if len(made) == 1 else None)
            with suppress(TraceError):  # told when it is called
                self.called[function].freeze()
        return self.called[function]

    def _items(self, one: Any) -> Any:
        if type(one) is not View:
            return one
        return (one.load(self.state, index, self.state.turning) for index in range(len(one)))


class Function:
    """A kernel or device function, bound to what its names stand for."""

    def __init__(self, function: Code, names: Names, signature: Any = None) -> None:
        """``signature``: Numba's, that it is compiled for, if its decorator names one."""
        self.function, self.names, self.signature = function, names, signature
        self.home = function.__code__.co_filename == names.state.home  # is it in the step's own file?
        self.only_read: dict[str, int] = {}  # see _Read
        self._shares = True
        self._translated: Code | None = None

    def freeze(self) -> Code:
        """Read the globals and closed-over values, as Numba does when it compiles the kernel."""
        code, scope = self.function.__code__, scope_of(self.function)
        linecache.checkcache(code.co_filename)  # the file may have been edited
        source, named = "".join(linecache.getlines(code.co_filename)), code.co_names + code.co_freevars
        casts = frozenset(name for name in named if isinstance(_number_type(scope.get(name)), Cast))
        found = _read(code, source, frozenset(scope))
        self._shares, self.only_read, narrow = found.shares, found.only_read, _NARROW[found.narrow]
        self.names.state.cooperative |= "this_grid" in code.co_names
        self.names.state.shuffles |= any(name.startswith("shfl_") for name in code.co_names)
        wrapped = {name: self.names.wrapped(scope[name]) for name in found.free}
        runtime = {**_RUNTIME, **{name: one for name, one in narrow.items() if name in _RUNTIME}}
        ints = frozenset(name for name in found.free if type(wrapped[name]) is int)
        text, constants = _translation(code, found, self.home, casts, ints)
        state = {"_t": self.names.state}
        namespace = {**self.names.builtins, **narrow, **wrapped, **runtime, **constants, **state}
        exec(text, namespace)
        translated: Code = namespace[FUNCTION]
        self._translated = translated
        return translated

    def invoke(self, state: State, line: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        translated = self._translated or self.freeze()
        site, mask, path = state.site, state.mask, state.call_path
        state.depth += 1
        state.call_path = [self.function] if self._shares else [*path, self.function, state.spot]
        if not self.home:
            state.site = line
        try:
            if self.signature is None:
                return translated(*arguments, **options)
            found = translated(*map(as_type, arguments, self.signature.args), **options)
            return as_type(found, self.signature.return_type)
        finally:
            state.depth -= 1
            state.call_path, state.site, state.mask = path, site, mask


@dataclass(eq=False)
class _Read:
    """What a function's text says."""

    definition: ast.FunctionDef
    free: frozenset[str]  # names
    only_read: dict[str, int]  # parameters that nothing is done with but to read elements, by so many indices
    shares: bool  # have all calls one shared memory? Not if Numba writes the function out at each
    narrow: str  # the type that `lessons.toolkit.narrow` gives its integers, if it does


@lru_cache(maxsize=1024)
def _read(code: CodeType, text: str, scope: frozenset[str]) -> _Read:
    """``scope``: the free names."""
    definition = _definition(code, text)
    free = frozenset(node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and node.id in scope)
    decorators = [ast.unparse(decorator) for decorator in definition.decorator_list]
    narrowed = next((one for one in decorators if one.split("(")[0] == "narrow"), "")
    narrow = "int32" if "signed=True" in narrowed else "uint32" if narrowed else ""
    return _Read(definition, free, _only_read(definition), not any("always" in one for one in decorators), narrow)


@lru_cache(maxsize=1024)
def _translation(
    code: CodeType, found: _Read, home: bool, casts: frozenset[str], ints: frozenset[str]
) -> tuple[CodeType, dict[str, np.generic]]:
    """The code, and the constants that it names: floats, and ints too large for an int64. ``casts``, ``ints``: free
    names of types, and of Python ints."""
    pure = lambda name: name in casts if name in found.free else name in _BUILTINS  # noqa: E731
    translator = Translator(found.definition, pure, home, ints, bool(found.narrow))
    compiled = compile(translator.module(), code.co_filename, "exec")
    return compiled, translator.constants


def _only_read(definition: ast.FunctionDef) -> dict[str, int]:
    uses, reads = Counter[str](), defaultdict[str, list[int]](list)
    for node in ast.walk(definition):
        match node:
            case ast.Name(name):
                uses[name] += 1
            case ast.Attribute(ast.Name(name), "shape" | "size"):
                uses[name] -= 1
            case ast.Subscript(ast.Name(name), index, ast.Load()):
                indices = index.elts if isinstance(index, ast.Tuple) else [index]
                if not any(isinstance(one, ast.Slice) for one in indices):
                    reads[name].append(len(indices))
    return {name: counts[0] for name, counts in reads.items() if uses[name] == len(counts) and len({*counts}) == 1}


def scope_of(function: Code) -> dict[str, Any]:
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            raise TraceError(f"{function.__name__}: {name} has no value yet") from None
    return scope


def _number_type(value: Any) -> Cast | None:
    """A NumPy or Numba number type, as a cast."""
    if isinstance(value, type):
        return Cast(value) if issubclass(value, np.generic) else None
    if isinstance(value, np.dtype) or type(value).__name__ == "Record":  # Numba's type of records
        return Cast(getattr(value, "dtype", value))
    try:
        return Cast(str(value)) if callable(value) else None  # Numba's types have NumPy's names
    except (TypeError, ValueError, SyntaxError):  # the last two: what has brackets and commas
        return None


def as_type(value: Any, kind: Any) -> Any:
    """A number as Numba's type ``kind``, if that is one of a number."""
    from numba.cuda import types

    if isinstance(kind, types.Boolean):
        return values.truth(value)
    return Cast(str(kind))(value) if isinstance(kind, types.Number) else value


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def _definition(code: CodeType, text: str) -> ast.FunctionDef:
    """The function's syntax tree, from the text of the file that it was written in."""
    if not text:
        raise TraceError(f"{code.co_name}: its source {code.co_filename} is not there")
    lambdas = []
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= code.co_firstlineno <= node.lineno:
                return node
        elif isinstance(node, ast.Lambda) and (code.co_name, node.lineno) == ("<lambda>", code.co_firstlineno):
            given = tuple(argument.arg for argument in node.args.args)
            lambdas += [node] if given == code.co_varnames[: code.co_argcount] else []
    if len({ast.unparse(node) for node in lambdas}) != 1:
        raise TraceError(f"{code.co_name}: no such function in line {code.co_firstlineno} of {code.co_filename}")
    made: Any = ast.copy_location(ast.parse("def f(): pass").body[0], lambdas[0])
    made.name, made.args = code.co_name, lambdas[0].args
    made.body = [ast.copy_location(ast.Return(lambdas[0].body), lambdas[0].body)]
    return made  # type: ignore[no-any-return]


class Module:
    """A module as translated code sees it: each attribute wrapped when asked for."""

    def __init__(self, names: Names, module: ModuleType) -> None:
        self._names, self._module = names, module

    def __getattr__(self, name: str) -> Any:
        module, cuda = self._module, self._names.cuda
        if module.__name__ in ("math", "cmath"):
            found = values.of_math(name)
        elif module.__name__.endswith("cuda") and hasattr(cuda, name) and (hasattr(module, name) or name == "fp16"):
            return getattr(cuda, name)  # which may change; fp16 is one that Numba imports when it compiles
        else:
            found = self._names.wrapped(getattr(module, name))
        setattr(self, name, found)
        return found

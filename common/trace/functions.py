"""What a kernel's names stand for when the tracer runs it: translated functions, modules, number types, constants."""

from __future__ import annotations

import ast
import enum
import inspect
import linecache
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from common.trace import translate, values, views
from common.trace.expressions import UntranslatableError
from common.trace.hopper import engines
from common.trace.intrinsics import ENGINES, READS, Cuda, Intrinsic, model_of, unknown
from common.trace.memory import Constant
from common.trace.state import State, TraceError
from common.trace.values import Cast, Value
from common.trace.views import View

Code = Callable[..., Any]

_RUNTIME = {
    "_" + name: getattr(values, name)
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "power", "shift_left", "shift_right", "bit_and", "bit_or",
        "bit_xor", "negative", "positive", "logical_not", "invert", "logical_and", "logical_or", "choose",
    )
}  # fmt: skip
_RUNTIME |= {"_" + name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_RUNTIME["_slice"] = slice
_BUILTINS = {
    "min": values.minimum, "max": values.maximum, "abs": values.absolute, "len": len, "int": values.python_int,
    "float": values.python_float, "bool": values.python_bool, "complex": values.python_complex,
    "range": values.make_range, "enumerate": enumerate, "zip": zip, "pow": values.power, "round": values.rounded,
}  # fmt: skip
_INTEGERS = (
    "_add", "_sub", "_mul", "_floordiv", "_mod", "_shift_left", "_shift_right", "_bit_and", "_bit_or", "_bit_xor",
    "_negative", "_invert", "min", "max",
)  # fmt: skip


def _narrowed(number: type[np.integer[Any]]) -> dict[str, Any]:
    """What differs in functions of `lessons.toolkit.narrow` with integers of this type."""
    found = _RUNTIME | _BUILTINS
    constant = partial(values.narrow_constant, number=number)
    same = {name: values.narrowing(found[name], number) for name in _INTEGERS}
    return {**same, "_narrow": Cast(number), "_narrow_constant": constant}


_NARROW = {number.__name__: _narrowed(number) for number in (np.uint32, np.int32)}


class Names:
    """The globals and closed-over values of a kernel and its device functions, read once, as Numba does.

    ``state`` is what translated code calls ``_t``.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.cuda = Cuda(state)
        self.called: dict[Code, Function] = {}
        self.waits = False  # do threads wait for each other by other means than a barrier of the block

    def wrapped(self, value: Any) -> Any:
        """A global or closed-over value as translated code sees it."""
        if hasattr(value, "storage") and (seen := views.of_device(value, "a global")) is not None:
            return seen
        if isinstance(value, np.ndarray):  # what it holds now stays
            self.state.constants[id(value)] = value
            return View.of(Constant(np.array(value).reshape(-1)), value.shape)
        if isinstance(value, tuple):
            parts = [self.wrapped(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if value is None or isinstance(value, bool | int | str | np.generic):
            return value
        if isinstance(value, float | complex):
            return np.float64(value) if isinstance(value, float) else np.complex128(value)
        if isinstance(value, type) and issubclass(value, enum.IntEnum):
            return SimpleNamespace(**{one.name: int(one) for one in value})
        if isinstance(value, ModuleType) and value.__name__.startswith("numba"):
            return self.cuda.cg if value.__name__ == "numba.cuda.cg" else Module(self, value)
        if isinstance(value, ModuleType):  # what of it is called is not known yet
            self.state.has_engines = self.state.has_engines or not ENGINES.isdisjoint(vars(value))
            self.waits = self.waits or not engines.WAITS.isdisjoint(vars(value))
            return Module(self, value)
        number = _number_type(value)
        if number is not None:
            number.check = partial(views.require_written, self.state)
            return number
        model = model_of(value)
        if model is not None:
            self.state.has_engines = self.state.has_engines or model.name in ENGINES
            self.waits = self.waits or model.name in engines.WAITS
            return model
        function = getattr(value, "py_func", value)
        if _of_numba_s(value) or hasattr(value, "_defn"):
            return self._of_numba(value)  # imported by itself, or an intrinsic that Numba compiles and nobody runs
        if isinstance(value, np.ufunc) or (inspect.isbuiltin(value) and value.__module__ in ("math", "cmath")):
            return values.function(value.__name__) or value
        if not inspect.isfunction(function):
            return value
        return self._called(function)

    def _called(self, function: Code) -> Function:
        if function not in self.called:
            self.called[function] = Function(function, self)
            self.called[function].freeze()
        return self.called[function]

    def _of_numba(self, value: Any) -> Any:
        from numba import cuda  # not in a process that only asks for a trace

        if value is cuda.cg.this_grid:
            return self.cuda.cg.this_grid
        home = str(getattr(value, "__module__", ""))
        if home == "numba.cuda.random":
            return self._called(getattr(value, "py_func", value))
        if home == "numba.cuda.libdevice":
            return values.of_libdevice(value.__name__) or unknown(f"libdevice.{value.__name__}")
        name = next((name for name, one in vars(cuda).items() if one is value), "")
        if name and hasattr(self.cuda, name):
            return getattr(self.cuda, name)
        return unknown(getattr(value, "__name__", name or type(value).__name__))

    def items(self, one: Any) -> Any:
        """What a loop goes through: of an array, its elements."""
        if type(one) is not View:
            return one
        return (one.load(self.state, index, self.state.turning) for index in range(len(one)))

    def integer(self, value: Value = 0) -> Value:
        views.require_written(self.state, value)
        return values.python_int(value)


class Function:
    """A kernel or device function, bound to what its names stand for."""

    def __init__(self, function: Code, names: Names) -> None:
        self.function, self.names = function, names
        self.home = function.__code__.co_filename == names.state.home  # is it in the step's own file?
        self.namespace: dict[str, Any] | None = None
        self.parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._translated: Code | None = None
        self.shares = True  # is its shared memory one for all calls? not if Numba writes it out at each
        self._writes: dict[tuple[str, int], bool] = {}

    def freeze(self) -> None:
        """Read the globals and closed-over values, as Numba does when it compiles the kernel."""
        try:
            found = self._translation()
        except TraceError:
            return  # told when it is called
        self.shares = found.shares
        if "this_grid" in self.function.__code__.co_names:
            self.names.state.cooperative = True
        scope = scope_of(self.function)
        wrapped = {name: self.names.wrapped(scope[name]) for name in found.free}
        items = self.names.items
        builtins = {
            **_BUILTINS,
            "int": self.names.integer,
            "enumerate": lambda one, start=0: enumerate(items(one), start),
            "zip": lambda *several: zip(*map(items, several), strict=False),
        }
        narrow = _NARROW.get(found.narrow, {})
        runtime = {name: narrow.get(name, value) for name, value in _RUNTIME.items()}
        self.namespace = {**builtins, **narrow, **wrapped, **runtime, "_t": self.names.state}
        scope = self.namespace | found.constants
        exec(found.code, scope)
        self._translated = scope[self.function.__code__.co_name]

    def _translation(self) -> _Translation:
        return _translation(_source(self.function, self.home))

    def may_write(self, parameter: str, axes: int) -> bool:
        """May a call write to the array that is its parameter, with so many axes?"""
        key = parameter, axes
        if key not in self._writes:
            self._writes[key] = False  # of a function that calls itself
            self._writes[key] = self.namespace is None or any(
                self._may_write(use, axes) for use in self._translation().uses[parameter]
            )
        return self._writes[key]

    def _may_write(self, use: Use, axes: int) -> bool:
        if not use.called:
            return use.indices != axes
        assert self.namespace is not None
        called = self.namespace.get(use.called)
        if isinstance(called, Intrinsic):
            return READS.get(called.name) != use.position
        if not isinstance(called, Function):
            return use.called != "len"
        given = called.parameters
        return use.position >= len(given) or called.may_write(given[use.position], axes)

    def invoke(self, state: State, line: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self._translated is None:
            self._translation()  # says why
            self.freeze()
            assert self._translated is not None
        site, mask, path = state.site, state.mask, state.call_path
        state.depth += 1
        state.call_path = [self.function] if self.shares else [*path, self.function, state.spot]
        if not self.home:
            state.site = line
        try:
            return self._translated(*arguments, **options)
        finally:
            state.depth -= 1
            state.call_path, state.site, state.mask = path, site, mask


class _Source(NamedTuple):
    """What a translation is made of: a function's code and text, its free names, which of them are types, and which
    Python ints."""

    code: CodeType
    text: str
    home: bool
    scope: frozenset[str]
    casts: frozenset[str]
    ints: frozenset[str]


def _source(function: Code, home: bool) -> _Source:
    """A factory's functions share one, as long as they are made of the same text."""
    code = function.__code__
    linecache.checkcache(code.co_filename)  # the file may have been edited
    text = "".join(linecache.getlines(code.co_filename))
    scope = scope_of(function)
    casts = frozenset(
        name for name in code.co_names + code.co_freevars if isinstance(_number_type(scope.get(name)), Cast)
    )
    ints = frozenset(name for name, value in scope.items() if type(value) is int)
    return _Source(code, text, home, frozenset(scope), casts, ints)


@dataclass(frozen=True)
class _Translation:
    """``shares``: have all calls one shared memory? Not if Numba writes the function out at each. ``narrow``: the
    type that `lessons.toolkit.narrow` gives its integers, if it does."""

    code: CodeType
    constants: dict[str, Any]
    free: frozenset[str]
    uses: dict[str, frozenset[Use]]
    shares: bool
    narrow: str


@lru_cache(maxsize=1024)
def _translation(source: _Source) -> _Translation:
    code, text, home, scope, casts, ints = source
    definition = _definition(code, text)
    free = frozenset(node.id for node in ast.walk(definition) if isinstance(node, ast.Name) and node.id in scope)
    try:
        pure = lambda name: name in casts if name in free else name in _BUILTINS  # noqa: E731
        narrow = narrowness(definition)
        module, constants = translate.translate(definition, pure, home, ints & free, bool(narrow))
    except UntranslatableError as error:
        raise TraceError(f"{code.co_name}: {error}") from None
    shares = not any("always" in ast.unparse(decorator) for decorator in definition.decorator_list)
    floats = {name: np.float64(value) for name, value in constants.items()}
    return _Translation(compile(module, code.co_filename, "exec"), floats, free, uses(definition), shares, narrow)


def narrowness(definition: ast.FunctionDef) -> str:
    """The type of integers in a function under `lessons.toolkit.narrow`; of others, an empty text."""
    for decorator in definition.decorator_list:
        match decorator:
            case ast.Name("narrow"):
                return "uint32"
            case ast.Call(ast.Name("narrow"), _, keywords):
                signed = any(one.arg == "signed" and ast.unparse(one.value) == "True" for one in keywords)
                return "int32" if signed else "uint32"
    return ""


@dataclass(frozen=True)
class Use:
    """What becomes of a parameter: ``called`` with it at ``position``, or indexed with ``indices``, or unknown."""

    indices: int = 0
    called: str = ""
    position: int = 0


_HARMLESS = ("shape", "size", "ndim", "dtype", "strides", "nbytes", "itemsize")


def uses(definition: ast.FunctionDef) -> dict[str, frozenset[Use]]:
    """Of each parameter, what may write to the array that it is; a ``Use()`` if nobody knows."""
    parents = {child: node for node in ast.walk(definition) for child in ast.iter_child_nodes(node)}
    found: dict[str, set[Use]] = {argument.arg: set() for argument in definition.args.args}
    for node in ast.walk(definition):
        if not isinstance(node, ast.Name) or node.id not in found:
            continue
        parent, use = parents[node], Use()
        if isinstance(parent, ast.Attribute) and parent.attr in _HARMLESS:
            continue
        if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Load):
            indices = parent.slice.elts if isinstance(parent.slice, ast.Tuple) else [parent.slice]
            if parent.value is node and not any(isinstance(i, ast.Slice) for i in indices):
                use = Use(indices=len(indices))
        elif isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and node in parent.args:
            use = Use(called=parent.func.id, position=parent.args.index(node))
        elif isinstance(node.ctx, ast.Load) and isinstance(parent, ast.BinOp | ast.Compare | ast.BoolOp | ast.If):
            continue  # a number
        found[node.id].add(use)
    return {name: frozenset(all_) for name, all_ in found.items()}


def scope_of(function: Code) -> dict[str, Any]:
    """What a function's free names stand for now."""
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            raise TraceError(f"{function.__name__}: {name} has no value yet") from None
    return scope


def _of_numba_s(value: Any) -> bool:
    """Is it one of Numba's own functions, and not of the tests that come with it?"""
    home = str(getattr(value, "__module__", ""))
    return home.startswith("numba.cuda") and not home.startswith("numba.cuda.tests.")


def _number_type(value: Any) -> Cast | None:
    """A NumPy or Numba number type, as a cast."""
    if isinstance(value, type):
        return Cast(value) if issubclass(value, np.generic) else None
    if isinstance(value, np.dtype) or type(value).__name__ == "Record":  # Numba's type of records
        return Cast(getattr(value, "dtype", value))
    if inspect.isfunction(value) or isinstance(value, ModuleType) or hasattr(value, "py_func"):
        return None
    try:
        return Cast(str(value)) if callable(value) else None  # Numba's types have NumPy's names
    except (TypeError, ValueError, SyntaxError):  # the last two: what has brackets and commas
        return None


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def _definition(code: CodeType, text: str) -> ast.FunctionDef:
    """The function's syntax tree, from the text of the file that it was written in."""
    if not text:
        raise TraceError(f"{code.co_name}: its source {code.co_filename} is not there")
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= code.co_firstlineno <= node.lineno:
                return node
    found = [node for node in ast.walk(_tree(text)) if isinstance(node, ast.Lambda) and _is_lambda(node, code)]
    if len({ast.unparse(node) for node in found}) == 1:
        node = found[0]
        made = ast.parse("def f(): pass").body[0]
        assert isinstance(made, ast.FunctionDef)
        made.name, made.args = code.co_name, node.args
        made.body = [ast.copy_location(ast.Return(node.body), node.body)]
        return ast.copy_location(made, node)
    raise TraceError(f"{code.co_name}: no such function in line {code.co_firstlineno} of {code.co_filename}")


def _is_lambda(node: ast.Lambda, code: CodeType) -> bool:
    given = tuple(argument.arg for argument in node.args.args)
    names = code.co_varnames[: code.co_argcount]
    return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno and given == names


class Module:
    """A module as translated code sees it: each attribute wrapped when asked for."""

    def __init__(self, names: Names, module: ModuleType) -> None:
        self._names, self._module = names, module
        self._cuda = module.__name__.endswith("cuda")
        self._found: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if self._cuda:
            if not hasattr(self._module, name) and name != "fp16":  # Numba imports it where it first compiles
                raise AttributeError(f"module 'numba.cuda' has no attribute '{name}'")
            found = getattr(self._module, name, None)
            if not hasattr(self._names.cuda, name) and (isinstance(found, ModuleType) or _number_type(found)):
                return self._names.wrapped(found)  # cuda.libdevice, cuda.float32
            if not hasattr(self._names.cuda, name):
                raise TraceError(f"cuda.{name} is not known to the tracer")
            return getattr(self._names.cuda, name)
        if name not in self._found:
            self._found[name] = self._read(name)
        return self._found[name]

    def _read(self, name: str) -> Any:
        if self._module.__name__ in ("math", "cmath"):
            return values.of_math(name)
        found = getattr(self._module, name)
        if isinstance(found, np.ufunc):
            return values.function(name) or found
        return self._names.wrapped(found)

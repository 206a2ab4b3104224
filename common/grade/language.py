"""The part of Python that a kernel file needs; whatever else a submission says is refused before any of it runs.

Where it is traced a file's Python runs beside the arrays that it is judged by, and Python that may say anything can
reach everything in its process. So what a kernel file has a use for is listed: statements, built-in names,
attributes, modules and what they give; and for a copy of a step, the modules of lessons that the step loads
(:mod:`common.grade.borrowed`). A self-test under ``if __name__ == "__main__":`` never runs here, and may say
anything.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import math
import symtable
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache

from common.catalog import catalog
from common.grade.borrowed import NOTHING, Borrowed, file_of

MOST = 3  # what is refused in one file and said

_SCALARS = {
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    "float16", "float32", "float64", "boolean", "bool_", "intp", "uintp", "void",
}  # fmt: skip

# What may be taken from a module, by its full name.
MODULES: dict[str, set[str]] = {
    "__future__": {"annotations"},
    "functools": {"cache", "lru_cache", "partial", "reduce"},
    "itertools": {"chain", "count", "product", "repeat"},
    "math": {name for name in vars(math) if not name.startswith("_")},
    "numba": {"cuda", "types", *_SCALARS},
    "numba.types": _SCALARS,
    "numba.cuda": {
        "as_cuda_array", "atomic", "blockDim", "blockIdx", "brev", "cbrt", "clz", "const", "device_array",
        "device_array_like", "ffs", "fma", "fp16", "grid", "gridDim", "gridsize", "jit", "laneid", "local", "max",
        "min", "popc", "selp", "shared", "shfl_down_sync", "shfl_sync", "shfl_up_sync", "shfl_xor_sync", "stream",
        "synchronize", "syncthreads", "syncthreads_and", "syncthreads_count", "syncthreads_or", "syncwarp",
        "threadIdx", "threadfence", "threadfence_block", "threadfence_system", "to_device", "types",
        "vote_sync_intrinsic", "warpsize",
    },
    "numba.cuda.types": _SCALARS,
    "numpy": {
        "arange", "array", "asarray", "ascontiguousarray", "broadcast_to", "ceil", "concatenate", "dtype",
        "empty", "eye", "floor", "full", "indices", "inf", "log2", "nan", "ndindex", "newaxis", "ones", "pad",
        "pi", "prod", "sqrt", "stack", "transpose", "zeros", *_SCALARS - {"boolean", "void"},
    },
    "typing": {"Any", "Callable", "Final", "NamedTuple"},
}  # fmt: skip

# Attributes of arrays, of what a launch is given, and of built-in values.
ATTRIBUTES = {
    "add", "all", "and_", "append", "array", "array_like", "astype", "bit_count", "bit_length", "cas",
    "compare_and_swap", "check", "complete", "copy", "copy_to_device", "copy_to_host", "count", "dec", "dtype",
    "exch", "extend", "fill", "filt_shape", "flat", "flatten", "forall", "geometry", "get", "hadd", "hooks", "imag",
    "inc", "index", "input_shape", "insert", "is_integer", "items", "itemsize", "join", "kernel", "keys", "max",
    "min", "nanmax", "nanmin", "nbytes", "ndim", "operands", "or_", "output_shape", "pop", "ravel", "real",
    "reduction", "reshape", "reverse", "setdefault", "shape", "size", "sort", "squeeze", "start", "step", "stop",
    "stores", "strides", "sub", "sum", "swapaxes", "transpose", "update", "values", "view", "weight_shape", "x_shape",
    "xor", "y_shape", *"xyz", *"NCDHWKTRSOPQM",
    *(f"{what}_{axis}" for what in ("stride", "pad", "dilation") for axis in "dhw"),
}  # fmt: skip

BUILTINS = {
    "AssertionError", "Exception", "False", "None", "NotImplementedError", "RuntimeError", "True", "TypeError",
    "ValueError", "abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float",
    "frozenset", "int", "len", "list", "map", "max", "min", "next", "object", "pow", "print", "range", "reversed",
    "round", "set", "slice", "sorted", "sum", "tuple", "zip",
}  # fmt: skip

_EXPRESSIONS = (
    ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.Dict, ast.DictComp,
    ast.FormattedValue, ast.GeneratorExp, ast.IfExp, ast.JoinedStr, ast.Lambda, ast.List, ast.ListComp, ast.Name,
    ast.NamedExpr, ast.Set, ast.SetComp, ast.Slice, ast.Starred, ast.Subscript, ast.Tuple, ast.UnaryOp,
)  # fmt: skip
_STATEMENTS = (
    ast.AnnAssign, ast.Assert, ast.Assign, ast.AugAssign, ast.Break, ast.Continue, ast.Expr, ast.For, ast.FunctionDef,
    ast.If, ast.Import, ast.ImportFrom, ast.Pass, ast.Raise, ast.Return, ast.While,
)  # fmt: skip
_PARTS = (
    ast.Module, ast.alias, ast.arg, ast.arguments, ast.boolop, ast.cmpop, ast.comprehension, ast.ExceptHandler,
    ast.expr_context, ast.keyword, ast.operator, ast.unaryop, ast.withitem,
)  # fmt: skip

_OF_LESSONS = tuple(f"lessons.{digit}" for digit in range(10))

Refusal = tuple[int, str]  # line, and what stands there


def refused(text: str, borrowed: Borrowed = NOTHING) -> list[str]:
    """What a source says that a kernel file has no use for, each with its line; empty if it is no Python at all.

    ``borrowed``: what it may load of lessons, each by one ``NAME = importlib.import_module("...")``.
    """
    try:
        tree = ast.parse(text)
        found = sorted(dict.fromkeys(_refused(without_self_test(tree), borrowed)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # importing it says so with its line
    said = [f"line {line}: {what}" for line, what in found[:MOST]]
    return [*said, *([f"and {len(found) - MOST} more such places"] if len(found) > MOST else [])]


def is_self_test(node: ast.stmt) -> bool:
    """Is it ``if __name__ == "__main__":``, to the letter and with nothing else to it?"""
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def without_self_test(tree: ast.Module) -> ast.Module:
    """The same source without what only runs when it is a program."""
    return ast.Module([node for node in tree.body if not is_self_test(node)], tree.type_ignores)


def _refused(whole: ast.Module, borrowed: Borrowed) -> Iterator[Refusal]:
    modules: dict[str, str] = {}  # names that stand for modules
    imported: dict[str, int] = {}
    tree = _without_loads(whole, borrowed, modules, imported)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imports(node, modules, imported)
    records = {node for node in tree.body if _is_record(node)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        if not isinstance(node, (*_EXPRESSIONS, *_STATEMENTS, *_PARTS)) and node not in records:
            yield line, f"`{_word(node)}`"
        yield from ((line, f"the name `{name}`") for name in _names(node) if name.startswith("__"))
        if isinstance(node, ast.Attribute):
            yield from _attribute(node, modules, borrowed)
        elif isinstance(node, ast.FunctionDef):
            yield from _decorators(node, imported)
    yield from _bound(tree, imported)
    allowed = ATTRIBUTES | borrowed.attributes
    calls = _spelled(tree)
    plain = [call.func for call, names in calls if names <= allowed and not _module(call.args[0], modules)]
    yield from _looked_up(tree, plain)


def _without_loads(
    tree: ast.Module, borrowed: Borrowed, modules: dict[str, str], imported: dict[str, int]
) -> ast.Module:
    """The source without the lines that load what is borrowed; note which names stand for what.

    ``import importlib`` goes with them, as nothing else may use it: the name stands for nothing that is known.
    """
    rest: list[ast.stmt] = []
    for node in tree.body:
        loaded = _loaded(node)
        if loaded and loaded[1] in borrowed.modules and loaded[0] not in imported:
            modules[loaded[0]] = loaded[1]
            imported[loaded[0]] = node.lineno
        elif not (borrowed.modules and ast.unparse(node) == "import importlib"):
            rest.append(node)
    if len(rest) < len(tree.body):
        imported.setdefault("importlib", 1)
    return ast.Module(rest, tree.type_ignores)


def _loaded(node: ast.stmt) -> tuple[str, str] | None:
    """The name and the module of ``NAME = importlib.import_module("MODULE")``."""
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.value.args) == 1):
        return None
    (argument,), targets = node.value.args, node.targets
    if not (isinstance(argument, ast.Constant) and len(targets) == 1 and isinstance(targets[0], ast.Name)):
        return None
    name, module = targets[0].id, str(argument.value)
    plain = ast.unparse(node) == f"{name} = importlib.import_module({module!r})"
    return (name, module) if plain and not name.startswith("__") and name not in dir(builtins) else None


def _is_record(node: ast.AST) -> bool:
    """Is it ``class NAME(NamedTuple):`` with a docstring and fields, and nothing that runs?"""
    return (
        isinstance(node, ast.ClassDef)
        and [ast.unparse(base) for base in node.bases] == ["NamedTuple"]
        and not (node.decorator_list or node.keywords)
        and all(
            isinstance(part, ast.AnnAssign) and (part.value is None or isinstance(part.value, ast.Constant))
            for part in node.body[ast.get_docstring(node) is not None :]
        )
    )


def _imports(
    node: ast.Import | ast.ImportFrom, modules: dict[str, str], imported: dict[str, int]
) -> Iterator[Refusal]:
    """Refuse what is not listed; note which names stand for what."""
    for alias in node.names:
        bound = alias.asname or alias.name.split(".")[0]
        if modules.get(bound, "").startswith(_OF_LESSONS):
            yield node.lineno, f"`{bound}` given another meaning"
        imported[bound] = node.lineno
        if isinstance(node, ast.Import):
            known = _gives(alias.name) is not None
            modules[bound] = alias.name if alias.asname else bound
        else:
            source = "." * node.level + (node.module or "")
            known = alias.name in (_gives(source) or ())
            if known and _gives(f"{source}.{alias.name}") is not None:
                modules[bound] = f"{source}.{alias.name}"
        if not known:
            whole = alias.name if isinstance(node, ast.Import) else f"{alias.name} from {source}"
            yield node.lineno, f"import of {whole}"


def _gives(module: str) -> AbstractSet[str] | None:
    """What may be taken from a module; None if it may not be imported."""
    if module == "lessons":
        return {path.stem for path in catalog.LESSONS.glob("[!_]*.py")}
    parent, _, name = module.rpartition(".")
    # a lesson's own begins with a digit, which no import statement can say: only a load leads here
    if (parent == "lessons" and name.isidentifier()) or module.startswith(_OF_LESSONS):
        return _defined(module)
    return MODULES.get(module)


def _defined(module: str) -> frozenset[str] | None:
    """The names that a module of the lessons makes itself: what it imports is not its to give."""
    path = file_of(module)
    return _made(path.read_bytes()) if path.is_file() else None


@lru_cache(maxsize=64)  # a source asks for it at each attribute
def _made(source: bytes) -> frozenset[str]:
    found: set[str] = set()
    pending: list[ast.AST] = list(ast.parse(source).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and _stored(name)}
        elif isinstance(node, ast.If | ast.Try):
            pending += ast.iter_child_nodes(node)
    return frozenset(name for name in found if not name.startswith("_"))


def _attribute(node: ast.Attribute, modules: dict[str, str], borrowed: Borrowed) -> Iterator[Refusal]:
    module = _module(node.value, modules)
    allowed = (_gives(module) or set()) if module else ATTRIBUTES | borrowed.attributes
    if node.attr not in allowed or not isinstance(node.ctx, ast.Load):
        yield node.lineno, f"`{ast.unparse(node)[-60:]}`"


def _module(node: ast.expr, modules: dict[str, str]) -> str | None:
    """The full name of the module that an expression stands for; None if it stands for something else."""
    if isinstance(node, ast.Name):
        return modules.get(node.id)
    if isinstance(node, ast.Attribute):
        parent = _module(node.value, modules)
        if parent and _gives(f"{parent}.{node.attr}") is not None:
            return f"{parent}.{node.attr}"
    return None


def _decorators(node: ast.FunctionDef, imported: dict[str, int]) -> Iterator[Refusal]:
    """Only what was imported decorates: a kernel's name must stand for the kernel."""
    for decorator in node.decorator_list:
        root: ast.expr = decorator.func if isinstance(decorator, ast.Call) else decorator
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id not in imported:
            yield decorator.lineno, f"the decorator `@{ast.unparse(decorator)[:60]}`"


def _bound(tree: ast.Module, imported: dict[str, int]) -> Iterator[Refusal]:
    """A file's functions, imports and built-in names stand for one thing throughout."""
    made: dict[str, int] = {}
    for node in _of_the_file(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            for name in _names(node):
                if name in made and not isinstance(node, ast.Import | ast.ImportFrom):
                    yield node.lineno, f"`{name}` made a second time"
                made.setdefault(name, node.lineno)
    fixed = {*made, *imported, *dir(builtins)}
    for node in _of_the_file(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (node.name in imported or node.name in dir(builtins)):
            yield node.lineno, f"`{node.name}` made anew"
        if isinstance(node, ast.Name) and _stored(node) and node.id in fixed:
            yield node.lineno, f"`{node.id}` given another meaning"


def _of_the_file(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes outside of functions: what they bind, the whole file sees."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def _spelled(tree: ast.Module) -> list[tuple[ast.Call, set[str]]]:
    """Calls ``getattr(OBJECT, NAME)`` where all texts that NAME can be are seen, with those: each is an attribute.

    NAME is a text, or a variable of a comprehension over texts, or an f-string of such.
    """
    named = {node.target.id for node in ast.walk(tree) if isinstance(node, ast.NamedExpr)}
    found: list[tuple[ast.Call, set[str]]] = []

    def look(node: ast.AST, known: dict[str, set[str]]) -> None:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            known = {}
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            look(node.generators[0].iter, known)  # outside of the comprehension's scope
            known = loops(node.generators, known)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) == 2:
            plain = not (node.keywords or isinstance(node.args[0], ast.Starred))
            texts = _texts(node.args[1], known)
            if plain and texts:
                found.append((node, texts))
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.comprehension):
                look(child, known)

    def loops(generators: list[ast.comprehension], known: dict[str, set[str]]) -> dict[str, set[str]]:
        """What is known within: a variable that two loops bind may be the later one's in the earlier."""
        bound = [name.id for one in generators for name in ast.walk(one.target) if isinstance(name, ast.Name)]
        known = {name: texts for name, texts in known.items() if name not in bound}
        for one in generators:
            if one is not generators[0]:
                look(one.iter, known)
            if isinstance(one.target, ast.Name) and bound.count(one.target.id) == 1 and one.target.id not in named:
                known = known | {one.target.id: _elements(one.iter)}
            for test in one.ifs:
                look(test, known)
        return known

    look(tree, {})
    return found


def _elements(node: ast.expr) -> set[str]:
    """What a text, or a tuple or list of texts, has in it; empty if it may be anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return set(node.value)
    items = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    texts = {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    return texts if all(isinstance(item, ast.Constant) and item.value in texts for item in items) else set()


def _texts(node: ast.expr, known: dict[str, set[str]]) -> set[str]:
    """All that an expression of texts can be; empty if that cannot be seen."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.Name):
        return known.get(node.id, set())
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
        return _texts(node.value, known)
    if isinstance(node, ast.JoinedStr):
        return {"".join(parts) for parts in itertools.product(*(_texts(part, known) for part in node.values))}
    return set()


def _looked_up(tree: ast.Module, plain: list[ast.expr]) -> Iterator[Refusal]:
    """Built-in names that are not listed, but for those that are ``plain``."""
    pending = [symtable.symtable(ast.unparse(tree), "file", "exec")]
    own = {symbol.get_name() for symbol in pending[0].get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    named: set[str] = set()
    while pending:
        table = pending.pop()
        pending += table.get_children()
        for symbol in table.get_symbols():
            outside = symbol.is_global() or table.get_type() == "module"
            if outside and symbol.is_referenced() and symbol.get_name() not in own:
                named.add(symbol.get_name())
    strange = (named & {*dir(builtins)}) - BUILTINS
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in strange and node not in plain and not _stored(node):
            yield node.lineno, f"`{node.id}`"


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg | ast.keyword):
        yield node.arg or ""
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)


def _stored(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _word(node: ast.AST) -> str:
    """What a statement or an expression of this kind begins with."""
    words = {
        ast.AsyncFor: "async for", ast.AsyncFunctionDef: "async def", ast.AsyncWith: "async with", ast.Await: "await",
        ast.ClassDef: "class", ast.Delete: "del", ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Try: "try",
        ast.With: "with", ast.Yield: "yield", ast.YieldFrom: "yield from",
    }  # fmt: skip
    return words.get(type(node), type(node).__name__.lower())

"""Keeps compiled kernels in files, for other processes and later runs: the key is all that a kernel is made of.

Numba's own cache would take two kernels of one factory for the same where ``unroll`` has turned the closure into
globals, and never finds one whose closure holds a device function. Here the key has the code of all functions that a
kernel reaches, their values and files. What cannot be described is compiled as if there were no cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import sys
import time
import types as python
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec import Struct

from common.catalog import cache, sources
from common.machine_code.capture import replaced

_KIND = "kernels"  # of what the cache keeps
_PACKAGES_BY_NAME = ("numba", "numba_cuda", "llvmlite", "numpy", "cuda")
_SETTINGS = ("OPT", "DEBUGINFO", "CUDA_")  # of Numba's configuration, by how their names begin
_Capability = tuple[int, int]


class _Kept(Struct):
    """A kernel's name, has it line information, how long it took to compile, and its machine code."""

    name: str
    lineinfo: bool
    ms: float
    code: bytes


class _Describer:
    """Turns values into tuples that are equal only if they make the same machine code; ``files``: of functions."""

    def __init__(self) -> None:
        self.files: set[Path] = set()
        self._seen: dict[int, tuple[str, Any]] = {}  # digests, with the values: ids are unique while these live
        self._open: list[int] = []  # what is being described

    def __call__(self, value: Any) -> tuple[object, ...]:
        """Raises ValueError for what is neither code nor a plain value."""
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return type(value).__name__, repr(value)
        if id(value) in self._open:
            return "within", len(self._open) - self._open.index(id(value))
        if id(value) not in self._seen:
            self._open.append(id(value))
            self._seen[id(value)] = _hashed(self._described(value)), value
            self._open.pop()
        return "of", self._seen[id(value)][0]

    def _described(self, value: Any) -> tuple[object, ...]:
        from llvmlite import ir  # type: ignore[import-untyped]
        from numba.cuda import dispatcher, extending, types

        kind = type(value)
        match value:
            case tuple() | list():
                return kind.__name__, *map(self, value)
            case dict():
                return "dict", *((self(name), self(part)) for name, part in value.items())
            case np.ndarray() | np.generic() if not value.dtype.hasobject:
                return "array", value.dtype.str, value.shape, value.tobytes()
            case types.Type() | ir.Type() | np.dtype():
                return kind.__qualname__, str(value)
            case dispatcher.CUDADispatcher():
                options = dict(sorted(value.targetoptions.items()))
                if options.pop("link", None) or options.pop("extensions", None):
                    raise ValueError("a kernel that links other files")
                return self(options), self(value.py_func)
            case extending._Intrinsic():
                given = repr(sorted(value._ctor_kwargs.items()))
                return "intrinsic", value._prefer_literal, given, self(value._defn)
            case python.FunctionType() if not _trusted(value.__module__ or ""):
                code, cells, known = value.__code__, value.__closure__ or (), value.__globals__
                closure = {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}
                read = {name: known[name] for name in sorted(_names(code)) if name in known}
                return self((code, value.__defaults__, value.__kwdefaults__, closure, read))
            case python.CodeType():
                return self._code(value)
            case python.ModuleType():
                names = value.__name__.split(".")  # Numba renames modules that it replaces with its own
                return "module", names[0], names[-1]
        # by name, for the packages' versions
        if _trusted(kind.__module__) and hasattr(value, "__name__"):
            return "object", kind.__qualname__, getattr(value, "__module__", ""), value.__name__
        raise ValueError(f"{kind.__name__} {getattr(value, '__name__', '')}")

    def _code(self, code: python.CodeType) -> tuple[object, ...]:
        file = Path(code.co_filename)
        if file.is_file():
            self.files.add(file)
        constants = (sorted(map(repr, one)) if isinstance(one, frozenset) else one for one in code.co_consts)
        counts = code.co_flags, code.co_argcount, code.co_kwonlyargcount
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        return "code", code.co_name, code.co_code, counts, names, *map(self, constants)


def _names(code: python.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, python.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _trusted(module: str) -> bool:
    top = module.split(".")[0]
    return top in _PACKAGES_BY_NAME or top in sys.stdlib_module_names


def _hashed(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def key(dispatcher: Any, argument_types: tuple[Any, ...], capability: _Capability) -> str | None:
    """The key of a compiled kernel; None if it depends on something that cannot be described."""
    from numba.cuda.core import config

    describe = _Describer()
    settings = {name: repr(value) for name, value in sorted(vars(config).items()) if name.startswith(_SETTINGS)}
    environment = platform.python_version(), sources.versions(cache.PACKAGES), settings
    try:
        made_of = describe(dispatcher), [*map(str, argument_types)], capability
        written = [hashlib.sha256(file.read_bytes()).hexdigest() for file in cache.files(describe.files)]
        return _hashed((made_of, written, environment))
    except (RecursionError, OSError, ValueError):  # ValueError: of a closure that is still empty, too
        return None


class Cache:
    """Replaces Numba's cache of one dispatcher: asked before a kernel is compiled, and told afterwards."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        self._key: str | None = None
        self._capability: _Capability = (0, 0)
        self._began = 0.0

    def load_overload(self, signature: Any, _: Any) -> Any:
        """The kernel, as compiling it would have returned it, or None: then it is to be compiled."""
        from cuda.core import ObjectCode  # type: ignore[import-untyped]
        from numba.cuda import codegen, dispatcher, types
        from numba.cuda.core import sigutils
        from numba.cuda.descriptor import cuda_target

        began = time.perf_counter()
        arguments, _ = sigutils.normalize_signature(signature)
        major, minor = dispatcher.get_current_device().compute_capability
        self._capability = int(major), int(minor)
        self._key = key(self._dispatcher, arguments, self._capability)
        kept = cache.get(_KIND, self._key, _Kept) if self._key else None
        self._began = time.perf_counter()
        if kept is None:
            return None
        library = codegen.CUDACodeLibrary(cuda_target.target_context.codegen(), kept.name, kept.name)
        library._cubin_cache[_architecture(self._capability)] = ObjectCode.from_cubin(kept.code)
        library._finalized = True
        kernel = dispatcher._Kernel._rebuild(
            cooperative=False, name=kept.name, signature=types.void(*arguments), codelibrary=library, debug=False,
            lineinfo=kept.lineinfo, call_helper=None, extensions=[],
        )  # fmt: skip
        kernel.launch_bounds = self._dispatcher.targetoptions.get("launch_bounds")  # names the blocks of a cluster
        saved.ms += max(0.0, kept.ms - 1e3 * (time.perf_counter() - began))
        return kernel

    def save_overload(self, _: Any, kernel: Any) -> None:
        """Keep a kernel that was compiled, if it has a key and is of a kind that is kept."""
        elapsed = 1e3 * (time.perf_counter() - self._began)
        library = kernel._codelibrary
        special = kernel.debug or kernel.cooperative or kernel.extensions or kernel.launch_config_sensitive
        if self._key is None or special or kernel.shared_memory_carveout is not None or library.referenced_objects:
            return
        with _for_capability(self._capability):
            code = library.get_cubin().code
        cache.put(_KIND, self._key, _Kept(kernel.entry_name, bool(kernel.lineinfo), elapsed, code))


saved = SimpleNamespace(ms=0.0)  # by which compiling here would have taken longer than finding the kernels did


def install() -> None:
    """From now on, kernels that this process compiles are looked up in the cache, and kept there."""
    from numba.cuda import dispatcher

    construct = dispatcher.CUDADispatcher.__init__

    def constructed(self: Any, *args: Any, **options: Any) -> None:
        construct(self, *args, **options)
        self._cache = Cache(self)

    dispatcher.CUDADispatcher.__init__ = constructed


def compile_for(dispatcher: Any, argument_types: tuple[Any, ...], capability: _Capability) -> None:
    """Compile a kernel that has a key for a compute capability, and keep it, after :func:`install`; needs no GPU."""
    from numba.cuda.dispatcher import _Kernel

    if key(dispatcher, argument_types, capability) is None:
        return
    with _for_capability(capability), replaced(_Kernel, bind=lambda kernel: kernel._codelibrary.get_cubin()):
        dispatcher.compile(argument_types)


@contextlib.contextmanager
def _for_capability(capability: _Capability) -> Iterator[None]:
    """Numba compiles for this compute capability, whatever GPU there is."""
    from numba.cuda import codegen, dispatcher

    def named(_: Any, asked: Any) -> Any:
        return _architecture(capability) if asked is None else asked

    card = replaced(dispatcher, get_current_device=lambda: SimpleNamespace(compute_capability=capability))
    with card, replaced(codegen.CUDACodeLibrary, _ensure_cc=named):
        yield


def _architecture(capability: _Capability) -> tuple[int, int, str]:
    return (*capability, "a" if capability >= (9, 0) else "")

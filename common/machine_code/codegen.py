"""Compiles a step's kernels: without a GPU to PTX for any architecture, and to machine code where NVIDIA's tools are.

What a GPU runs is kept in files, under a key of all that it is made of: the code of all functions that it reaches,
their values and files. Numba's own cache would take two kernels of one factory for the same where ``unroll`` has
turned the closure into globals, and never finds one whose closure holds a device function.
"""

import hashlib
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types as python
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np
from msgspec import Struct

from common.catalog import cache, limits, sources
from common.catalog.problems import Problem
from common.machine_code import capture, summaries
from common.machine_code.capture import BoundStep, replaced

ARCHITECTURES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


class ToolMissingError(RuntimeError):
    """NVIDIA's assembler or disassembler is not installed."""


class RegistersError(RuntimeError):
    """An instruction needs more registers than a thread of such a block can have."""


@dataclass(frozen=True)
class Launch:
    """A kernel's launch; the grid is in blocks, of which ``cluster`` along x run as a cluster."""

    name: str
    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    signature: Any
    dynamic_shared_bytes: int = 0
    cluster: int = 1

    @property
    def threads(self) -> int:
        return math.prod(self.block)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """While open, launches are kept in the list that it gives, and not made; device arrays are host arrays."""
    import numba
    from numba import cuda, types

    seen: list[Launch] = []

    def type_of(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return types.Array(numba.from_dtype(value.dtype), value.ndim, "C")
        return numba.typeof(value)  # of a tensor map, too: its bytes

    def record(launched: Any, *args: Any) -> None:
        kernel, shared = launched.dispatcher, launched.sharedmem
        signature, cluster = types.void(*map(type_of, args)), limits.cluster_of(capture.bounds(kernel))
        called = launched.griddim, launched.blockdim, signature, shared, cluster
        seen.append(Launch(kernel.py_func.__name__, kernel, *called))

    arrays = replaced(cuda, **capture.arrays(allocate))
    with capture.no_device(card=cuda.get_current_device), capture.launches(record), arrays:
        yield seen


def launches(module: ModuleType, problem: Problem, candidates: bool = False) -> list[Launch]:
    """The kernels that ``prepare`` and ``launch`` would start for this problem, in order; then, of a step that picks
    one by measuring, those of all ``candidates(problem)``, by ``bind(candidate, weights, problem)(x, y)``."""
    x, weight, y = host_arrays(problem)
    with recorded() as seen:
        BoundStep(module, problem).run(x, weight, y)
        if candidates and hasattr(module, "candidates") and hasattr(module, "bind"):
            for candidate in module.candidates(problem):
                module.bind(candidate, weight, problem)(x, y)
    return seen


def host_arrays(problem: Problem) -> tuple[capture.HostArray, capture.HostArray, capture.HostArray]:
    """Input, weights and output; the weights are ones, the others whatever the memory holds."""
    x, weight, y = (allocate(*operand) for operand in problem.operands)
    weight.fill(1)
    return x, weight, y


def allocate(shape: Any, dtype: Any, values: Any = None, order: Any = "C") -> capture.HostArray:
    """What :func:`capture.arrays` calls."""
    return (np.empty(shape, dtype) if values is None else np.asarray(values)).view(capture.HostArray)


def distinct(found: list[Launch]) -> list[Launch]:
    """Launches of different kernels or argument types, each once, in order."""
    seen: dict[tuple[int, str], Launch] = {}
    for launch in found:
        seen.setdefault((id(launch.kernel), str(launch.signature)), launch)
    return list(seen.values())


def ptx(launch: Launch, architectures: Iterable[str], lines: bool = False) -> dict[str, str]:
    """PTX of one launch's kernel for each compute capability such as ``"9.0"`` or ``"9.0a"``; ``lines`` adds source
    lines. The kernel is lowered once for those below 8.0 and once for the others: nothing asks for more."""
    from numba.cuda import compiler

    texts: dict[str, str] = {}
    lowered: dict[bool, Any] = {}
    wanted = launch.kernel.targetoptions
    lines = lines or bool(wanted.get("lineinfo"))
    options = {key: wanted[key] for key in ("fastmath", "launch_bounds") if wanted.get(key)} | {"lineinfo": lines}
    for architecture in architectures:
        plain = architecture.removesuffix("a")
        cc = tuple(map(int, plain.split(".")))
        if (cc >= (8, 0)) not in lowered:
            with _device_functions(lines), _compiling_for(cc), _source_lines() if lines else nullcontext():
                lowered[cc >= (8, 0)], _ = compiler._compile_pyfunc_with_fixup(
                    launch.kernel.py_func, launch.signature, device=False, abi="numba", cc=cc, **options
                )
        target = cc if plain == architecture else (*cc, "a")
        (texts[architecture],) = lowered[cc >= (8, 0)].get_asm_strs(cc=target)  # it links no other files
    return texts


def readable(text: str, launch: Launch) -> str:
    """PTX with the kernel's plain name in place of the mangled one, which is hundreds of characters long."""
    entry = re.search(r"\.entry (\w+)\(", text)
    return text.replace(entry[1], launch.name) if entry else text


def shared_arrays(text: str) -> int:
    """Bytes of a kernel's own shared arrays, as its PTX declares them: dynamic shared memory has no size there."""
    return sum(map(int, re.findall(r"^\s*(?:\.\w+\s+)?\.shared\s.*\[(\d+)\];", text, re.MULTILINE)))


def float64_arithmetic(text: str) -> list[str]:
    """PTX lines that compute in float64: what a literal such as ``0.0`` slips in."""
    names = "add|sub|mul|fma|div|mad|neg|setp" + ("" if "vprintf" in text else "|cvt")  # print takes doubles
    return [line.strip() for line in re.findall(rf"^\s*(?:@\S+\s+)?(?:{names})\S*\.f64\b.*$", text, re.MULTILINE)]


def machine_code(
    launch: Launch, architecture: str, text: str, disassembled: bool = True
) -> tuple[summaries.Kernel, summaries.Listing]:
    """Assemble one launch's kernel from its PTX; read its instructions, which takes a second, if ``disassembled``.
    Raises ToolMissingError without ptxas and nvdisasm, RegistersError, RuntimeError with what the assembler says."""
    name, most = launch.name, launch.kernel.targetoptions.get("max_registers")
    options = [f"-arch=sm_{architecture.replace('.', '')}", *([f"--maxrregcount={most}"] if most else [])]
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text, encoding="utf-8")
        report = _run(name, "ptxas", "-v", *options, str(source), "-o", str(cubin))
        listing = summaries.parse(_run(name, "nvdisasm", "-c", "-g", str(cubin)) if disassembled else "")

    def figure(pattern: str) -> int:
        found = re.search(pattern, report)
        return int(found[1]) if found else 0

    return summaries.Kernel(
        kernel=name, architecture=architecture, registers=figure(r"Used (\d+) registers"),
        stack_bytes=figure(r"(\d+) bytes stack frame"), shared_bytes=figure(r"(\d+) bytes smem"),
        spill_bytes=figure(r"(\d+) bytes spill stores") + figure(r"(\d+) bytes spill loads"),
        instructions=summaries.names(listing.instructions), hot=summaries.Hot.of(listing),
    ), listing  # fmt: skip


@contextmanager
def _compiling_for(cc: tuple[int, ...]) -> Iterator[None]:
    """Numba compiles for this compute capability, whatever GPU there is."""
    from numba.cuda import codegen, dispatcher

    card = replaced(dispatcher, get_current_device=lambda: SimpleNamespace(compute_capability=cc))
    with card, replaced(codegen.CUDACodeLibrary, _ensure_cc=lambda _, asked: asked or _architecture(cc)):
        yield


def _architecture(cc: tuple[int, ...]) -> tuple[Any, ...]:
    return (*cc, "a" if cc >= (9, 0) else "")


@contextmanager
def _device_functions(lines: bool) -> Iterator[None]:
    """Device functions compile with source ``lines`` or without, and are forgotten afterwards."""
    from numba.cuda import dispatcher

    compile_device = dispatcher.CUDADispatcher.compile_device
    used: list[Any] = []

    def compiled(self: Any, *args: Any) -> Any:
        used.append(self)
        with replaced(self, targetoptions={**self.targetoptions, "lineinfo": lines}):
            return compile_device(self, *args)

    with replaced(dispatcher.CUDADispatcher, compile_device=compiled):
        yield
    for function in used:
        function.overloads.clear()


@contextmanager
def _source_lines() -> Iterator[None]:
    """Line information has the right file for inlined functions, and none of variables: NVVM refuses some."""
    from numba.cuda import debuginfo, lowering, target

    class Line(int):
        file = ""

    def line_of(self: Any, number: int) -> Line:
        start = self.func_ir.loc
        # what belongs to no line of its own stands at the decorator; a reader looks for `def`
        decorator = self.loc.filename == start.filename and start.line <= number < self.defn_loc.line
        line = Line(self.defn_loc.line if decorator else number)
        line.file = self.loc.filename
        return line

    class Builder(debuginfo.CUDADIBuilder):  # type: ignore[misc]
        mark_variable = update_variable = staticmethod(lambda *_, **__: None)

        def _di_file(self, path: str = "") -> Any:
            # quoted, as ptxas does not take what LLVM writes for signs beyond ASCII; summaries.parse takes it back
            folder, name = map(quote, os.path.split(path or self.filepath))
            return self.module.add_debug_info("DIFile", {"directory": folder, "filename": name})

        def _di_location(self, line: int) -> Any:
            add, scope, file = self.module.add_debug_info, self.subprograms[-1], getattr(line, "file", "")
            if file and file != self.filepath:
                place = {"scope": scope, "file": self._di_file(file), "discriminator": 0}
                scope = add("DILexicalBlockFile", place)
            return add("DILocation", {"line": int(line), "column": 1, "scope": scope})

    lines = replaced(lowering.BaseLower, _adjust_line_if_prologue=line_of)
    with lines, replaced(target.CUDATargetContext, DIBuilder=Builder):
        yield


def _run(kernel: str, tool: str, *words: str) -> str:
    from cuda import pathfinder  # type: ignore[import-untyped]

    path = pathfinder.find_nvidia_binary_utility(tool) or shutil.which(tool)
    if path is None:
        how = "pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm, or put the toolkit on PATH"
        raise ToolMissingError(f"{tool} was not found: {how}")
    done = subprocess.run([path, *words], capture_output=True, encoding="utf-8", errors="replace", timeout=300)
    if done.returncode:
        said = (done.stderr or done.stdout).splitlines()
        text = " ".join([line for line in said if "error" in line or "fatal" in line] or said)
        if few := re.search(r"Insufficient registers \((\d+)\).*register target of (\d+)", text):
            share = "all warps of a block share them, those of one scheduler a quarter"
            raise RegistersError(f"a thread needs at least {few[2]} registers, and can have {few[1]}: {share}")
        text = " ".join(re.sub(r"_ZN\w+", kernel, text).split())
        raise RuntimeError(f"{tool} failed: {text[:500]}")
    return done.stdout + done.stderr


# --- kernels that a GPU runs, kept in files ---

_PACKAGES_BY_NAME = ("numba", "numba_cuda", "llvmlite", "numpy", "cuda")
_SETTINGS = ("OPT", "DEBUGINFO", "CUDA_")  # of Numba's configuration, by how their names begin
saved = SimpleNamespace(ms=0.0)  # by which compiling here would have taken longer than finding the kernels did


class _Kept(Struct):
    """A kernel's name, has it line information, how long it took to compile, and its machine code."""

    name: str
    lineinfo: bool
    ms: float
    code: bytes


class _Describer:
    """Digests of values, equal only if they make the same machine code; ``files``: of functions. Raises ValueError
    for what is neither code nor a plain value."""

    def __init__(self) -> None:
        self.files: set[Path] = set()
        self._seen: dict[int, tuple[str, Any]] = {}  # with the values: ids are unique while these live
        self._open: list[int] = []  # what is being described

    def __call__(self, value: Any) -> str:
        if id(value) in self._open:
            return f"within {len(self._open) - self._open.index(id(value))}"
        if id(value) not in self._seen:
            self._open.append(id(value))
            kind = "module" if isinstance(value, python.ModuleType) else type(value).__qualname__
            self._seen[id(value)] = _hashed((kind, *self._parts(value))), value
            self._open.pop()
        return self._seen[id(value)][0]

    def _parts(self, value: Any) -> Iterable[object]:
        from llvmlite import ir  # type: ignore[import-untyped]
        from numba.cuda import dispatcher, extending, types

        match value:
            case None | bool() | int() | float() | str() | bytes():
                return (repr(value),)
            case tuple() | list():
                return map(self, value)
            case dict():
                return map(self, (*value, *value.values()))
            case np.ndarray() | np.generic() if not value.dtype.hasobject:
                return value.dtype.str, value.shape, value.tobytes()
            case types.Type() | ir.Type() | np.dtype():
                return (str(value),)
            case dispatcher.CUDADispatcher():
                options = dict(sorted(value.targetoptions.items()))
                if options.pop("link", None) or options.pop("extensions", None):
                    raise ValueError("a kernel that links other files")
                return self(options), self(value.py_func)
            case extending._Intrinsic():
                return value._prefer_literal, sorted(value._ctor_kwargs.items()), self(value._defn)
            case python.FunctionType() if not _trusted(value.__module__ or ""):
                code, cells, known = value.__code__, value.__closure__ or (), value.__globals__
                closure = {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}
                read = {name: known[name] for name in sorted(_names(code)) if name in known}
                return map(self, (code, value.__defaults__, value.__kwdefaults__, closure, read))
            case python.CodeType():
                if (file := Path(value.co_filename)).is_file():
                    self.files.add(file)
                counts = value.co_flags, value.co_argcount, value.co_kwonlyargcount
                names = value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
                return value.co_code, counts, names, *map(self, value.co_consts)
            case python.ModuleType():
                parts = value.__name__.split(".")  # Numba puts modules of another name and type in their place
                return parts[0], parts[-1]
        # by name, for the packages' versions
        if _trusted(type(value).__module__) and hasattr(value, "__name__"):
            return getattr(value, "__module__", ""), value.__name__
        raise ValueError(f"{type(value).__name__} {getattr(value, '__name__', '')}")


def _names(code: python.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, python.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _trusted(module: str) -> bool:
    top = module.split(".")[0]
    return top in _PACKAGES_BY_NAME or top in sys.stdlib_module_names


def _hashed(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def key(dispatcher: Any, argument_types: tuple[Any, ...], cc: tuple[int, ...]) -> str | None:
    """The key of a compiled kernel; None if it depends on something that cannot be described."""
    from numba.cuda.core import config

    describe = _Describer()
    settings = {name: repr(value) for name, value in sorted(vars(config).items()) if name.startswith(_SETTINGS)}
    environment = platform.python_version(), sources.versions(cache.PACKAGES), settings
    try:
        made_of = describe(dispatcher), [*map(str, argument_types)], cc
        written = [hashlib.sha256(file.read_bytes()).hexdigest() for file in cache.files(describe.files)]
        return _hashed((made_of, written, environment))
    except (RecursionError, OSError, ValueError):  # ValueError: of a closure that is still empty, too
        return None


def keep_kernels() -> None:
    """From now on, kernels that this process compiles are looked up in the cache, and kept there."""
    from numba.cuda import dispatcher
    from numba.cuda.core import sigutils

    compile_ = dispatcher.CUDADispatcher.compile

    def compiled(self: Any, signature: Any) -> Any:
        arguments, _ = sigutils.normalize_signature(signature)
        if self.specialized or arguments in self.overloads:
            return compile_(self, signature)
        began = time.perf_counter()
        cc = tuple(map(int, dispatcher.get_current_device().compute_capability))
        its_key = key(self, arguments, cc)
        kept = cache.get("kernels", its_key, _Kept) if its_key else None
        looked = time.perf_counter()
        if kept is not None:
            kernel = _rebuilt(kept, self, arguments, cc)
            self.add_overload(kernel, arguments)
            saved.ms += max(0.0, kept.ms - 1e3 * (time.perf_counter() - began))
            return kernel
        kernel = compile_(self, signature)
        elapsed, library = 1e3 * (time.perf_counter() - looked), kernel._codelibrary
        special = kernel.debug or kernel.cooperative or kernel.extensions or kernel.launch_config_sensitive
        if its_key and not (special or kernel.shared_memory_carveout is not None or library.referenced_objects):
            with _compiling_for(cc):
                code = library.get_cubin().code
            cache.put("kernels", its_key, _Kept(kernel.entry_name, bool(kernel.lineinfo), elapsed, code))
        return kernel

    dispatcher.CUDADispatcher.compile = compiled


def _rebuilt(kept: _Kept, dispatcher: Any, arguments: tuple[Any, ...], cc: tuple[int, ...]) -> Any:
    """A kept kernel, as compiling it would have returned it."""
    from cuda.core import ObjectCode  # type: ignore[import-untyped]
    from numba.cuda import codegen, types
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.dispatcher import _Kernel

    library = codegen.CUDACodeLibrary(cuda_target.target_context.codegen(), kept.name, kept.name)
    library._cubin_cache[_architecture(cc)] = ObjectCode.from_cubin(kept.code)
    library._finalized = True
    kernel = _Kernel._rebuild(
        cooperative=False, name=kept.name, signature=types.void(*arguments), codelibrary=library, debug=False,
        lineinfo=kept.lineinfo, call_helper=None, extensions=[],
    )  # fmt: skip
    kernel.launch_bounds = dispatcher.targetoptions.get("launch_bounds")  # names the blocks of a cluster
    return kernel


def compile_for(dispatcher: Any, argument_types: tuple[Any, ...], cc: tuple[int, int]) -> None:
    """Compile a kernel that has a key for a GPU, and keep it, after :func:`keep_kernels`; needs no GPU."""
    from numba.cuda.dispatcher import _Kernel

    if key(dispatcher, argument_types, cc) is not None:
        with _compiling_for(cc), replaced(_Kernel, bind=lambda kernel: kernel._codelibrary.get_cubin()):
            dispatcher.compile(argument_types)

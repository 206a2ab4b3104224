"""Compiles a step's kernels without a GPU: PTX for any architecture, and machine code where NVIDIA's tools are."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np

from common.catalog import limits
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


@dataclass(frozen=True)
class MachineCode:
    """What the assembler made of one kernel for one architecture. Byte counts are per thread but for shared."""

    kernel: str
    architecture: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    listing: summaries.Listing


def launches(module: ModuleType, problem: Problem) -> list[Launch]:
    """The kernels that ``prepare`` and ``launch`` would start for this problem, in order."""
    with _recording() as seen:
        BoundStep(module, problem).run(*host_arrays(problem))
    return seen


def tried(module: ModuleType, problem: Problem) -> list[Launch]:
    """The kernels of all ``candidates(problem)`` of a step that picks one by measuring; none for other steps.
    ``bind(candidate, weights, problem)`` gives a function of input and output."""
    with _recording() as seen:
        if hasattr(module, "candidates") and hasattr(module, "bind"):
            x, weight, y = host_arrays(problem)
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
            with _without_device(cc, lines), _source_lines() if lines else nullcontext():
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


def machine_code(launch: Launch, architecture: str, text: str, disassembled: bool = True) -> MachineCode:
    """Assemble one launch's kernel from its PTX; read its instructions, which takes a second, if ``disassembled``.
    Raises ToolMissingError without ptxas and nvdisasm, RegistersError, RuntimeError with what the assembler says."""
    name, most = launch.name, launch.kernel.targetoptions.get("max_registers")
    options = [f"-arch=sm_{architecture.replace('.', '')}", *([f"--maxrregcount={most}"] if most else [])]
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text, encoding="utf-8")
        report = _run(name, "ptxas", "-v", *options, str(source), "-o", str(cubin))
        listing = _run(name, "nvdisasm", "-c", "-g", str(cubin)) if disassembled else ""

    def figure(pattern: str) -> int:
        found = re.search(pattern, report)
        return int(found[1]) if found else 0

    return MachineCode(
        name, architecture, figure(r"Used (\d+) registers"), figure(r"(\d+) bytes stack frame"),
        figure(r"(\d+) bytes spill stores") + figure(r"(\d+) bytes spill loads"), figure(r"(\d+) bytes smem"),
        summaries.parse(listing),
    )  # fmt: skip


@contextmanager
def _without_device(cc: tuple[int, ...], lines: bool) -> Iterator[None]:
    """Device functions compile for ``cc`` and not for this machine's GPU, and are forgotten afterwards."""
    from numba.cuda import dispatcher

    compile_device = dispatcher.CUDADispatcher.compile_device
    used: list[Any] = []

    def compile_for_target(self: Any, *args: Any) -> Any:
        used.append(self)
        with replaced(self, targetoptions={**self.targetoptions, "lineinfo": lines}):
            return compile_device(self, *args)

    compiling = replaced(dispatcher.CUDADispatcher, compile_device=compile_for_target)
    with compiling, replaced(dispatcher, get_current_device=lambda: SimpleNamespace(compute_capability=cc)):
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
        def mark_variable(self, *_: Any, **__: Any) -> None:
            pass

        update_variable = mark_variable

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


@contextmanager
def _recording() -> Iterator[list[Launch]]:
    """Launches are recorded, in the list that it gives, and not made; device arrays are host arrays."""
    import numba
    from numba import cuda, types
    from numba.cuda import dispatcher

    seen: list[Launch] = []

    def type_of(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return types.Array(numba.from_dtype(value.dtype), value.ndim, "C")
        return numba.typeof(value)  # of a tensor map, too: its bytes

    def record(self: Any, *args: Any) -> None:
        kernel, signature = self.dispatcher, types.void(*map(type_of, args))
        grid, block = tuple(map(int, self.griddim)), tuple(map(int, self.blockdim))
        cluster = limits.cluster_of(capture.bounds(kernel))
        seen.append(Launch(kernel.py_func.__name__, kernel, grid, block, signature, self.sharedmem, cluster))

    with (
        replaced(dispatcher._LaunchConfiguration, __init__=capture.configure),
        capture.launches(record),
        replaced(cuda, **capture.arrays(allocate), **limits.STREAMS, synchronize=lambda: None),
    ):
        yield seen

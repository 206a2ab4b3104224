"""Compiles a step's kernels without a GPU: PTX for any architecture, and machine code where NVIDIA's tools are.

The kernels and their argument types are found by running ``launch`` on host arrays with the launch itself replaced.
Needs real Numba CUDA, not the simulator.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from common import catalog
from common.problems import Problem

ARCHITECTURES = ("7.5", "8.0", "8.6", "9.0", "10.0")
# A float64 accumulator shows as DADD: the product is still float32.
_MULTIPLY_ADD = ("FFMA", "DFMA", "DADD")
_BACK_EDGE = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)([.A-Z0-9_]*)")


class ToolMissingError(RuntimeError):
    """NVIDIA's assembler or disassembler is not installed."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: the dispatcher, its grid and block, and its argument types."""

    name: str
    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    signature: Any


@dataclass(frozen=True)
class MachineCode:
    """What the assembler made of one kernel for one architecture. Byte counts are per thread but for shared."""

    kernel: str
    architecture: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    instructions: dict[str, int]
    loop: dict[str, int]

    def _in_loop(self, *names: str) -> int:
        return sum(self.loop.get(name, 0) for name in names)

    def as_dict(self) -> dict[str, Any]:
        """The figures, and of the innermost multiply loop its instructions in all and for each multiply-add."""
        total, fma = sum(self.loop.values()), self._in_loop(*_MULTIPLY_ADD)
        return {
            "kernel": self.kernel,
            "architecture": self.architecture,
            "registers": self.registers,
            "stack_bytes": self.stack_bytes,
            "spill_bytes": self.spill_bytes,
            "shared_bytes": self.shared_bytes,
            "instructions": self.instructions,
            "loop": self.loop,
            "loop_total": total,
            "loop_fma": fma,
            "loop_loads": self._in_loop("LDG", "LDS", "LDL"),
            "loop_constants": self._in_loop("LDC", "ULDC"),
            "loop_per_fma": round(total / fma, 2) if fma else 0.0,
        }


class _HostArray(np.ndarray[Any, Any]):
    """Stands in for a device array while ``launch`` runs without a device."""

    def copy_to_host(self) -> np.ndarray[Any, Any]:
        return np.asarray(self)

    def copy_to_device(self, *_: object) -> None:
        pass


def launches(module: ModuleType, problem: Problem) -> list[Launch]:
    """The kernels that ``prepare`` and ``launch`` would start for this problem, in order."""
    seen: list[Launch] = []
    with _recording(seen):
        x, y = (np.empty(shape, np.float32).view(_HostArray) for shape in (problem.input_shape, problem.output_shape))
        weight = np.ones(problem.weight_shape, np.float32).view(_HostArray)
        workspace = module.workspace(problem) if hasattr(module, "workspace") else None
        prepared = module.prepare(weight, problem) if hasattr(module, "prepare") else weight
        module.launch(*catalog.launch_arguments(problem, x, prepared, y, workspace))
    return seen


def ptx(launch: Launch, architecture: str) -> str:
    """PTX of one launch's kernel for a compute capability such as ``"9.0"``."""
    from numba import cuda

    major, minor = (int(part) for part in architecture.split("."))
    options = {
        key: launch.kernel.targetoptions[key]
        for key in ("fastmath", "launch_bounds", "lineinfo")
        if launch.kernel.targetoptions.get(key)
    }
    text, _ = cuda.compile(
        launch.kernel.py_func,
        launch.signature,
        cc=(major, minor),
        output="ptx",
        device=False,
        abi="numba",
        **options,
    )
    return str(text)


def warm() -> None:
    """Compile a little kernel with what lessons use: the first compilations of a process take seconds longer."""
    from numba import cuda, float32, types, uint32

    size, shape = 4, (4, 4)

    @cuda.jit(device=True, inline="always")
    def guarded(array: Any, row: Any, column: Any) -> Any:
        rows, columns = array.shape
        return array[row, column] if row < rows and column < columns else float32(0.0)

    def kernel(a: Any, b: Any, wide: Any) -> None:
        tile = cuda.shared.array(shape, float32)
        flat = cuda.shared.array(size, float32, alignment=16)
        acc = cuda.local.array(size, float32)
        tx, ty = uint32(cuda.threadIdx.x), cuda.threadIdx.y
        x, y = cuda.grid(2)
        for k0 in range(0, a.shape[1], 2):
            tile[ty, tx] = guarded(a, y, k0 + tx)
            flat[tx] = a[y // 2, x % 2] if wide else tile[0, 0]
            cuda.syncthreads()
            for i in range(size):
                acc[i] += tile[i, 0] * flat[uint32(i)]
        if y < b.shape[0] and min(x, 1) < b.shape[1]:
            b[y, x] = acc[0]

    matrix = types.Array(types.float32, 2, "C")
    cuda.compile(
        kernel, types.void(matrix, matrix, types.boolean), cc=(9, 0), output="ptx", device=False, abi="numba"
    )


def float64_arithmetic(text: str) -> list[str]:
    """PTX lines that compute in float64: what a literal such as ``0.0`` slips in."""
    pattern = re.compile(r"^\s*(?:@\S+\s+)?(?:add|sub|mul|fma|div|mad|neg|setp|cvt)\S*\.f64\b.*$", re.MULTILINE)
    return [match.strip() for match in pattern.findall(text)]


def machine_code(launch: Launch, architecture: str) -> MachineCode:
    """Assemble one launch's kernel and count its instructions.

    Raises ToolMissingError without NVIDIA's ptxas and nvdisasm.
    """
    return assemble(
        ptx(launch, architecture), launch.name, architecture, launch.kernel.targetoptions.get("max_registers")
    )


def assemble(text: str, name: str, architecture: str, max_registers: int | None = None) -> MachineCode:
    """Assemble PTX that holds one kernel and count its instructions; raises as :func:`machine_code`."""
    assembler, disassembler = _tool("ptxas"), _tool("nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text)
        arch = "sm_" + architecture.replace(".", "")
        extra = [f"--maxrregcount={max_registers}"] if max_registers else []
        report = _run([assembler, "-v", f"-arch={arch}", *extra, str(source), "-o", str(cubin)])
        listing = _run([disassembler, "-c", str(cubin)])

    def figure(pattern: str) -> int:
        found = re.search(pattern, report)
        return int(found[1]) if found else 0

    body, loop = count_instructions(listing)
    return MachineCode(
        kernel=name,
        architecture=architecture,
        registers=figure(r"Used (\d+) registers"),
        stack_bytes=figure(r"(\d+) bytes stack frame"),
        spill_bytes=figure(r"(\d+) bytes spill stores") + figure(r"(\d+) bytes spill loads"),
        shared_bytes=figure(r"(\d+) bytes smem"),
        instructions=body,
        loop=loop,
    )


def count_instructions(listing: str) -> tuple[dict[str, int], dict[str, int]]:
    """Instructions by name in a disassembly: in the whole kernel, and in its multiply loop.

    The multiply loop is the backward branch's span that holds the most multiply-adds without holding another loop
    that has any; padding after the last EXIT is not counted.
    """
    names: list[str] = []
    labels: dict[str, int] = {}
    jumps: list[tuple[int, int]] = []
    for line in listing.splitlines():
        label = re.match(r"^(\.L_x_\d+):", line)
        if label:
            labels[label[1]] = len(names)
            continue
        found = _INSTRUCTION.match(line)
        if found is None or found[2] == "NOP":
            continue
        target = _BACK_EDGE.search(line)
        if target and labels.get(target[1]) == len(names):
            continue  # the jump to itself that fills the end
        edge = _BACK_EDGE.search(line)
        if edge and labels.get(edge[1], len(names)) < len(names):
            jumps.append((labels[edge[1]], len(names) + 1))
        names.append(found[2])
    spans = [(start, stop) for start, stop in jumps if _multiply_adds(names[start:stop])]
    innermost = [(a, b) for a, b in spans if not any((a, b) != (c, d) and a <= c and d <= b for c, d in spans)]
    best = max(innermost, key=lambda span: _multiply_adds(names[span[0] : span[1]]), default=(0, 0))
    return dict(Counter(names).most_common()), dict(Counter(names[best[0] : best[1]]).most_common())


def _multiply_adds(names: list[str]) -> int:
    return sum(name in _MULTIPLY_ADD for name in names)


def _tool(name: str) -> str:
    # pip puts NVIDIA's tools under site-packages/nvidia
    packages = Path(sysconfig.get_path("purelib"), "nvidia")
    for pattern in (f"cu*/bin/{name}*", f"cuda_*/bin/{name}*"):
        found = sorted(packages.glob(pattern))
        if found:
            return str(found[-1])
    path = shutil.which(name)
    if path is None:
        raise ToolMissingError(
            f"{name} was not found: pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm, or put the toolkit on PATH"
        )
    return path


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[:500]}")
    return done.stdout + done.stderr


@contextmanager
def _recording(seen: list[Launch]) -> Iterator[None]:
    """Record launches in place of making them; device arrays become host arrays."""
    import numba
    from numba import cuda, types
    from numba.cuda import dispatcher

    def type_of(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return types.Array(numba.from_dtype(value.dtype), value.ndim, "C")
        return numba.typeof(value)

    def record(self: Any, *args: Any) -> None:
        kernel = self.dispatcher
        signature = types.void(*(type_of(arg) for arg in args))
        seen.append(Launch(kernel.py_func.__name__, kernel, tuple(self.griddim), tuple(self.blockdim), signature))

    def device_array(shape: Any, dtype: Any = np.float64, *_: Any, **__: Any) -> Any:
        return np.empty(shape, dtype).view(_HostArray)

    def device_array_like(array: Any, *_: Any, **__: Any) -> Any:
        return device_array(array.shape, array.dtype)

    def to_device(array: Any, *_: Any, **__: Any) -> Any:
        return np.asarray(array).view(_HostArray)

    with (
        mock.patch.object(dispatcher._LaunchConfiguration, "__init__", _configure),
        mock.patch.object(dispatcher._LaunchConfiguration, "__call__", record),
        mock.patch.object(cuda, "device_array", device_array),
        mock.patch.object(cuda, "device_array_like", device_array_like),
        mock.patch.object(cuda, "to_device", to_device),
    ):
        yield


def _configure(self: Any, kernel: Any, griddim: Any, blockdim: Any, *_: Any) -> None:
    """A launch configuration that asks the driver nothing."""
    self.dispatcher, self.griddim, self.blockdim = kernel, griddim, blockdim

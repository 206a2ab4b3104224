"""Kernels as numba-cuda-mlir compiles them, the successor of numba-cuda: looked at without a GPU, or run on one.

While a step is imported, the package stands in the place of ``numba``. Tried with 0.6.0.
"""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from common.catalog import catalog, device, problems, store
from common.catalog.catalog import Step
from common.machine_code import capture, codegen
from common.machine_code.capture import replaced
from common.machine_code.codegen import Launch
from common.machine_code.summaries import Kernel, Listing

PACKAGE = "numba-cuda-mlir"
ARCHITECTURE, _CC = "9.0", (9, 0)
FILE = Path("compilers", "numba-cuda-mlir.json")
_REPLACED = "numba", "llvmlite"
_HOST = ("current_context", "device_array", "device_array_like", "get_current_device", "synchronize", "to_device")


class CompilerError(catalog.CatalogError):
    """The package is not installed, or refuses a step: what it says."""


class Compiled(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A step by this compiler, for a preset: its ``kernels``, or the ``reason`` why there is none. ``seconds`` to PTX
    of all kernels: by numba-cuda, then by this compiler, in one process that has compiled others."""

    preset: str
    kernels: list[Kernel] = []
    seconds: list[float] = []
    reason: str = ""


class Record(msgspec.Struct, kw_only=True):
    """``results/compilers/numba-cuda-mlir.json``: each step by name; ``compiler`` is the package and its version."""

    compiler: str
    steps: dict[str, Compiled]


def load(folder: Path) -> Record | None:
    """The record in a folder, if there is one. Raises store.SchemaError."""
    path = folder / FILE
    return store.convert(store.read_json(path), Record) if path.exists() else None


def steps() -> list[Step]:
    """Those that the record is of: all but what requires 9.0a, whose instructions are not ported."""
    return [step for step in catalog.steps() if not (step.requires or "").endswith("a")]


def save(steps: Iterable[Step], folder: Path) -> Record:
    """Compile each step for its ladder's first preset, and write the record; raises as :func:`compiled`."""
    found, chosen = {}, list(steps)
    for step in [*chosen[:1], *chosen]:  # the first a second time, when the compilers have loaded what they need
        one = found[step.name] = Compiled(preset=problems.DEFAULT_PRESET[step.ladder])
        try:
            assembled = _assembled(step, one.preset, None)
            one.seconds = [_seconds_by_numba(step, one.preset), sum(seconds for *_, seconds in assembled)]
            one.kernels = list({code.kernel: code.launched(launch) for launch, (code, _), _ in assembled}.values())
        except CompilerError as error:
            one.reason = str(error)
    made = Record(compiler=f"{PACKAGE} {version()}", steps=found)
    store.write_json(folder / FILE, msgspec.to_builtins(made))
    return made


def version() -> str:
    """The installed version; raises CompilerError."""
    if find_spec("numba_cuda_mlir") is None:
        raise CompilerError(device.NO_MLIR)
    return metadata.version(PACKAGE)


def compiled(step: Step, preset: str, file: Path | None = None) -> list[Kernel]:
    """Each kernel that the step launches, inspected. Raises CompilerError, codegen.ToolMissingError."""
    return [code.inspected(launch, listing) for launch, (code, listing), _ in _assembled(step, preset, file)]


def _seconds_by_numba(step: Step, preset: str) -> float:
    launches = codegen.distinct(codegen.launches(catalog.load(step.path, step.ladder), problems.preset(preset)))
    began = time.perf_counter()
    for launch in launches:
        codegen.ptx(launch, [ARCHITECTURE], lines=True)
    return time.perf_counter() - began


def _assembled(step: Step, preset: str, file: Path | None) -> list[tuple[Launch, tuple[Kernel, Listing], float]]:
    """The kernels of a step, and the seconds that each takes to PTX."""
    version()
    from numba_cuda_mlir import cuda, tools
    from numba_cuda_mlir.descriptor import MLIRDispatcher
    from numba_cuda_mlir.numba_cuda.typing.typeof import typeof

    found: dict[tuple[Any, ...], tuple[Launch, tuple[Kernel, Listing], float]] = {}

    def launch(kernel: Any, given: Any, arguments: tuple[Any, ...]) -> None:
        signature = tuple(typeof(np.asarray(one) if isinstance(one, np.ndarray) else one) for one in arguments)
        if (kernel, signature) in found:
            return
        function, told = kernel.py_func, kernel.targetoptions
        options = {name: told[name] for name in ("fastmath", "launch_bounds") if told[name]}
        began = time.perf_counter()
        text, _ = cuda.compile(
            function, signature, cc=_CC, output="ptx", device=False, abi="numba", lineinfo=True, **options
        )
        seconds = time.perf_counter() - began
        grid, block = ((one,) if isinstance(one, int) else tuple(one) for one in given[:2])
        made = Launch(function.__name__, kernel, grid, block, None, given[3] if len(given) > 3 else 0)
        found[kernel, signature] = made, codegen.machine_code(made, ARCHITECTURE, text), seconds

    problem, card = problems.preset(preset), capture.Device()
    with (
        replaced(tools, _cached_cc=_CC),  # else it asks a driver, whatever it compiles for
        replaced(MLIRDispatcher, __getitem__=lambda self, given: lambda *arguments: launch(self, given, arguments)),
        _in_place_of_numba(cuda),
        replaced(cuda, **capture.arrays(codegen.allocate), get_current_device=lambda: card),
    ):
        try:
            module = catalog.load(file or step.path, step.ladder)
            capture.BoundStep(module, problem).run(*codegen.host_arrays(problem))
        except codegen.ToolMissingError:
            raise
        except Exception as error:
            said = [line for line in re.sub(r"\x1b\[\d+m", "", str(error)).splitlines() if line.strip()]
            raise CompilerError(f"{type(error).__name__}: {' '.join(said[:2])[:200]}") from None
    return list(found.values())


@contextmanager
def on_gpu() -> Iterator[None]:
    """While open, steps that are imported have this compiler's kernels, which take numba-cuda's device arrays: both
    use the GPU's one context. What steps call on the host stays numba-cuda's. Raises CompilerError."""
    version()
    from numba_cuda_mlir import cuda
    from numba_cuda_mlir.numba_cuda.typing import typeof

    host = import_module("numba.cuda")

    def type_of(array: Any, context: Any) -> Any:
        return typeof._typeof_cuda_array_interface(array.__cuda_array_interface__, context, array.dtype)

    typeof.typeof_impl.register(host.devicearray.DeviceNDArrayBase, type_of)
    with _in_place_of_numba(cuda):
        vars(cuda).update({name: getattr(host, name) for name in _HOST})
        yield


@contextmanager
def _in_place_of_numba(cuda: Any) -> Iterator[None]:
    """While open, what imports Numba finds this compiler; steps and helpers are imported anew."""
    import numba_cuda_mlir as successor
    from numba_cuda_mlir import types

    from common.machine_code import llvm_in_mlir

    taken = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in _REPLACED}
    try:
        named = {name: value for name, value in vars(types).items() if not name.startswith("_")}
        vars(successor).update(named, cuda=cuda, types=types)
        helpers = llvm_in_mlir.modules()
        vars(cuda).update(cgutils=helpers["numba.cuda.cgutils"])
        sys.modules.update({"numba": successor, "numba.cuda": cuda, "numba.types": types, **helpers})
        with catalog.anew():  # helpers that numba-cuda has compiled would not do
            yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in _REPLACED]:
            del sys.modules[name]
        sys.modules.update(taken)

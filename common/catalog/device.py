"""The GPU: is there one, which, and can it be used; and how many processes and bytes this machine has room for."""

import contextlib
import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.catalog import limits, sources
from common.catalog.store import Count, Extent, Name

CARD_SWITCH, COMPILER_SWITCH = "WORKBOOK_CARD", "COMPILER"  # in the environment: see played() and compiler()
PLAYED = r"-as-\d+-\d+$|-with-mlir$"  # how the slug of a played card ends, or of one with the other compiler
NUMBA_CUDA, MLIR = COMPILERS = "numba-cuda", "mlir"
NO_MLIR = "numba-cuda-mlir is not installed: pip install 'numba-cuda-mlir[cu13]' (Python 3.11 to 3.14)"
USUAL_CARD = "9.0"  # whose limits a step is told where there is no GPU
MEMORY_BYTES = 8 << 30  # the most that a process without a GPU may take
MEMORY_SHARE = 0.8  # of the machine's memory: the most that any process may take
WORKER_BYTES = 700 << 20  # what a process usually takes
# Tiny grids are meant, and what Numba says is read: where colorama is installed it would be in colours.
PLAIN = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING": "1"}
# Many processes run at once: each multiplies with one thread, unless the user says otherwise.
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "VECLIB")}
_SHARE, _MEMORY_SHARE = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/memory.max")
_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_CAPABILITY, _COMPUTE_MODE, _MPS_ENABLED = (75, 76), 20, 133  # attributes, of cuda.h


class NoGpuError(RuntimeError):
    """A GPU is needed and none can be used."""


def loaded() -> Any:
    """The CUDA driver's library; None without one."""
    with contextlib.suppress(OSError):
        return ctypes.CDLL(_DRIVER)
    return None


def _asked(function: Any, *arguments: Any) -> int:
    """The number that a function of the driver's gives."""
    value = ctypes.c_int(0)
    function(ctypes.byref(value), *arguments)
    return value.value


def _attribute(attribute: int) -> int:
    driver = loaded()
    return _asked(driver.cuDeviceGetAttribute, attribute, _asked(driver.cuDeviceGet, 0))


def gpu_count() -> int:
    """GPUs the CUDA driver reports; 0 when there is no driver, or it does not start."""
    driver = loaded()
    return 0 if driver is None or driver.cuInit(0) != 0 else _asked(driver.cuDeviceGetCount)


def silent() -> str:
    """One line on why the installed driver offers no GPU, and what to do; empty without a driver, or if it does."""
    driver, text = loaded(), ctypes.c_char_p(None)
    if driver is None or (code := driver.cuInit(0)) == 0:
        return ""
    driver.cuGetErrorString(code, ctypes.byref(text))
    why = f"error {code}, {(text.value or b'').decode(errors='replace')}"
    asks = "does nvidia-smi list one, and is CUDA_VISIBLE_DEVICES unset?"
    return f"the CUDA driver offers no GPU ({why}): {asks} After an update of the driver, restart the machine"


def ready() -> bool:
    """Is there a GPU that kernels can run on? Raises NoGpuError with what to do if there is one that cannot be used,
    ValueError without the compiler asked for."""
    if gpu_count() == 0:
        return False
    compiling = sources.versions(("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")).values()
    needed = min((int(one.partition(".")[0]) for one in compiling), default=0)
    version = _asked(loaded().cuDriverGetVersion)
    major, minor = map(_attribute, _CAPABILITY)
    why = ""
    if version // 1000 < needed:
        other = "`make all CUDA=12` installs those for it, or " if version >= 12000 else ""
        has = f"the driver is for CUDA {version // 1000}.{version % 1000 // 10}, the packages for CUDA {needed}"
        why = f"{has}: {other}update the driver"
    elif (major, minor) < (7, 5):
        why = f"the GPU's compute capability is {major}.{minor}, and 7.5 is the least that works"
    elif _attribute(_COMPUTE_MODE) and not _attribute(_MPS_ENABLED):  # MPS holds an exclusive card's context, shared
        takes = "the GPU's compute mode takes one process at a time, and several work here"
        why = f"{takes}: `nvidia-smi -c DEFAULT` (ask the administrator) ends that"
    if why:
        raise NoGpuError(f"{why}; check, all and lessons go without it with --sim")
    if compiler() == MLIR and find_spec("numba_cuda_mlir") is None:
        raise ValueError(f"{COMPILER_SWITCH}={MLIR}: {NO_MLIR}")
    return True


def processors() -> int:
    """How many processors this process may keep busy: those it may run on, or its container's share if less."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = _SHARE.read_text(encoding="utf-8").split()
        count = min(count, round(int(quota) / int(period)))
    return max(1, count)


def played() -> str | None:
    """The compute capability of the card that is to be played (CARD_SWITCH in the environment); raises ValueError."""
    return _set(CARD_SWITCH, limits.LIMITS)


def compiler() -> str:
    """Which of COMPILERS compiles what a GPU runs (COMPILER_SWITCH in the environment); raises ValueError."""
    return _set(COMPILER_SWITCH, COMPILERS) or NUMBA_CUDA


def _set(switch: str, allowed: Collection[str]) -> str | None:
    """What a variable of the environment is set to; None if it is not."""
    wanted = os.environ.get(switch)
    if wanted and wanted not in allowed:
        raise ValueError(f"{switch}={wanted}: must be one of {', '.join(allowed)}, or not set")
    return wanted or None


def bounds() -> str | None:
    """The compute capability whose limits hold: the played card's, if this one's are larger, or are not known."""
    wanted, capability = played(), _capability()
    if wanted is None or capability not in limits.LIMITS:
        return wanted or capability
    return min(wanted, capability, key=lambda name: limits.LIMITS[name].shared_bytes)


def memory_bytes() -> int:
    """This machine's memory, or its container's share; what :data:`MEMORY_BYTES` says if neither is known."""
    whole = MEMORY_BYTES
    with contextlib.suppress(AttributeError, OSError, ValueError):
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        whole = min(whole, int(_MEMORY_SHARE.read_text(encoding="utf-8")))
    return whole


def memory_for_a_child(gpu: bool) -> int:
    """Bytes of private memory that one process may take; operands of a GPU stand in the host's, too."""
    most = int(memory_bytes() * MEMORY_SHARE)
    return most if gpu else min(MEMORY_BYTES, most)


def workers() -> int:
    """How many processes may be at work at once: as many as there are processors, and memory for them."""
    return max(1, min(processors(), memory_bytes() // WORKER_BYTES))


def compute_capability() -> str | None:
    """The first GPU's compute capability such as ``"9.0"``, or the played one if that is less; None without a GPU."""
    found = _capability()
    known = [one for one in (found, played()) if one]
    return min(known, key=lambda name: [int(part) for part in name.split(".")]) if found else None


def _capability() -> str | None:
    return ".".join(str(_attribute(one)) for one in _CAPABILITY) if gpu_count() else None


def require_gpu(what: str) -> None:
    """Raise NoGpuError unless there is a GPU that kernels can run on (:func:`ready`)."""
    if not ready():
        without = "without one kernels are traced (python -m common check --sim), which says nothing of speed"
        raise NoGpuError(f"{what} needs an NVIDIA GPU and its driver, and none was found: {silent() or without}")


def environment(without: bool) -> dict[str, str]:
    """Of a child process that sees this machine's GPU, or none, where kernels are traced with a small GPU's tiles."""
    env = {**_ONE_THREAD, **os.environ, **PLAIN}
    if without:
        env[CARD_SWITCH] = small_card()
        env |= {"CUDA_VISIBLE_DEVICES": "-1"} if gpu_count() else {}
    return env


def small_card() -> str:
    """The compute capability whose limits hold here, if it has less shared memory than USUAL_CARD; else empty."""
    bound = bounds() or ""
    found, usual = limits.LIMITS.get(bound), limits.LIMITS[USUAL_CARD]
    return bound if found and found.shared_bytes < usual.shared_bytes else ""


@dataclass(frozen=True)
class Gpu:
    """What identifies the card a figure was measured on."""

    name: Name
    compute_capability: Name
    multiprocessors: Extent
    memory_bytes: Extent
    l2_bytes: Count
    driver: str
    cuda: str

    @property
    def slug(self) -> str:
        """The card's name as a file name, e.g. ``nvidia-h200``."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") or "gpu"


def current_gpu() -> Gpu:
    """The GPU of Numba's current context."""
    from numba import cuda

    query, driver = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    name += f" as {played()}" if played() else ""  # its measurements are not the card's
    name += f" with {compiler()}" if compiler() != NUMBA_CUDA else ""  # nor are they numba-cuda's
    version = _asked(loaded().cuDriverGetVersion)
    return Gpu(
        name=name, compute_capability="{}.{}".format(*device.compute_capability),
        multiprocessors=int(device.MULTIPROCESSOR_COUNT), l2_bytes=l2_bytes(),
        memory_bytes=int(cuda.current_context().get_memory_info().total),
        driver=driver.partition("\n")[0].strip() or "unknown", cuda=f"{version // 1000}.{version % 1000 // 10}",
    )  # fmt: skip


def l2_bytes() -> int:
    """The L2 cache of Numba's current GPU."""
    from numba import cuda

    return int(cuda.get_current_device().L2_CACHE_SIZE)


def out_of_memory(error: BaseException) -> bool:
    """Does the error, Numba's or a library's, say that the GPU's memory does not suffice?"""
    return re.search(r"out.of.memory|alloc_failed", str(error), re.IGNORECASE) is not None


def free_bytes() -> int:
    """Unused memory of the current GPU in bytes."""
    from numba import cuda

    return int(cuda.current_context().get_memory_info().free)

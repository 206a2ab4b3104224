"""The GPU: is there one, which, and can it be used; and how many processes and bytes this machine has room for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.catalog import limits, sources
from common.catalog.schema import Count, Extent, Name

VISIBLE = "CUDA_VISIBLE_DEVICES"
CARD_SWITCH = "WORKBOOK_CARD"  # a compute capability: play a card that has its limits
PLAYED = r"-as-\d+-\d+$|-with-mlir$"  # how the slug of such a card ends, or of one with the other compiler
COMPILER_SWITCH = "COMPILER"  # of the kernels that a GPU runs: one of COMPILERS
NUMBA_CUDA, MLIR = COMPILERS = "numba-cuda", "mlir"
NO_MLIR = "numba-cuda-mlir is not installed: pip install 'numba-cuda-mlir[cu13]' (Python 3.11 to 3.14)"
USUAL_CARD = "9.0"  # whose limits a step is told where there is no GPU
_SHARE = Path("/sys/fs/cgroup/cpu.max")
_MEMORY_SHARE = Path("/sys/fs/cgroup/memory.max")
MEMORY_BYTES = 8 << 30  # the most that a process without a GPU may take
MEMORY_SHARE = 0.8  # of the machine's memory: the most that any process may take
WORKER_BYTES = 700 << 20  # what a process usually takes
# Tiny grids are meant, and what Numba says is read: where colorama is installed it would be in colours.
PLAIN = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING": "1"}
# Many processes run at once: each multiplies with one thread, unless the user says otherwise.
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "VECLIB")}
_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


LEAST_CAPABILITY = 7, 5
LEAST_FREE_BYTES = 1_000_000_000
# names of cuda.h
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _COMPUTE_MODE, _MPS_ENABLED = 75, 76, 20, 133
_PROHIBITED, _EXCLUSIVE_PROCESS = 2, 3
_OUT_OF_MEMORY = 2
_WITHOUT = "check, all and lessons go without it with --sim"


class NoGpuError(RuntimeError):
    """A GPU is needed and none can be used."""


def loaded() -> Any:
    """The CUDA driver's library; None without one."""
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError:
        return None


def gpu_count() -> int:
    """GPUs the CUDA driver reports; 0 when there is no driver, or it does not start."""
    driver, count = loaded(), ctypes.c_int(0)
    if driver is None or driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def silent() -> str:
    """One line on why the installed driver offers no GPU, and what to do; empty without a driver, or if it does."""
    driver = loaded()
    code = 0 if driver is None else driver.cuInit(0)
    if code == 0:
        return ""
    why = _said(driver, code)
    if code == 100:  # CUDA_ERROR_NO_DEVICE
        return f"the CUDA driver sees no GPU ({why}): does nvidia-smi list one, and is CUDA_VISIBLE_DEVICES unset?"
    return f"the CUDA driver does not start ({why}): restart the machine, or install the driver anew"


def ready() -> bool:
    """Is there a GPU that kernels can run on? Asked before anything is started on it.

    Raises NoGpuError, with what to do in one line, if there is one that cannot be used, and ValueError without the
    compiler that was asked for.
    """
    driver, found = loaded(), gpu_count() > 0
    if found and driver and (why := unusable(driver, toolkit())):
        raise NoGpuError(why)
    if found and compiler() == MLIR and find_spec("numba_cuda_mlir") is None:
        raise ValueError(f"{COMPILER_SWITCH}={MLIR}: {NO_MLIR}")
    return found


def toolkit() -> int | None:
    """The major version of the installed CUDA packages, the lower one if there are two; None without any."""
    found = sources.versions(("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"))
    return min((int(version.partition(".")[0]) for version in found.values()), default=None)


def unusable(driver: Any, cuda_major: int | None) -> str:
    """Why the first GPU of a driver that has started cannot be used, and what to do; empty if it can.

    ``cuda_major``: that of the packages that compile for it. A context is made and ended, to see whether one can be.
    """
    version, handle, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(100)
    driver.cuDriverGetVersion(ctypes.byref(version))
    if cuda_major and version.value // 1000 < cuda_major:
        has = f"the driver is for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        other = "`make all CUDA=12` installs those for it, or" if version.value >= 12000 else ""
        return " ".join(f"{has}, the packages for CUDA {cuda_major}: {other} update the driver; {_WITHOUT}".split())
    driver.cuDeviceGet(ctypes.byref(handle), 0)
    driver.cuDeviceGetName(name, len(name), handle)
    gpu = name.value.decode(errors="replace") or "the GPU"
    capability = tuple(_attribute(driver, handle, one) for one in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR))
    if capability < LEAST_CAPABILITY:
        has, least = (".".join(map(str, one)) for one in (capability, LEAST_CAPABILITY))
        return f"{gpu}: its compute capability is {has}, and {least} is the least that works: {_WITHOUT}"
    mode = _attribute(driver, handle, _COMPUTE_MODE)
    # a server of MPS holds the one context and shares it
    if mode == _PROHIBITED or (mode == _EXCLUSIVE_PROCESS and not _attribute(driver, handle, _MPS_ENABLED)):
        one = "takes one process at a time, and several work here"
        does, ends = "prohibits all contexts" if mode == _PROHIBITED else one, "`nvidia-smi -c DEFAULT`"
        return f"{gpu}: its compute mode {does}: {ends} (ask the administrator) ends that; {_WITHOUT}"
    context, free, total = ctypes.c_void_p(None), ctypes.c_size_t(0), ctypes.c_size_t(0)
    code = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
    if code == 0:
        driver.cuCtxPushCurrent_v2(context)
        code = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(handle)
    end_others = "end other programs that use it (nvidia-smi lists them)"
    if code not in (0, _OUT_OF_MEMORY):
        return f"{gpu}: no program can be started on it now ({_said(driver, code)}): {end_others}; {_WITHOUT}"
    if free.value < LEAST_FREE_BYTES:
        has = f"{free.value / 1e9:.1f} GB of its {total.value / 1e9:.1f} GB are free" if total.value else "it is full"
        return f"{gpu}: {has}, and {LEAST_FREE_BYTES / 1e9:.0f} GB is needed: {end_others}; {_WITHOUT}"
    return ""


def _attribute(driver: Any, handle: ctypes.c_int, attribute: int) -> int:
    value = ctypes.c_int(0)
    driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
    return value.value


def _said(driver: Any, code: int) -> str:
    """An error of the driver's in its own words."""
    text = ctypes.c_char_p(None)
    driver.cuGetErrorString(code, ctypes.byref(text))
    return f"error {code}, {text.value.decode(errors='replace')}" if text.value else f"error {code}"


def processors() -> int:
    """How many processors this process may keep busy: those it may run on, or its container's share if less."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = _SHARE.read_text(encoding="utf-8").split()
        count = min(count, round(int(quota) / int(period)))
    return max(1, count)


def played() -> str | None:
    """The compute capability of the card that is to be played (CARD_SWITCH in the environment); None without.

    Raises ValueError listing those that can be.
    """
    wanted = os.environ.get(CARD_SWITCH)
    if not wanted:
        return None
    if wanted not in limits.LIMITS:
        raise ValueError(f"{CARD_SWITCH}={wanted}: must be one of {', '.join(limits.LIMITS)}, or not set")
    return wanted


def compiler() -> str:
    """Which of COMPILERS compiles what a GPU runs (COMPILER_SWITCH in the environment); numba-cuda, if not set.

    Raises ValueError listing those that can be named.
    """
    wanted = os.environ.get(COMPILER_SWITCH) or NUMBA_CUDA
    if wanted not in COMPILERS:
        raise ValueError(f"{COMPILER_SWITCH}={wanted}: must be one of {', '.join(COMPILERS)}, or not set")
    return wanted


def bounds(capability: str | None = None) -> str | None:
    """The compute capability whose limits hold on this card: the played one's, if that has less shared memory.

    Without a card, or on an unknown one, the played one's. None if there is neither.
    """
    wanted = played()
    if wanted is None or capability not in limits.LIMITS:
        return wanted or capability
    return min(wanted, capability, key=lambda name: limits.LIMITS[name].shared_bytes)


def as_card(capability: str, **others: Any) -> Callable[[], Any]:
    """A replacement for ``numba.cuda.get_current_device`` by which steps find the limits of a compute capability.

    ``others`` are further attributes of the card; all else is asked of the GPU itself, if there is one.
    """
    from numba import cuda

    has, asked = limits.limits(capability), cuda.get_current_device
    played_limits = {
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": has.shared_bytes,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": has.reserved_bytes,
    }

    class Card:
        def __getattr__(self, name: str) -> Any:
            return getattr(asked(), name)

    card = Card()
    vars(card).update({**played_limits, **others})
    return lambda: card


def play() -> None:
    """From now on, steps in this process find the limits of the played card, if one is played."""
    from numba import cuda

    if played():
        cuda.get_current_device = as_card(str(bounds(_capability())))


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
    found, wanted = _capability(), played()
    if found is None or wanted is None:
        return found
    return min(found, wanted, key=lambda name: [int(part) for part in name.split(".")])


def _capability() -> str | None:
    """The first GPU's compute capability, from the driver."""
    if gpu_count() == 0:
        return None
    driver, handle = loaded(), ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(handle), 0)
    return ".".join(str(_attribute(driver, handle, one)) for one in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR))


def require_gpu(what: str) -> None:
    """Raise NoGpuError unless there is a GPU that kernels can run on (:func:`ready`)."""
    if not ready():
        without = "without one kernels are traced (python -m common check --sim), which says nothing of speed"
        raise NoGpuError(f"{what} needs an NVIDIA GPU and its driver, and none was found: {silent() or without}")


def environment(without: bool) -> dict[str, str]:
    """The environment of a child process that sees this machine's GPU, or, with ``without``, none.

    There, kernels are traced with this GPU's tiles, if it has less shared memory than USUAL_CARD.
    """
    env = {**_ONE_THREAD, **os.environ, **PLAIN}
    if without:
        env |= {CARD_SWITCH: small_card(), **({VISIBLE: "-1"} if gpu_count() else {})}
    return env


def small_card() -> str:
    """The compute capability whose limits hold here, if it has less shared memory than USUAL_CARD; else empty."""
    bound = bounds(_capability()) or ""
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

    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    if wanted := played():  # its measurements are not the card's
        name += f" as {wanted}"
    if compiler() != NUMBA_CUDA:  # nor are they numba-cuda's
        name += f" with {compiler()}"
    major, minor = device.compute_capability
    version = ctypes.c_int(0)
    loaded().cuDriverGetVersion(ctypes.byref(version))
    return Gpu(
        name=name,
        compute_capability=f"{major}.{minor}",
        multiprocessors=int(device.MULTIPROCESSOR_COUNT),
        memory_bytes=int(cuda.current_context().get_memory_info().total),
        l2_bytes=int(device.L2_CACHE_SIZE),
        driver=_driver_version(),
        cuda=f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


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


def _driver_version() -> str:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return "unknown"
    query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.split("\n")[0].strip() or "unknown"

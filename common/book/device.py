"""Is there a GPU, what is it, and may a process see it. Nothing here imports Numba at module level."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from common.book.schema import Count, Extent, Name

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SHARE = Path("/sys/fs/cgroup/cpu.max")
# Tiny grids are meant, and what Numba says is read: where colorama is installed it would be in colours.
PLAIN = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING": "1"}
_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


class NoGpuError(RuntimeError):
    """A GPU is needed and none can be used."""


def gpu_count() -> int:
    """GPUs the CUDA driver reports; 0 when there is no driver."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def processors() -> int:
    """How many processors this process may keep busy: those it may run on, or its container's share if less."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = _SHARE.read_text(encoding="utf-8").split()
        count = min(count, round(int(quota) / int(period)))
    return max(1, count)


def compute_capability() -> str | None:
    """The first GPU's compute capability such as ``"9.0"``, from the driver; None without one."""
    if gpu_count() == 0:
        return None
    driver = ctypes.CDLL(_DRIVER)
    handle, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(handle), 0)
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    for attribute, value in ((75, major), (76, minor)):
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
    return f"{major.value}.{minor.value}"


def require_gpu(what: str) -> None:
    """Raise NoGpuError unless a GPU is present."""
    if gpu_count() == 0:
        raise NoGpuError(
            f"{what} needs an NVIDIA GPU and its driver, and none was found: "
            "without one kernels are traced (python -m common check --sim), which says nothing about speed"
        )


def environment(without: bool) -> dict[str, str]:
    """The environment of a process on this machine's GPU, or ``without``: as if there were none."""
    hidden = {_VISIBLE: "-1"} if without and gpu_count() else {}
    return {**os.environ, **PLAIN, **hidden}


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
    major, minor = device.compute_capability
    version = ctypes.c_int(0)
    ctypes.CDLL(_DRIVER).cuDriverGetVersion(ctypes.byref(version))
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

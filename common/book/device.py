"""Is there a GPU, what is it, and where do kernels run: on it or in Numba's CUDA simulator.

Nothing here imports Numba at module level: the simulator must be chosen before that import.
"""

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
from pathlib import Path
from typing import Any

from common.book import occupancy
from common.book.schema import Count, Extent, Name

SIMULATOR_SWITCH = "NUMBA_ENABLE_CUDASIM"
CARD_SWITCH = "WORKBOOK_CARD"  # a compute capability: play a card that has its limits
PLAYED = r"-as-\d+-\d+$"  # how the slug of such a card ends
USUAL_CARD = "9.0"  # whose limits a step is told where there is no GPU
_SHARE = Path("/sys/fs/cgroup/cpu.max")
# Tiny grids are meant, and what Numba says is read: where colorama is installed it would be in colours.
PLAIN = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING": "1"}
_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


class NoGpuError(RuntimeError):
    """A GPU is needed and none can be used."""


def driver() -> ctypes.CDLL:
    """The CUDA driver; raises OSError where there is none."""
    return ctypes.CDLL(_DRIVER)


def gpu_count() -> int:
    """GPUs the CUDA driver reports; 0 when there is no driver."""
    try:
        library = driver()
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
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


def played() -> str | None:
    """The compute capability whose limits are played, from the environment; None if none is.

    Raises ValueError listing those that can be.
    """
    wanted = os.environ.get(CARD_SWITCH)
    if not wanted:
        return None
    if wanted not in occupancy.LIMITS:
        raise ValueError(f"{CARD_SWITCH}={wanted}: must be one of {', '.join(occupancy.LIMITS)}, or not set")
    return wanted


def bounds(capability: str | None = None) -> str | None:
    """The compute capability whose limits hold on a card of this one: those that are played, if they are less.

    Without a card, or on one that is not known, those that are played. None if nothing says any.
    """
    wanted = played()
    if wanted is None or capability not in occupancy.LIMITS:
        return wanted or capability
    return min(wanted, capability, key=lambda name: occupancy.LIMITS[name].shared_bytes)


def as_card(capability: str, **others: Any) -> Callable[[], Any]:
    """What stands in the place of ``numba.cuda.get_current_device`` where steps are to find these limits.

    Of what is not among ``others``, and is no limit, the GPU itself is asked, if there is one.
    """
    from numba import cuda

    has, asked = occupancy.limits(capability), cuda.get_current_device
    limits = {
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": has.shared_bytes,
        "RESERVED_SHARED_MEMORY_PER_BLOCK": has.reserved_bytes,
    }

    class Card:
        def __getattr__(self, name: str) -> Any:
            return getattr(asked(), name)

    card = Card()
    vars(card).update({**limits, **others})
    return lambda: card


def play() -> None:
    """Let the steps of this process find the limits that are played, if any are."""
    from numba import cuda

    if played():
        cuda.get_current_device = as_card(str(bounds(None if simulated() else _capability())))


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
    handle, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    driver().cuDeviceGet(ctypes.byref(handle), 0)
    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    for attribute, value in ((75, major), (76, minor)):
        driver().cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
    return f"{major.value}.{minor.value}"


def require_gpu(what: str) -> None:
    """Raise NoGpuError unless a GPU is present."""
    if gpu_count() == 0:
        raise NoGpuError(
            f"{what} needs an NVIDIA GPU and its driver, and none was found: "
            "the simulator checks kernels (python -m common check --sim) but says nothing about speed"
        )


def simulated() -> bool:
    """Do this process's kernels run in the simulator?"""
    return os.environ.get(SIMULATOR_SWITCH) == "1"


def environment(simulator: bool) -> dict[str, str]:
    """The environment of a process whose kernels run in the simulator, or on (or for) a GPU.

    What runs in the simulator has the tiles that the GPU has, where that has less shared memory than is usual.
    """
    env = {**os.environ, **PLAIN}
    env.pop(SIMULATOR_SWITCH, None)
    if simulator:
        env[SIMULATOR_SWITCH] = "1"
        env[CARD_SWITCH] = small_card()
    return env


def small_card() -> str:
    """The compute capability whose limits hold here, if its shared memory is less than is usual; else empty."""
    found = occupancy.LIMITS.get(bounds(_capability()) or "")
    small = found is not None and found.shared_bytes < occupancy.LIMITS[USUAL_CARD].shared_bytes
    return str(bounds(_capability())) if small else ""


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
    major, minor = device.compute_capability
    version = ctypes.c_int(0)
    driver().cuDriverGetVersion(ctypes.byref(version))
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

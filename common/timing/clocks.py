"""The current GPU's clock under load, and what holds it down, by NVML, which comes with the driver."""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_SM = 1  # NVML_CLOCK_SM
_PCI_ID = 64  # characters
# nvmlClocksThrottleReason*, in nvml.h; what is no sign of trouble (idle, the application's own clocks) is left out
_REASONS = {
    0x04: "power", 0x08: "hardware slowdown", 0x10: "sync boost", 0x20: "heat", 0x40: "heat", 0x80: "power brake",
}  # fmt: skip
SLOW = 0.9  # of the median clock of a run's rows: below it, a row's time is not to be compared


class Clock(NamedTuple):
    """Megahertz of the multiprocessors, and why they are no more."""

    mhz: int
    reasons: tuple[str, ...]


class Nvml:
    """Reads the clock of Numba's current GPU; without NVML, or where it does not say, :meth:`clock` is None."""

    def __init__(self) -> None:
        self._device: Any = None
        try:
            self._library = ctypes.CDLL(_LIBRARY)
            found = ctypes.c_void_p()
            if self._library.nvmlInit_v2() == 0 and (
                self._library.nvmlDeviceGetHandleByPciBusId_v2(_pci_bus_id(), ctypes.byref(found)) == 0
            ):
                self._device = found
        except (OSError, AttributeError):  # an NVML that lacks a function counts as none
            pass

    def clock(self) -> Clock | None:
        """The clock of this moment: read it while kernels run."""
        if self._device is None:
            return None
        mhz, bits = ctypes.c_uint(), ctypes.c_ulonglong()
        if self._library.nvmlDeviceGetClockInfo(self._device, _SM, ctypes.byref(mhz)) != 0:
            return None
        if self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._device, ctypes.byref(bits)) != 0:
            bits.value = 0
        return Clock(mhz.value, tuple(dict.fromkeys(name for bit, name in _REASONS.items() if bits.value & bit)))


def _pci_bus_id() -> bytes:
    """That of Numba's current GPU: NVML counts others than CUDA_VISIBLE_DEVICES names."""
    from numba import cuda

    from common.catalog import device

    driver, handle, name = device.loaded(), ctypes.c_int(), ctypes.create_string_buffer(_PCI_ID)
    driver.cuDeviceGet(ctypes.byref(handle), int(cuda.get_current_device().id))
    driver.cuDeviceGetPCIBusId(name, _PCI_ID, handle)
    return name.value


def slow(clocks: Sequence[int | None]) -> list[bool]:
    """Which of a run's rows were timed at a clock far below the median of all."""
    known = [mhz for mhz in clocks if mhz]
    least = SLOW * statistics.median(known) if known else 0.0
    return [mhz is not None and 0 < mhz < least for mhz in clocks]

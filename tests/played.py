"""A student's card, played on a larger one: memory that another process holds, and few processors."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HOLD = """
import ctypes, sys

from common.catalog import device

driver, context = device.loaded(), ctypes.c_void_p()
free, total, at = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
for call, *given in (
    (driver.cuInit, 0),
    (driver.cuDevicePrimaryCtxRetain, ctypes.byref(context), 0),
    (driver.cuCtxSetCurrent, context),
    (driver.cuMemGetInfo_v2, ctypes.byref(free), ctypes.byref(total)),
):
    assert call(*given) == 0, call
spare = free.value - int(sys.argv[1])
assert spare >= 0, f"only {free.value} bytes are free"
assert driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(max(1, spare))) == 0
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def memory(free_bytes: int) -> Iterator[None]:
    """The first GPU with so many bytes free: another process holds the rest. Raises RuntimeError with fewer."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(free_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline().strip() != "held":
            raise RuntimeError(f"no card with {free_bytes:,} bytes free can be played here")
        yield
    finally:
        holder.communicate()  # its input ends, and so does it


@contextmanager
def processors(count: int) -> Iterator[None]:
    """This process, and those that it starts meanwhile, on so many processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":  # python tests/played.py GIBIBYTES COMMAND...
    with memory(int(sys.argv[1]) << 30):
        sys.exit(subprocess.call(sys.argv[2:]))

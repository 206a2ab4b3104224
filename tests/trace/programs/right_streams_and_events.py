"""right: streams, events, pinned and mapped memory, the device's properties"""

import numpy as np
from numba import cuda


@cuda.jit
def double(a):
    i = cuda.grid(1)
    if i < a.size:
        a[i] *= 2


assert cuda.is_available() and len(cuda.gpus) == 1
device = cuda.get_current_device()
print(device.name, device.compute_capability, device.MULTIPROCESSOR_COUNT, device.WARP_SIZE)
free, whole = cuda.current_context().get_memory_info()
assert 0 < free <= whole
stream = cuda.stream()
start, end = cuda.event(), cuda.event(timing=True)
pinned = cuda.pinned_array(64, dtype=np.float32)
pinned[:] = 1
with stream.auto_synchronize():
    d = cuda.to_device(pinned, stream=stream)
    start.record(stream)
    double[1, 64, stream](d)
    end.record(stream)
    d.copy_to_host(pinned, stream=stream)
end.synchronize()
print(f"{cuda.event_elapsed_time(start, end):.3f} ms, {64 / cuda.event_elapsed_time(start, end):.1f} GB/s")
assert (pinned == 2).all()
mapped = cuda.mapped_array(10, dtype=np.float32)
np.copyto(mapped, 3)
double[1, 32](mapped)
cuda.synchronize()
assert (mapped == 6).all()
managed = cuda.managed_array(10, dtype=np.int32)
managed.fill(4)
double.forall(10)(managed)
assert (managed == 8).all()

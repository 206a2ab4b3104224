"""right: device memory seen as another type, by the host and by a kernel; records in dynamic shared memory, twice"""

import numpy as np
from numba import cuda
from numba.cuda import libdevice

pair = np.dtype([("x", np.float32), ("n", np.int32)], align=True)


@cuda.jit
def set_bits(words):
    i = cuda.grid(1)
    if i < words.size:
        words[i] = i


@cuda.jit
def through_records(values, out):
    first = cuda.shared.array(0, pair)
    again = cuda.shared.array(0, pair)
    i = cuda.threadIdx.x
    first[i].x = libdevice.erf(float(values[i]))
    cuda.syncthreads()
    out[i] = again[i].x


bytes_of = cuda.device_array(32, np.float64).view(np.uint8)
bytes_of.copy_to_device(np.arange(256, dtype=np.uint8))
assert (bytes_of.copy_to_host() == np.arange(256)).all()

values = cuda.device_array(32, np.int32)
set_bits[1, 32](values.view(np.uint32))
out = cuda.device_array(32, np.float32)
through_records[1, 32, 0, 32 * pair.itemsize](values, out)
assert out.copy_to_host()[0] == 0 and np.isclose(out.copy_to_host()[31], 1)

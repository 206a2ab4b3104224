"""right: host functions"""

import numpy as np
from numba import cuda


@cuda.jit
def k(a, b):
    i = cuda.grid(1)
    if i < a.size:
        b[i] = a[i] * 2


a = np.arange(100, dtype=np.float64)
with cuda.pinned(a):
    d = cuda.to_device(a)
with cuda.defer_cleanup():
    e = cuda.device_array_like(d)
    k[4, 32](d, e)
e.copy_to_host(a)
assert a[99] == 198
e[:] = 5
assert e[7] == 5 and e.shape == (100,) and e.nbytes == 800 and len(e) == 100
e.copy_to_device(np.ones(100))
f = e.reshape(10, 10)
assert f.copy_to_host().sum() == 100
streams = [cuda.stream() for _ in range(4)]
parts = np.array_split(np.arange(100.0), 4)
outs = []
for s, p in zip(streams, parts, strict=False):
    dp = cuda.to_device(p, stream=s)
    do = cuda.device_array(p.shape, p.dtype, stream=s)
    k[1, 32, s](dp, do)
    outs.append(do.copy_to_host(stream=s))
for s in streams:
    s.synchronize()
assert (np.concatenate(outs) == 2 * np.arange(100)).all()
print(cuda.gpus, cuda.gpus[0].name, cuda.list_devices()[0])
with cuda.gpus[0]:
    k[1, 32](cuda.to_device(np.ones(4)), cuda.device_array(4))
with cuda.mapped(a) as m:
    pass
cuda.profile_start()
cuda.profile_stop()
cuda.detect()
cuda.close()
x = d.copy_to_host()
k[4, 32](cuda.In(x), cuda.Out(y := np.zeros(100)))
assert y[5] == 10
k[4, 32, 0, 0](x, cuda.InOut(y))


class Tensor:
    """Another library's array."""

    def __init__(self, held):
        self.__cuda_array_interface__ = held.__cuda_array_interface__


d = cuda.to_device(np.arange(5, dtype=np.float32))
assert (cuda.as_cuda_array(Tensor(d)).copy_to_host() == np.arange(5)).all()

"""right: the else of a loop, what a kernel for debugging raises, rounding to digits"""

import numpy as np
from numba import cuda


@cuda.jit
def primes(out):
    n = cuda.grid(1)
    if n >= out.size:
        return
    if n < 2:
        out[n] = 0
    else:
        for k in range(2, n):
            if n % k == 0:
                out[n] = 0
                break
        else:
            out[n] = 1
    k = 0
    while k < 3:
        k += 1
    else:
        out[n] += 2


@cuda.jit(debug=True, opt=False)
def checked(a):
    i = cuda.grid(1)
    if a[i] < 0:
        raise ValueError("negative")


@cuda.jit
def rounded(a):
    i = cuda.grid(1)
    a[i] = round(a[i], 2) + round(a[i], -1)


out = np.zeros(60, np.int32)
primes[2, 32](out)
assert list(np.flatnonzero(out == 3)) == [n for n in range(2, 60) if all(n % k for k in range(2, n))]
checked[1, 32](np.zeros(32))
try:
    checked[1, 32](np.full(32, -1.0))
except ValueError as error:
    print(error)
else:
    raise SystemExit("nothing was raised")
a = np.array([12.3456, 17.001])
rounded[1, 2](a)
assert np.allclose(a, [22.35, 37.0])

"""right: complex numbers, as in a Mandelbrot set"""

import numpy as np
from numba import cuda


@cuda.jit(device=True)
def mandel(x, y, most):
    c = complex(x, y)
    z = 0.0j
    for i in range(most):
        z = z * z + c
        if (z.real * z.real + z.imag * z.imag) >= 4:
            return i
    return most


@cuda.jit
def draw(image, most):
    x, y = cuda.grid(2)
    if x < image.shape[1] and y < image.shape[0]:
        image[y, x] = mandel(x / 16 - 2, y / 16 - 1, most)


@cuda.jit
def conjugated(z):
    i = cuda.grid(1)
    if i < z.size:
        z[i] = z[i].conjugate() * 2


image = np.zeros((32, 48), np.int32)
draw[(3, 2), (16, 16)](image, 20)
assert image.max() == 20 and image[0, 0] < 5
z = np.full(5, 1 + 2j, np.complex64)
conjugated[1, 32](z)
assert (z == 2 - 4j).all()

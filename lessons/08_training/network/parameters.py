"""All parameters of the network in one array, so that one kernel updates them and one file keeps them."""

from math import prod

import numpy as np
from numba import cuda


class Parameters:
    """Values, velocities and gradients on the device: flat arrays of the shape's ``offsets["end"]`` values each.

    A weight is drawn, as the seed says, from a normal distribution of variance 2 / inputs (He et al. 2015, section
    2.2); a bias starts at 0.
    """

    def __init__(self, shape, seed):
        self.shape = shape
        start = np.zeros(shape.offsets["end"], np.float32)
        random = np.random.default_rng(seed)
        for name, extents in shape.parameters.items():
            if len(extents) > 1:
                drawn = random.standard_normal(extents) * np.sqrt(2 / prod(extents[1:]))
                self._part(start, name)[:] = drawn.reshape(-1)
        self.values, self.velocities = cuda.to_device(start), cuda.to_device(np.zeros_like(start))
        self.gradients = cuda.to_device(np.zeros_like(start))

    def _part(self, array, name):
        at = self.shape.offsets[name]
        return array[at : at + prod(self.shape.parameters[name])]

    def value(self, name):
        """A parameter as a flat view on the device."""
        return self._part(self.values, name)

    def gradient(self, name):
        """A parameter's gradient as a flat view on the device."""
        return self._part(self.gradients, name)

    def on_host(self, what="values"):
        """Copies of ``values``, ``velocities`` or ``gradients`` by name, each in its parameter's shape."""
        array = getattr(self, what).copy_to_host()
        return {name: self._part(array, name).reshape(extents) for name, extents in self.shape.parameters.items()}

    def restore(self, values, velocities):
        """Put flat arrays of the host in the place of these."""
        self.values.copy_to_device(np.ascontiguousarray(values, np.float32))
        self.velocities.copy_to_device(np.ascontiguousarray(velocities, np.float32))

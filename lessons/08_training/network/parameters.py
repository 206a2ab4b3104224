"""All parameters of the network in one array, so that one kernel updates them and one file keeps them; and what
networks of both kinds have besides."""

from math import prod

import numpy as np
from numba import cuda

from . import update


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


class Network:
    """For batches of ``batch`` digits, on ``parameters``, which several may share.

    ``x`` [batch * SIZE * SIZE] and ``classes`` [batch] are the batch. A step writes its losses to the row of
    ``losses`` [steps * batch] that ``counter`` names, its answers to ``said``, and moves ``counter`` on.
    ``partials`` are rows of all parameters' gradients, which an update adds up.
    """

    def __init__(self, parameters, batch, steps=1, momentum=0.9, decay=0.0):
        shape = parameters.shape
        self.parameters, self.shape, self.batch = parameters, shape, batch
        self.momentum, self.decay = momentum, decay
        self.x, self.classes = self.array(shape.SIZE, shape.SIZE), self.array(dtype=np.int32)
        self.rate, self.counter = cuda.to_device(np.zeros(1, np.float32)), cuda.to_device(np.zeros(1, np.int64))
        self.losses, self.said = cuda.to_device(np.zeros(steps * batch, np.float32)), self.array(dtype=np.int32)

    def array(self, *extents, dtype=np.float32):
        """A flat device array of zeros, so many for each digit of the batch."""
        return cuda.to_device(np.zeros(self.batch * prod(extents), dtype))

    def update(self):
        """Add up the gradients' parts, and descend."""
        p = self.parameters
        update.launch(p.values, p.velocities, p.gradients, self.partials, self.rate, self.momentum, self.decay,
                      self.counter)  # fmt: skip

    def step(self):
        """Forward, backward and update on the batch that lies in ``x`` and ``classes``."""
        self.forward()
        self.backward()
        self.update()

"""All parameters of the network in one array, so that one kernel updates them; what both networks share."""

from math import prod

import numpy as np
from numba import cuda, float32

COLUMNS, PARTS = 32, 8  # parameters of a block, and threads that share a sum
THREADS = COLUMNS * PARTS


@cuda.jit
def momentum_sgd(values, velocities, gradients, partials, rate, momentum, decay, counter):
    """gradients = the sum of partials [PARTS, PARAMETERS] over its rows; then a step of descent, as PyTorch's SGD:

    velocity = momentum * velocity + gradient + decay * parameter; parameter -= rate * velocity.
    """
    sums = cuda.shared.array(THREADS, float32)
    parts, parameters = partials.shape
    column, part = cuda.threadIdx.x % COLUMNS, cuda.threadIdx.x // COLUMNS
    at = cuda.blockIdx.x * COLUMNS + column
    total = float32(0.0)
    if at < parameters:
        for row in range(part, parts, PARTS):
            total += partials[row, at]
    sums[cuda.threadIdx.x] = total
    cuda.syncthreads()
    if part == 0 and at < parameters:
        for other in range(1, PARTS):  # always in this order: the same bits every time
            total += sums[other * COLUMNS + column]
        gradients[at] = total
        velocities[at] = momentum * velocities[at] + (total + decay * values[at])
        values[at] -= rate[0] * velocities[at]
        if at == 0:
            counter[0] += 1  # the step is done; no other kernel is at work now


class Parameters:
    """Values, velocities and gradients on the device: flat arrays of the shape's ``offsets["end"]`` values each.

    Weights are normals of variance 2 / inputs (He et al. 2015, section 2.2); a bias starts at 0.
    """

    def __init__(self, shape, seed):
        self.shape = shape
        start, random = np.zeros(shape.offsets["end"], np.float32), np.random.default_rng(seed)
        for name, extents in shape.parameters.items():
            if len(extents) > 1:
                drawn = random.standard_normal(extents) * np.sqrt(2 / prod(extents[1:]))
                self.part(start, name)[:] = drawn.reshape(-1)
        arrays = start, np.zeros_like(start), np.zeros_like(start)
        self.values, self.velocities, self.gradients = (cuda.to_device(array) for array in arrays)

    def part(self, array, name):
        """A parameter, or its gradient, as a flat view of one of the arrays."""
        at = self.shape.offsets[name]
        return array[at : at + prod(self.shape.parameters[name])]

    def on_host(self, what="values"):
        """Copies of ``values`` or ``gradients`` by name, each in its parameter's shape."""
        array = getattr(self, what).copy_to_host()
        return {name: self.part(array, name).reshape(extents) for name, extents in self.shape.parameters.items()}

    def restore(self, values, velocities):
        """Put flat arrays of the host in the place of these."""
        self.values.copy_to_device(np.ascontiguousarray(values, np.float32))
        self.velocities.copy_to_device(np.ascontiguousarray(velocities, np.float32))


class Network:
    """For batches of ``batch`` digits, on ``parameters``, which several may share.

    ``x`` [batch * H * H] and ``classes`` [batch] are the batch. A step writes its losses to row ``counter`` of
    ``losses`` [steps * batch], its answers to ``said``. ``partials`` are rows of gradients, which an update adds up.
    """

    def __init__(self, parameters, batch, steps=1, momentum=0.9, decay=0.0):
        self.parameters, self.shape, self.batch = parameters, parameters.shape, batch
        self.momentum, self.decay = momentum, decay
        self.weights = {name: parameters.part(parameters.values, name) for name in self.shape.parameters}
        self.x, self.classes = self.array(self.shape.first.H**2), self.array(dtype=np.int32)
        self.rate, self.counter = cuda.to_device(np.zeros(1, np.float32)), cuda.to_device(np.zeros(1, np.int64))
        self.losses, self.said = self.array(steps), self.array(dtype=np.int32)

    def array(self, *extents, dtype=np.float32):
        """A flat device array of zeros, so many for each digit of the batch."""
        return cuda.to_device(np.zeros(self.batch * prod(extents), dtype))

    def step(self):
        """Forward, backward and update on the batch that lies in ``x`` and ``classes``."""
        self.forward()
        self.backward()
        p = self.parameters
        momentum_sgd[-(-p.values.size // COLUMNS), THREADS](
            p.values, p.velocities, p.gradients, self.partials, self.rate, float32(self.momentum),
            float32(self.decay), self.counter,
        )  # fmt: skip

"""Stochastic gradient descent with momentum, over all parameters at once; it adds up what others left in parts.

velocity = MOMENTUM * velocity + gradient + decay * parameter; parameter -= rate * velocity. As PyTorch's SGD has it.
"""

from numba import cuda, float32

COLUMNS, PARTS = 32, 8  # parameters of a block, and threads that share a sum
THREADS = COLUMNS * PARTS


@cuda.jit
def momentum_sgd(values, velocities, gradients, partials, rate, momentum, decay, counter):
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


def launch(values, velocities, gradients, partials, rate, momentum, decay, counter):
    """gradients = the sum of partials [PARTS, PARAMETERS] over its rows; then a step of descent."""
    momentum_sgd[-(-values.size // COLUMNS), THREADS](
        values, velocities, gradients, partials, rate, float32(momentum), float32(decay), counter
    )

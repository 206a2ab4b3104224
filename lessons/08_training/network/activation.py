"""The gradient of ReLU, and softmax with cross-entropy and its gradient."""

from math import exp, log

from numba import cuda, float32

THREADS = 256


@cuda.jit
def relu_backward(y, dy):
    """dy = 0 where y, the output of ReLU, is."""
    at = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if at < dy.size and y[at] == float32(0.0):
        dy[at] = float32(0.0)


@cuda.jit
def softmax_cross_entropy(logits, classes, counter, d_logits, losses, said):
    """One thread per digit: its loss to row counter[0] of losses, the gradient of the batch's mean loss, its answer.

    The largest logit is taken from all first, so that no exponential is infinite; that changes no share.
    """
    N, CLASSES = logits.shape
    n = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if n < N:
        best = 0
        for k in range(1, CLASSES):
            if logits[n, k] > logits[n, best]:
                best = k
        total = float32(0.0)
        for k in range(CLASSES):
            total += float32(exp(logits[n, k] - logits[n, best]))
        right = classes[n]
        for k in range(CLASSES):
            share = float32(exp(logits[n, k] - logits[n, best])) / total
            d_logits[n, k] = (share - (float32(1.0) if k == right else float32(0.0))) / float32(N)
        losses[counter[0] * N + n] = float32(log(total)) - (logits[n, right] - logits[n, best])
        said[n] = best


def launch_relu_backward(y, dy):
    """Both flat."""
    relu_backward[-(-dy.size // THREADS), THREADS](y, dy)


def launch_softmax(logits, classes, counter, d_logits, losses, said):
    """logits and d_logits [N, CLASSES], classes and said [N], losses flat [steps * N]."""
    softmax_cross_entropy[-(-classes.size // THREADS), THREADS](logits, classes, counter, d_logits, losses, said)

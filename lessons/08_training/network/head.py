"""The two dense layers, softmax with cross-entropy, and the way back: one kernel, one digit per block."""

from functools import lru_cache
from math import exp, log

from numba import cuda, float32

PARTS = 8  # threads that share a sum of the first layer


@lru_cache
def specialise(FEATURES, HIDDEN, CLASSES):
    """Build the kernel; returns it with its threads in a block."""
    THREADS = max(FEATURES, HIDDEN * PARTS, -(-CLASSES // 32) * 32)
    SUMS = HIDDEN * PARTS

    @cuda.jit
    def head(features, classes, weight3, bias3, weight4, bias4, counter, hidden, d_logits, d_hidden, d_features,
             losses, said):  # fmt: skip
        pixels = cuda.shared.array(FEATURES, float32)
        sums = cuda.shared.array(SUMS, float32)
        active = cuda.shared.array(HIDDEN, float32)
        logits = cuda.shared.array(CLASSES, float32)
        slopes = cuda.shared.array(CLASSES, float32)
        back = cuda.shared.array(HIDDEN, float32)
        n, N, thread = cuda.blockIdx.x, cuda.gridDim.x, cuda.threadIdx.x

        # first layer: PARTS threads for each sum, which are added in their order
        if thread < FEATURES:
            pixels[thread] = features[n * FEATURES + thread]
        cuda.syncthreads()
        if thread < SUMS:
            total = float32(0.0)
            for at in range(thread % PARTS, FEATURES, PARTS):
                total += weight3[thread // PARTS * FEATURES + at] * pixels[at]
            sums[thread] = total
        cuda.syncthreads()
        if thread < HIDDEN:
            total = bias3[thread]
            for part in range(PARTS):
                total += sums[thread * PARTS + part]
            active[thread] = float32(0.0) if total <= float32(0.0) else total  # a NaN stays one
            hidden[n * HIDDEN + thread] = active[thread]
        cuda.syncthreads()

        # second layer
        if thread < CLASSES:
            total = bias4[thread]
            for j in range(HIDDEN):
                total += weight4[thread * HIDDEN + j] * active[j]
            logits[thread] = total
        cuda.syncthreads()

        # softmax and cross-entropy; less the largest logit, no exponential is infinite
        if thread < CLASSES:
            best = 0
            for k in range(1, CLASSES):
                if logits[k] > logits[best]:
                    best = k
            total = float32(0.0)
            for k in range(CLASSES):
                total += float32(exp(logits[k] - logits[best]))
            right = classes[n]
            share = float32(exp(logits[thread] - logits[best])) / total
            slopes[thread] = (share - (float32(1.0) if thread == right else float32(0.0))) / float32(N)
            d_logits[n * CLASSES + thread] = slopes[thread]
            if thread == 0:
                losses[counter[0] * N + n] = float32(log(total)) - (logits[right] - logits[best])
                said[n] = best
        cuda.syncthreads()

        # back through the second layer and ReLU, then through the first
        if thread < HIDDEN:
            total = float32(0.0)
            for k in range(CLASSES):
                total += weight4[k * HIDDEN + thread] * slopes[k]
            back[thread] = float32(0.0) if active[thread] == float32(0.0) else total
            d_hidden[n * HIDDEN + thread] = back[thread]
        cuda.syncthreads()
        if thread < FEATURES:
            total = float32(0.0)
            for j in range(HIDDEN):
                total += weight3[j * FEATURES + thread] * back[j]
            d_features[n * FEATURES + thread] = total

    return head, THREADS


@lru_cache
def specialise_weights(FEATURES, HIDDEN, CLASSES):
    """Build the kernel of the weights' gradients; returns it with its threads in a block."""
    THREADS = max(FEATURES, HIDDEN, -(-CLASSES // 32) * 32)
    WEIGHTS4 = CLASSES * HIDDEN

    @cuda.jit
    def weight_gradients(features, hidden, d_hidden, d_logits, partials, N, PARAMETERS, at3, bias_at3, at4, bias_at4):
        acc = cuda.local.array(HIDDEN, float32)

        # locate: a block has every gridDim.x-th digit, a thread the weights of one feature
        thread, part = cuda.threadIdx.x, cuda.blockIdx.x
        start, PARTS = part * PARAMETERS, cuda.gridDim.x

        # multiply and store: first layer
        if thread < FEATURES:
            for j in range(HIDDEN):
                acc[j] = float32(0.0)
            for n in range(part, N, PARTS):
                feature = features[n * FEATURES + thread]
                for j in range(HIDDEN):
                    acc[j] += d_hidden[n * HIDDEN + j] * feature
            for j in range(HIDDEN):
                partials[start + at3 + j * FEATURES + thread] = acc[j]
        if thread < HIDDEN:
            total = float32(0.0)
            for n in range(part, N, PARTS):
                total += d_hidden[n * HIDDEN + thread]
            partials[start + bias_at3 + thread] = total

        # multiply and store: second layer
        for at in range(thread, WEIGHTS4, THREADS):
            total = float32(0.0)
            for n in range(part, N, PARTS):
                total += d_logits[n * CLASSES + at // HIDDEN] * hidden[n * HIDDEN + at % HIDDEN]
            partials[start + at4 + at] = total
        if thread < CLASSES:
            total = float32(0.0)
            for n in range(part, N, PARTS):
                total += d_logits[n * CLASSES + thread]
            partials[start + bias_at4 + thread] = total

    return weight_gradients, THREADS


def launch(net):
    """Losses and answers of a network's digits from their features ``y2``, and all gradients but the weights'."""
    shape, p = net.shape, net.weights
    kernel, THREADS = specialise(shape.FEATURES, shape.HIDDEN, shape.CLASSES)
    kernel[net.batch, THREADS](
        net.y2, net.classes, p["weight3"], p["bias3"], p["weight4"], p["bias4"], net.counter, net.hidden,
        net.d_logits, net.d_hidden, net.dy2, net.losses, net.said,
    )  # fmt: skip


def launch_weights(net):
    """Each row of ``partials`` [PARTS, PARAMETERS] gets a part of the gradients of both layers."""
    shape, at, (parts, parameters) = net.shape, net.shape.offsets, net.partials.shape
    kernel, THREADS = specialise_weights(shape.FEATURES, shape.HIDDEN, shape.CLASSES)
    kernel[parts, THREADS](
        net.y2, net.hidden, net.d_hidden, net.d_logits, net.partials.reshape(net.partials.size), net.batch,
        parameters, at["weight3"], at["bias3"], at["weight4"], at["bias4"],
    )  # fmt: skip

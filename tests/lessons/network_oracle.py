"""The network in plain NumPy, in float64: what the kernels' answers are held against."""

from importlib import import_module

import numpy as np

from common.catalog import problems, reference

NAMES = import_module("lessons.08_training.network.shape").NAMES


def _problem(layer, N):
    H, TAPS, PAD = layer.H, layer.TAPS, layer.PAD
    return problems.Conv3d(N=N, C=layer.C, D=1, H=H, W=H, K=layer.K, T=1, R=TAPS, S=TAPS, pad_h=PAD, pad_w=PAD)


def convolve(layer, x, filt):
    """y [N, 1, OUT, OUT, K] from x [N, 1, H, H, C] and filt [K, 1, R, S, C]."""
    return reference.full(_problem(layer, len(x)), x, filt)


def convolve_back(layer, x, filt, dy):
    """The gradients of :func:`convolve` with respect to x and filt."""
    backward, weights = (problems.on_ladder(name, _problem(layer, len(x))) for name in ("dgrad", "wgrad"))
    return reference.full(backward, dy, filt), reference.full(weights, x, dy)


def _windows(y, size):
    """y [N, 1, P, Q, K] as [N, P // size, Q // size, K, size * size]."""
    N, _, P, Q, K = y.shape
    cut = y.reshape(N, P // size, size, Q // size, size, K)
    return cut.transpose(0, 1, 3, 5, 2, 4).reshape(N, P // size, Q // size, K, size * size)


def pool(y, size):
    """The largest value of each window of size x size, and its place in it: the first of equals."""
    windows = _windows(y, size)
    places = windows.argmax(axis=-1)
    return np.take_along_axis(windows, places[..., None], axis=-1)[:, None, ..., 0], places


def pool_back(dy, places, size):
    """The gradient of :func:`pool`: all of it to the largest value."""
    N, _, P, Q, K = dy.shape
    windows = (np.arange(size**2) == places[..., None]) * dy.reshape(places.shape)[..., None]
    whole = windows.reshape(N, P, Q, K, size, size).transpose(0, 1, 4, 2, 5, 3)
    return whole.reshape(N, 1, P * size, Q * size, K)


def run(shape, parameters, x, classes):
    """The loss of each digit, their logits, and by name the gradient of the mean loss with respect to each parameter.

    ``parameters`` by name, x [N, SIZE, SIZE].
    """
    p = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    first, second, x = shape.first, shape.second, np.asarray(x, np.float64)[:, None, ..., None]
    weight3, weight4 = p["weight3"].reshape(shape.HIDDEN, -1), p["weight4"].reshape(shape.CLASSES, -1)
    z1 = convolve(first, x, p["filt1"]) + p["bias1"]
    y1, places1 = pool(np.maximum(z1, 0), first.POOL)
    z2 = convolve(second, y1, p["filt2"]) + p["bias2"]
    y2, places2 = pool(np.maximum(z2, 0), second.POOL)
    features = y2.reshape(len(x), -1)
    z3 = features @ weight3.T + p["bias3"]
    hidden = np.maximum(z3, 0)
    logits = hidden @ weight4.T + p["bias4"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares, right = powers / powers.sum(axis=1, keepdims=True), np.eye(shape.CLASSES)[classes]

    d_logits = (shares - right) / len(x)
    d_z3 = d_logits @ weight4 * (z3 > 0)
    d_z2 = pool_back((d_z3 @ weight3).reshape(y2.shape), places2, second.POOL) * (z2 > 0)
    d_y1, d_filt2 = convolve_back(second, y1, p["filt2"], d_z2)
    d_z1 = pool_back(d_y1, places1, first.POOL) * (z1 > 0)
    _, d_filt1 = convolve_back(first, x, p["filt1"], d_z1)
    d = (
        d_filt1, d_z1.sum(axis=(0, 1, 2, 3)), d_filt2, d_z2.sum(axis=(0, 1, 2, 3)),
        d_z3.T @ features, d_z3.sum(axis=0), d_logits.T @ hidden, d_logits.sum(axis=0),
    )  # fmt: skip
    gradients = {name: value.reshape(p[name].shape) for name, value in zip(NAMES, d, strict=True)}
    return -np.log((shares * right).sum(axis=1)), logits, gradients

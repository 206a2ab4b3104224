"""The network in plain NumPy, in float64: what the kernels' answers are held against.

Written by the definitions, without a thought for speed: a convolution and its gradients go through all taps.
"""

import numpy as np

from .shape import NAMES


def convolve(x, filt, pad):
    """y [N, P, Q, K] from x [N, H, W, C] and filt [K, R, S, C]."""
    K, R, S, _ = filt.shape
    framed = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    P, Q = framed.shape[1] - R + 1, framed.shape[2] - S + 1
    y = np.zeros((len(x), P, Q, K))
    for r in range(R):
        for s in range(S):
            y += framed[:, r : r + P, s : s + Q] @ filt[:, r, s].T
    return y


def convolve_back(x, filt, pad, dy):
    """The gradients of :func:`convolve` with respect to x and filt."""
    K, R, S, _ = filt.shape
    framed = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    P, Q = dy.shape[1:3]
    d_framed, d_filt = np.zeros_like(framed), np.zeros_like(filt)
    for r in range(R):
        for s in range(S):
            d_framed[:, r : r + P, s : s + Q] += dy @ filt[:, r, s]
            d_filt[:, r, s] = np.einsum("npqk,npqc->kc", dy, framed[:, r : r + P, s : s + Q])
    H, W = x.shape[1:3]
    return d_framed[:, pad : pad + H, pad : pad + W], d_filt


def _windows(y, size):
    """y [N, P, Q, K] as [N, P // size, Q // size, K, size * size]."""
    N, P, Q, K = y.shape
    cut = y.reshape(N, P // size, size, Q // size, size, K)
    return cut.transpose(0, 1, 3, 5, 2, 4).reshape(N, P // size, Q // size, K, size * size)


def pool(y, size):
    """The largest value of each window of size x size, and its place in it: the first of equals."""
    windows = _windows(y, size)
    places = windows.argmax(axis=-1)
    return np.take_along_axis(windows, places[..., None], axis=-1)[..., 0], places


def pool_back(dy, places, size):
    """The gradient of :func:`pool`: all of it to the largest value."""
    N, P, Q, K = dy.shape
    windows = np.zeros((N, P, Q, K, size * size))
    np.put_along_axis(windows, places[..., None], dy[..., None], axis=-1)
    return windows.reshape(N, P, Q, K, size, size).transpose(0, 1, 4, 2, 5, 3).reshape(N, P * size, Q * size, K)


def losses(shape, p, x, classes):
    """The loss of each digit, and what :func:`gradients` needs; p are parameters by name, x is [N, SIZE, SIZE]."""
    p = {name: np.asarray(value, np.float64) for name, value in p.items()}
    x = np.asarray(x, np.float64)[..., None]
    filts = p["filt1"][:, 0], p["filt2"][:, 0]
    z1 = convolve(x, filts[0], shape.PADS[0]) + p["bias1"]
    y1, places1 = pool(np.maximum(z1, 0), shape.POOLS[0])
    z2 = convolve(y1, filts[1], shape.PADS[1]) + p["bias2"]
    y2, places2 = pool(np.maximum(z2, 0), shape.POOLS[1])
    features = y2.reshape(len(x), -1)
    z3 = features @ p["weight3"].reshape(shape.HIDDEN, -1).T + p["bias3"]
    hidden = np.maximum(z3, 0)
    logits = hidden @ p["weight4"].reshape(shape.CLASSES, -1).T + p["bias4"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    found = -np.log(shares[np.arange(len(x)), classes])
    return found, (p, filts, x, z1, y1, places1, z2, y2, places2, features, z3, hidden, logits, shares)


def gradients(shape, p, x, classes):
    """The gradient of the mean loss with respect to each parameter, by name; and the losses."""
    found, (p, filts, x, z1, y1, places1, z2, y2, places2, features, z3, hidden, _, shares) = losses(
        shape, p, x, classes
    )
    d_logits = shares.copy()
    d_logits[np.arange(len(x)), classes] -= 1
    d_logits /= len(x)
    d_z3 = d_logits @ p["weight4"].reshape(shape.CLASSES, -1) * (z3 > 0)
    d_y2 = (d_z3 @ p["weight3"].reshape(shape.HIDDEN, -1)).reshape(y2.shape)
    d_z2 = pool_back(d_y2, places2, shape.POOLS[1]) * (z2 > 0)
    d_y1, d_filt2 = convolve_back(y1, filts[1], shape.PADS[1], d_z2)
    d_z1 = pool_back(d_y1, places1, shape.POOLS[0]) * (z1 > 0)
    _, d_filt1 = convolve_back(x, filts[0], shape.PADS[0], d_z1)
    d = (
        d_filt1, d_z1.sum(axis=(0, 1, 2)), d_filt2, d_z2.sum(axis=(0, 1, 2)),
        d_z3.T @ features, d_z3.sum(axis=0), d_logits.T @ hidden, d_logits.sum(axis=0),
    )  # fmt: skip
    return {name: value.reshape(p[name].shape) for name, value in zip(NAMES, d, strict=True)}, found

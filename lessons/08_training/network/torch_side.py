"""The same network in PyTorch: the same first weights, the same batches, FP32 without TF32."""

import importlib.util
from contextlib import contextmanager

import numpy as np

from .shape import NAMES


def available():
    return importlib.util.find_spec("torch") is not None


@contextmanager
def strict():
    """While open, convolutions and products are FP32, and cuDNN tries its algorithms and keeps the fastest."""
    import torch

    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = False, False, True
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


class Peer:
    """The network on PyTorch's own layers; ``weights`` by name, as ``Parameters.on_host`` gives them.

    ``layout`` is ``contiguous`` (NCHW) or ``channels_last``. With ``double`` it
    computes in float64. ``x`` [N, 1, SIZE, SIZE] and ``classes`` [N] are the batch.
    """

    def __init__(self, shape, weights, batch, rate, momentum=0.9, decay=0.0, layout="contiguous", captured=False,
                 double=False):  # fmt: skip
        import torch

        self.torch, self.shape, self.batch = torch, shape, batch
        F, device = torch.nn.functional, torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.format = torch.channels_last if layout == "channels_last" else torch.contiguous_format

        self.dtype = torch.float64 if double else torch.float32

        def given(name, extents, order=None):
            value = np.asarray(weights[name], np.float32).reshape(extents)
            value = np.ascontiguousarray(value if order is None else value.transpose(order))
            tensor = torch.from_numpy(value).to(device, self.dtype)
            return tensor.to(memory_format=self.format) if tensor.dim() == 4 else tensor

        (K1, K2), TAPS, SIDE = shape.CHANNELS, shape.TAPS, shape.second.WINDOWS
        kcrs = (0, 3, 1, 2)
        features = np.asarray(weights["weight3"], np.float32).reshape(shape.HIDDEN, SIDE, SIDE, K2)
        weights = {**weights, "weight3": features.transpose(0, 3, 1, 2)}  # NCHW is flattened channel by channel
        self.values = [
            given("filt1", (K1, TAPS, TAPS, 1), kcrs), given("bias1", (K1,)),
            given("filt2", (K2, TAPS, TAPS, K1), kcrs), given("bias2", (K2,)),
            given("weight3", (shape.HIDDEN, shape.FEATURES)), given("bias3", (shape.HIDDEN,)),
            given("weight4", (shape.CLASSES, shape.HIDDEN)), given("bias4", (shape.CLASSES,)),
        ]  # fmt: skip
        for value in self.values:
            value.requires_grad_(True)
        self.optimizer = torch.optim.SGD(self.values, lr=rate, momentum=momentum, weight_decay=decay)
        self.x = torch.zeros(batch, 1, shape.SIZE, shape.SIZE, device=device, dtype=self.dtype)
        self.x = self.x.to(memory_format=self.format)
        self.classes = torch.zeros(batch, dtype=torch.int64, device=device)
        self.loss, self.functional, self.graph = None, F, None
        if captured:
            self._capture()

    def put(self, x, classes):
        """Copy a batch of the host: x [N, SIZE, SIZE] and classes [N]."""
        self.x.copy_(self.torch.from_numpy(np.ascontiguousarray(x)).reshape(self.x.shape))
        self.classes.copy_(self.torch.from_numpy(np.asarray(classes, np.int64)))

    def _forward(self):
        F, (PAD1, PAD2), (POOL1, POOL2) = self.functional, self.shape.PADS, self.shape.POOLS
        filt1, bias1, filt2, bias2, weight3, bias3, weight4, bias4 = self.values
        y = F.max_pool2d(F.relu(F.conv2d(self.x, filt1, bias1, padding=PAD1)), POOL1)
        y = F.max_pool2d(F.relu(F.conv2d(y, filt2, bias2, padding=PAD2)), POOL2)
        y = F.relu(F.linear(y.flatten(1), weight3, bias3))
        return F.cross_entropy(F.linear(y, weight4, bias4), self.classes)

    def _step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = self._forward()
        self.loss.backward()
        self.optimizer.step()

    def _capture(self):
        """As PyTorch's own notes on CUDA graphs say; the steps that it takes to warm up are undone."""
        torch = self.torch
        first = [value.detach().clone() for value in self.values]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self._forward()
            self.loss.backward()
            self.optimizer.step()
        with torch.no_grad():
            for value, start in zip(self.values, first, strict=True):
                value.copy_(start)
                self.optimizer.state[value]["momentum_buffer"].zero_()

    def step(self):
        """A step on the batch that lies in ``x`` and ``classes``; ``loss`` is its loss, on the device."""
        if self.graph:
            self.graph.replay()
        else:
            self._step()

    def gradients(self):
        """By name, in the shapes of the book's parameters."""
        found = dict(zip(NAMES, (value.grad.detach().cpu().numpy() for value in self.values), strict=True))
        K2, SIDE, HIDDEN = self.shape.CHANNELS[1], self.shape.second.WINDOWS, self.shape.HIDDEN
        for name in ("filt1", "filt2"):
            found[name] = found[name].transpose(0, 2, 3, 1)
        found["weight3"] = found["weight3"].reshape(HIDDEN, K2, SIDE, SIDE).transpose(0, 2, 3, 1)
        return {name: found[name].reshape(extents) for name, extents in self.shape.parameters.items()}

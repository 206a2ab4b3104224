"""The same network in PyTorch: the same first weights, the same batches, FP32 without TF32."""

import numpy as np

from .shape import NAMES


def strict():
    """From now on, convolutions and products are FP32, and cuDNN tries its algorithms and keeps the fastest."""
    import torch

    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = False, False, True


class Peer:
    """The network on PyTorch's own layers, with ``weights`` as ``Parameters.on_host`` gives them.

    ``layout`` is ``contiguous`` (NCHW) or ``channels_last``. With ``captured`` a step is a CUDA graph, which is taken
    after three steps. ``x`` [N, 1, SIZE, SIZE] and ``classes`` [N] are the batch.
    """

    def __init__(self, shape, weights, plan, batch, layout="contiguous", captured=False):
        import torch

        self.torch, self.shape, second = torch, shape, shape.second
        self.features = second.K, second.WINDOWS, second.WINDOWS  # NCHW; the book's x is NHWC
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
        self.values = []
        for name in NAMES:
            value = torch.from_numpy(self._theirs(name, weights[name])).to(device)
            value = value.to(memory_format=form) if value.dim() == 4 else value
            self.values.append(value.requires_grad_(True))
        self.optimizer = torch.optim.SGD(self.values, lr=plan.rate, momentum=plan.momentum, weight_decay=plan.decay)
        SIZE = shape.first.H
        self.x = torch.zeros(batch, 1, SIZE, SIZE, device=device).to(memory_format=form)
        self.classes = torch.zeros(batch, dtype=torch.int64, device=device)
        self.loss, self.graph = None, None
        if captured:
            self._capture()

    def _theirs(self, name, value):
        """A parameter of the book, a filter [K, 1, R, S, C], as PyTorch has it: [K, C, R, S], or [K, FEATURES]."""
        if name == "weight3":
            value = value.reshape(-1, *self.features[1:], self.features[0]).transpose(0, 3, 1, 2)
        if name.startswith("weight"):
            value = value.reshape(len(value), -1)
        elif name.startswith("filt"):
            value = value[:, 0].transpose(0, 3, 1, 2)
        return np.ascontiguousarray(value, np.float32)

    def gradients(self):
        """By name, in the shapes of the book's parameters."""
        found = dict(zip(NAMES, (value.grad.detach().cpu().numpy() for value in self.values), strict=True))
        found["weight3"] = found["weight3"].reshape(-1, *self.features)
        for name in ("filt1", "filt2", "weight3"):
            found[name] = found[name].transpose(0, 2, 3, 1)
        return {name: found[name].reshape(extents) for name, extents in self.shape.parameters.items()}

    def put(self, x, classes):
        """Copy a batch of the host: x [N, SIZE, SIZE] and classes [N]."""
        self.x.copy_(self.torch.from_numpy(np.ascontiguousarray(x)).reshape(self.x.shape))
        self.classes.copy_(self.torch.from_numpy(np.asarray(classes, np.int64)))

    def step(self):
        """A step on the batch that lies in ``x`` and ``classes``; ``loss`` is its loss, on the device."""
        (self.graph.replay if self.graph else self._step)()

    def _step(self):
        F, first, second = self.torch.nn.functional, self.shape.first, self.shape.second
        filt1, bias1, filt2, bias2, weight3, bias3, weight4, bias4 = self.values
        self.optimizer.zero_grad(set_to_none=True)
        y = F.max_pool2d(F.relu(F.conv2d(self.x, filt1, bias1, padding=first.PAD)), first.POOL)
        y = F.max_pool2d(F.relu(F.conv2d(y, filt2, bias2, padding=second.PAD)), second.POOL)
        y = F.relu(F.linear(y.flatten(1), weight3, bias3))
        self.loss = F.cross_entropy(F.linear(y, weight4, bias4), self.classes)
        self.loss.backward()
        self.optimizer.step()

    def _capture(self):
        """As PyTorch's own notes on CUDA graphs say."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

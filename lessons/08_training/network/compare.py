"""The network beside PyTorch's: the gradients, the losses of the same steps, and how fast a step is, in turn."""

import time
from importlib.metadata import version

import numpy as np
from numba import cuda

from common.timing import timing

from . import torch_side
from .graph import Graph
from .parameters import Parameters
from .plan import KINDS, Plan
from .record import DOUBLE, EAGER, GRAPH, Speed
from .training import network

STEPS = 100
BATCHES = (64, 1024, 32, 128, 256, 512, 2048, 4096)
ALL_KINDS = (64, 1024)  # elsewhere the fused network alone: each size has other tiles to compile for the layered one
ROUNDS = 7
SAMPLE_STEPS = 100  # at most
MOST = 4 * SAMPLE_STEPS * ROUNDS  # steps whose losses there is room for: more than are taken
SAMPLE_SECONDS = 0.004  # of steps, one after the other, before the clock is read
LAYOUTS = ("contiguous", "channels_last")


def library():
    """PyTorch and its version."""
    return f"PyTorch {version('torch')}"


def _batches(plan, digits):
    """STEPS batches of digits as they are, x [N, SIZE, SIZE] and classes [N]."""
    random = np.random.default_rng(plan.seed)
    for _ in range(STEPS):
        which = random.choice(len(digits), plan.batch, replace=False)
        yield digits.images[which].astype(np.float32) / np.float32(255), digits.labels[which]


def _put(net, x, classes):
    net.x.copy_to_device(np.ascontiguousarray(x.reshape(-1)))
    net.classes.copy_to_device(classes.astype(np.int32))


def losses(plan, shape, digits):
    """By network, the losses of STEPS steps from the same weights; and the first gradients' errors, by parameter.

    An error is the largest difference from PyTorch's gradient over the largest gradient. PyTorch in float64 stands
    beside them: how far rounding alone drives losses apart.
    """
    start = Parameters(shape, plan.seed).on_host()
    found, errors, theirs = {}, {}, {}
    for name, double in ((EAGER, False), (DOUBLE, True)):
        peer = torch_side.Peer(shape, start, plan.batch, plan.rate, plan.momentum, plan.decay, double=double)
        found[name] = []
        for x, classes in _batches(plan, digits):
            peer.put(x, classes)
            peer.step()
            found[name].append(float(peer.loss.detach()))
            if not theirs:
                theirs = peer.gradients()
    for kind in KINDS:
        parameters = Parameters(shape, plan.seed)
        net = network(kind, parameters, plan.batch, steps=STEPS, momentum=plan.momentum, decay=plan.decay)
        net.rate.copy_to_device(np.full(1, plan.rate, np.float32))
        for number, (x, classes) in enumerate(_batches(plan, digits)):
            _put(net, x, classes)
            net.step()
            if number == 0:
                ours = parameters.on_host("gradients")
                errors[kind] = {name: _error(ours[name], value) for name, value in theirs.items()}
        means = net.losses.copy_to_host().reshape(STEPS, -1).mean(axis=1, dtype=np.float64)
        found[kind] = [float(mean) for mean in means]
    return found, errors


def _error(ours, theirs):
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def require_room(shape, batch, room_bytes):
    """Raise ValueError for a batch whose losses and images alone are more than memory has room for."""
    images = 1 + 2 * len(LAYOUTS)  # here, and in each of PyTorch's
    most = room_bytes // (4 * (MOST + images * shape.SIZE**2))
    if batch > most:
        raise ValueError(f"--batch {batch}: must be at most {most}, for which there is memory")


def speeds(plan, shape, digits, batch):
    """A :class:`Speed` for each way to take a step on a batch that lies in memory: the book's and PyTorch's."""
    digits = digits.first(batch)
    x, classes = (np.resize(a, (batch, *a.shape[1:])) for a in (digits.images / np.float32(255), digits.labels))
    x = x.astype(np.float32)
    works, launches = {}, {}
    for kind in KINDS if batch in ALL_KINDS else KINDS[:1]:
        net = network(kind, Parameters(shape, plan.seed), batch, steps=MOST, momentum=plan.momentum, decay=plan.decay)
        net.rate.copy_to_device(np.full(1, plan.rate, np.float32))
        _put(net, x, classes)
        works[kind, ""] = net.step
        works[f"{kind}, graph", ""] = graph = Graph(net.step)
        launches[kind] = launches[f"{kind}, graph"] = graph.kernels
    start = Parameters(shape, plan.seed).on_host()
    for layout in LAYOUTS:
        for name, captured in ((EAGER, False), (GRAPH, True)):
            peer = torch_side.Peer(
                shape, start, batch, plan.rate, plan.momentum, plan.decay, layout=layout, captured=captured
            )
            peer.put(x, classes)
            works[name, layout] = peer.step
    timed = _in_turn(works)
    found = {}
    for (name, layout), one in timed.items():
        if name not in found or one.median_ms < found[name].timing.median_ms:
            found[name] = Speed(name=name, batch=batch, timing=one, layout=layout, launches=launches.get(name))
    return list(found.values())


def _in_turn(works):
    """The time of a step by each of ``works``, round by round, so that all meet the same clocks and heat."""
    counts = {}
    for key, work in works.items():
        for _ in range(3):
            work()
        counts[key] = max(3, min(SAMPLE_STEPS, round(SAMPLE_SECONDS / _seconds(work, 5))))
    samples = {key: [] for key in works}
    for number in range(ROUNDS):
        for key in list(works) if number % 2 else reversed(list(works)):
            samples[key].append(1e3 * _seconds(works[key], counts[key]))
    return {key: timing.summarise(found) for key, found in samples.items()}


def _seconds(work, count):
    """Of one of ``count`` steps that follow each other, from the first's launch to the last's end."""
    cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        work()
    cuda.synchronize()
    return (time.perf_counter() - began) / count


# At the rate of training, rounding alone drives the losses apart within 100 steps: float64 leaves float32 as soon,
# and as far, as one library the other. At this one it does not.
DEFAULT = Plan(batch=64, rate=0.002)

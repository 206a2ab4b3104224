"""The network beside PyTorch's: the gradients, the losses of the same steps, and how fast a step is, in turn."""

import time
from importlib.metadata import version

import numpy as np
from numba import cuda

from common.timing import timing

from . import digits, record, torch_side
from .graph import Graph
from .parameters import Parameters
from .record import EAGER, GRAPH, Speed
from .shape import MNIST
from .training import KINDS, Plan, network

# At the rate of training, rounding alone drives the losses apart within 100 steps, those of PyTorch in float64, too
PLAN = Plan(batch=64, rate=0.002)
STEPS = 100
BATCHES = (64, 1024, 32, 128, 256, 512, 2048, 4096)
ALL_KINDS = (64, 1024)  # elsewhere the fused network alone: each size has other tiles to compile for the layered one
ROUNDS = 7
SAMPLE_STEPS = 100  # at most
MOST = 4 * SAMPLE_STEPS * ROUNDS  # steps whose losses there is room for: more than are taken
SAMPLE_SECONDS = 0.004  # of steps, one after the other, before the clock is read


def measure(gpu):
    """Yields the record's entry as it grows, batch by batch, and what is to be said of what came last."""
    learned, _ = digits.load()
    losses, errors = _losses(learned)
    compared = record.Compared(
        batch=PLAN.batch, rate=PLAN.rate, library=f"PyTorch {version('torch')}", losses=losses, gradients=errors,
        speeds=[], code=record.code(), run=record.run_now(gpu),
    )  # fmt: skip
    for name, mine in errors.items():
        said = f"gradients within {max(mine.values()):.1e} of PyTorch's, losses of {STEPS} steps within"
        yield compared, f"{name}: {said} {compared.apart(name):.1e}"
    for batch in BATCHES:
        new = _speeds(learned, batch)
        compared.speeds += new
        times = ", ".join(f"{one.name} {1e3 * one.timing.median_ms:.0f} µs" for one in new)
        yield compared, f"batch {batch}: {times}"


def _made(kind, batch, steps):
    """A network of the plan's first weights, with its rate."""
    net = network(kind, Parameters(MNIST, PLAN.seed), batch, steps=steps, momentum=PLAN.momentum, decay=PLAN.decay)
    net.rate.copy_to_device(np.full(1, PLAN.rate, np.float32))
    return net


def _put(net, x, classes):
    net.x.copy_to_device(np.ascontiguousarray(x.reshape(-1)))
    net.classes.copy_to_device(classes.astype(np.int32))


def _batches(learned):
    """STEPS batches of digits as they are, x [N, SIZE, SIZE] and classes [N]."""
    random = np.random.default_rng(PLAN.seed)
    for _ in range(STEPS):
        which = random.choice(len(learned), PLAN.batch, replace=False)
        yield learned.images[which].astype(np.float32) / np.float32(255), learned.labels[which]


def _losses(learned):
    """By network, the losses of STEPS steps from the same weights; and the first gradients' errors, by parameter."""
    peer = torch_side.Peer(MNIST, Parameters(MNIST, PLAN.seed).on_host(), PLAN, PLAN.batch)
    found, errors, theirs = {EAGER: []}, {}, {}
    for x, classes in _batches(learned):
        peer.put(x, classes)
        peer.step()
        found[EAGER].append(float(peer.loss.detach()))
        theirs = theirs or peer.gradients()
    for kind in KINDS:
        net = _made(kind, PLAN.batch, STEPS)
        for x, classes in _batches(learned):
            _put(net, x, classes)
            net.step()
            if kind not in errors:
                ours = net.parameters.on_host("gradients")
                errors[kind] = {
                    name: float(np.abs(ours[name] - value).max() / np.abs(value).max())
                    for name, value in theirs.items()
                }
        found[kind] = net.losses.copy_to_host().reshape(STEPS, -1).mean(axis=1, dtype=np.float64).tolist()
    return found, errors


def _speeds(learned, batch):
    """A :class:`Speed` for each way to take a step on a batch that lies in memory: the book's and PyTorch's."""
    learned = learned.first(batch)
    x = np.resize((learned.images / np.float32(255)).astype(np.float32), (batch, *learned.images.shape[1:]))
    classes = np.resize(learned.labels, batch)
    works, launches = {}, {}
    for kind in KINDS if batch in ALL_KINDS else KINDS[:1]:
        net = _made(kind, batch, MOST)
        _put(net, x, classes)
        works[kind, ""] = net.step
        works[f"{kind}, graph", ""] = graph = Graph(net.step)
        launches[kind] = launches[f"{kind}, graph"] = graph.kernels
    start = Parameters(MNIST, PLAN.seed).on_host()
    for layout in ("contiguous", "channels_last"):
        for name, captured in ((EAGER, False), (GRAPH, True)):
            peer = torch_side.Peer(MNIST, start, PLAN, batch, layout=layout, captured=captured)
            peer.put(x, classes)
            works[name, layout] = peer.step
    found = {}
    for (name, layout), one in _in_turn(works).items():
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

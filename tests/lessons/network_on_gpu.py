"""Prints, as JSON, what the network of lesson 08 does on a GPU; `test_network.py` runs it, and says what it must do.

python tests/lessons/network_on_gpu.py
"""

import hashlib
import json
from importlib import import_module

import numpy as np
from msgspec.structs import replace

from tests.lessons import network_oracle as oracle

NETWORK = "lessons.08_training.network"
fused, layered, parameters, shapes, training, digits, graph = (
    import_module(f"{NETWORK}.{name}")
    for name in ("fused", "layered", "parameters", "shape", "training", "digits", "graph")
)
SHAPE, BATCH, PLAN = shapes.MNIST, 32, training.Plan(epochs=2, batch=16)


def some_digits(count, seed):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, SHAPE.first.H, SHAPE.first.H)).astype(np.uint8)
    return digits.Digits(images, random.integers(0, 10, count).astype(np.int32), np.arange(count))


def gradients(kind):
    """The largest error of each gradient over the largest gradient, and of the losses; kernels in a step's graph."""
    own = parameters.Parameters(SHAPE, 0)
    batch = some_digits(BATCH, 1)
    net = kind(own, BATCH, steps=4)
    x = (batch.images / 255).astype(np.float32)
    net.x.copy_to_device(x.reshape(-1))
    net.classes.copy_to_device(batch.labels)
    weights = own.on_host()
    net.step()
    losses, _, wanted = oracle.run(SHAPE, weights, x, batch.labels)
    found = own.on_host("gradients")
    errors = {name: float(np.abs(found[name] - value).max() / np.abs(value).max()) for name, value in wanted.items()}
    errors["losses"] = float(np.abs(net.losses.copy_to_host()[:BATCH] - losses).max())
    return {"errors": errors, "kernels": graph.Graph(net.step).kernels}


def bits(kernels, captured, interrupted=False):
    """What a run of training ends with; gone on with in another run after an epoch, if it is ``interrupted``."""
    plan, learned, held_out = replace(PLAN, kernels=kernels), some_digits(80, 2), some_digits(24, 3)
    run = training.Run(plan, SHAPE, learned, held_out, captured=captured)
    if interrupted:
        next(run.epochs())
        other = training.Run(plan, SHAPE, learned, held_out, captured=captured)
        own = run.parameters
        other.resume(run.history, own.values.copy_to_host(), own.velocities.copy_to_host())
        run = other
    list(run.epochs())
    own = run.parameters
    return hashlib.sha256(own.values.copy_to_host().tobytes() + own.velocities.copy_to_host().tobytes()).hexdigest()


if __name__ == "__main__":
    print(json.dumps({
        "fused": gradients(fused.Fused), "layered": gradients(layered.Layered),
        "bits": {
            kernels: [bits(kernels, *how) for how in ((True,), (False,), (True, True))]
            for kernels in training.KINDS
        },
    }))  # fmt: skip

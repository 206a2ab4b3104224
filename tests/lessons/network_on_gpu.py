"""Prints, as JSON, what the network of lesson 08 does on a GPU; `test_network.py` runs it, and says what it must do.

python tests/lessons/network_on_gpu.py
"""

import hashlib
import json
from dataclasses import replace
from importlib import import_module

import numpy as np

NETWORK = "lessons.08_training.network"
fused, layered, oracle, parameters, shapes, training, digits, graph, plans = (
    import_module(f"{NETWORK}.{name}")
    for name in ("fused", "layered", "oracle", "parameters", "shape", "training", "digits", "graph", "plan")
)
SHAPE, BATCH, PLAN = shapes.MNIST, 32, plans.Plan(epochs=2, batch=16)


def some_digits(count, seed):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, SHAPE.SIZE, SHAPE.SIZE)).astype(np.uint8)
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
    wanted, losses = oracle.gradients(SHAPE, weights, x, batch.labels)
    found = own.on_host("gradients")
    errors = {name: float(np.abs(found[name] - value).max() / np.abs(value).max()) for name, value in wanted.items()}
    errors["losses"] = float(np.abs(net.losses.copy_to_host()[:BATCH] - losses).max())
    return {"errors": errors, "kernels": graph.Graph(net.step).kernels}


def bits(kernels, captured, stopped_after=None):
    """What a run of training ends with; interrupted after so many steps and gone on with, if that is asked for."""
    plan, learned, held_out = replace(PLAN, kernels=kernels), some_digits(80, 2), some_digits(24, 3)

    def made():
        return training.Run(plan, SHAPE, learned, held_out, captured=captured)

    run = made()
    if stopped_after:
        run.train(stop=lambda: run.epoch * run.steps + run.step == stopped_after)
        other = made()
        other._restore(*run._state())
        run = other
    run.train()
    own = run.parameters
    return hashlib.sha256(own.values.copy_to_host().tobytes() + own.velocities.copy_to_host().tobytes()).hexdigest()


if __name__ == "__main__":
    print(json.dumps({
        "fused": gradients(fused.Fused), "layered": gradients(layered.Layered),
        "bits": {
            kernels: [bits(kernels, True), bits(kernels, True), bits(kernels, False), bits(kernels, True, 7)]
            for kernels in plans.KINDS
        },
    }))  # fmt: skip

"""The loop: epochs of steps on batches, each epoch ended by a look at the digits that are held out.

Which digits come when, and how they are changed, follows from the seed and the epoch's number alone. So a run that
was interrupted goes on to the same bits as one that was not.
"""

import io
import json
import time
from importlib import import_module
from typing import Annotated, Literal
from zipfile import BadZipFile

import numpy as np
from msgspec import Meta, Struct, to_builtins
from numba import cuda

from common.catalog import store
from common.catalog.store import Amount, Count, Extent

from . import batch as batches
from .parameters import Parameters
from .record import Epoch, Share
from .shape import Shape

KINDS = ("fused", "layered")
# how far digits are changed: degrees, shares, pixels for a pixel, pixels
CHANGES = {"turn": 12, "stretch": 0.12, "slant": 0.15, "way": 2}


class Plan(Struct, frozen=True, kw_only=True):
    """What a run does: all of this, with the digits, decides its bits. ``kernels`` is one of KINDS."""

    seed: Count = 0
    epochs: Extent = 100
    batch: Extent = 32
    rate: Annotated[float, Meta(gt=0, lt=1e6)] = 0.05
    momentum: Share = 0.9
    decay: Amount = 5e-4
    kernels: Literal[KINDS] = KINDS[0]
    changes: bool = True


class Checkpoint(Struct, kw_only=True):
    """What a checkpoint says beside its arrays, the parameters' values and velocities."""

    shape: Shape
    plan: Plan
    history: list[Epoch]


def network(kind, parameters, batch, **options):
    """A network of one of KINDS."""
    return getattr(import_module(f".{kind}", __package__), kind.title())(parameters, batch, **options)


class Run:
    """A training run, new or gone on with; :meth:`epochs` does what is left of it.

    ``learned`` and ``held_out`` are digits of the shape's size. With ``captured`` a step is one CUDA graph.
    Raises ValueError where there are too few digits for a batch.
    """

    def __init__(self, plan, shape, learned, held_out, captured):
        if len(learned) < plan.batch:
            raise ValueError(f"--batch {plan.batch}: must be at most {len(learned)}, the digits there are")
        self.plan, self.shape, self.learned, self.held_out = plan, shape, learned, held_out
        self.steps = len(learned) // plan.batch  # of an epoch; a rest that fills no batch waits for another order
        self.history = []
        self.parameters = Parameters(shape, plan.seed)
        self._net = network(
            plan.kernels, self.parameters, plan.batch, steps=self.steps, momentum=plan.momentum, decay=plan.decay
        )
        self._test = network(plan.kernels, self.parameters, len(held_out))
        self._test.x.copy_to_device((held_out.images.reshape(-1) / np.float32(255)).astype(np.float32))
        self._test.classes.copy_to_device(held_out.labels)
        count = self.steps * plan.batch
        self._images, self._labels = cuda.to_device(learned.images), cuda.to_device(learned.labels)
        self._order = cuda.to_device(np.zeros(count, np.int32))
        self._changes = cuda.to_device(np.zeros(count * batches.ROW, np.float32))
        self._rates = cuda.to_device(np.zeros(self.steps, np.float32))
        self.launches, self._work = None, self._launch
        if captured:
            from .graph import Graph

            before = self.parameters.values.copy_to_host(), self.parameters.velocities.copy_to_host()
            self._work = Graph(self._launch)
            self.launches = self._work.kernels
            self.parameters.restore(*before)

    def _launch(self):
        """The kernels of a step, the next batch first."""
        net = self._net
        batches.launch(self._images, self._labels, self._order, self._changes, self._rates, net.counter, net.x,
                       net.classes, net.rate)  # fmt: skip
        net.step()

    def _begin(self):
        """Put the next epoch's batches, changes and rates where the kernels find them, and the number of its step."""
        plan, epoch, count = self.plan, len(self.history), self.steps * self.plan.batch
        random = np.random.default_rng([plan.seed, epoch])
        self._order.copy_to_device(random.permutation(len(self.learned))[:count].astype(np.int32))
        changes = batches.drawn(random, count, **(CHANGES if plan.changes else {}))
        self._changes.copy_to_device(changes.reshape(-1))
        past = (epoch * self.steps + np.arange(self.steps)) / (plan.epochs * self.steps)
        # half a wave of the cosine (Loshchilov and Hutter 2017, eq. 5), from the rate to 0
        self._rates.copy_to_device((plan.rate * 0.5 * (1 + np.cos(np.pi * past))).astype(np.float32))
        self._net.counter.copy_to_device(np.zeros(1, np.int64))

    def epochs(self):
        """Train until the plan is done; yields what came of each epoch. Raises ValueError where the loss diverges."""
        while len(self.history) < self.plan.epochs:
            began = time.perf_counter()
            self._begin()
            for _ in range(self.steps):
                self._work()
            cuda.synchronize()
            seconds = time.perf_counter() - began
            loss = float(self._net.losses.copy_to_host().mean(dtype=np.float64))
            held_out_loss, accuracy = self.look()
            values = self.parameters.values.copy_to_host()
            if not (np.isfinite(loss) and np.isfinite(held_out_loss) and np.isfinite(values).all()):
                raise ValueError(
                    f"epoch {len(self.history) + 1}: the loss is {loss}, {held_out_loss} on the held-out digits: "
                    f"go on from the checkpoint, or start anew, with a smaller --rate than {self.plan.rate:g}"
                )
            found = Epoch(loss=loss, held_out_loss=held_out_loss, held_out_accuracy=accuracy, seconds=seconds)
            self.history.append(found)
            yield found

    def look(self):
        """Loss and accuracy on the held-out digits."""
        self._test.forward()
        loss = self._test.losses.copy_to_host().mean(dtype=np.float64)
        return float(loss), float((self.answers() == self.held_out.labels).mean())

    def answers(self):
        """What the network says the held-out digits are, as of the last look."""
        return self._test.said.copy_to_host()

    def save(self, path):
        """Write a checkpoint, whole or not at all; raises StoreError."""
        said = json.dumps(to_builtins(Checkpoint(shape=self.shape, plan=self.plan, history=self.history)))
        values, velocities = self.parameters.values.copy_to_host(), self.parameters.velocities.copy_to_host()
        content = io.BytesIO()
        np.savez(content, said=np.frombuffer(said.encode(), np.uint8), values=values, velocities=velocities)
        store.write(path, content.getvalue())

    def resume(self, history, values, velocities):
        """Go on from what :func:`load` found."""
        self.history = history
        self.parameters.restore(values, velocities)


def load(path, shape):
    """A checkpoint's plan, history, values and velocities; raises StoreError, or ValueError where it is of no such
    network."""
    content = store.read_bytes(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            said = store.convert(json.loads(bytes(file["said"])), Checkpoint)
            values, velocities = file["values"], file["velocities"]
    except (BadZipFile, EOFError, KeyError, OSError, ValueError) as error:
        raise ValueError(f"{store.shown(path)}: is no checkpoint of this network ({error!s:.80})") from None
    if said.shape != shape or {values.shape, velocities.shape} != {(shape.offsets["end"],)}:
        raise ValueError(f"{store.shown(path)}: is of a network of another shape")
    return said.plan, said.history, values, velocities

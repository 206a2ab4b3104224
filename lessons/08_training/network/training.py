"""The loop: epochs of steps on batches, each epoch ended by a look at the digits that are held out.

Which digits come when, and how they are changed, follows from the seed and the epoch's number alone. So a run that
was interrupted goes on to the same bits as one that was not.
"""

import time
from dataclasses import replace
from importlib import import_module

import numpy as np
from numba import cuda

from common.catalog import store

from . import batch as batches
from . import checkpoint
from .parameters import Parameters
from .plan import Epoch, State

# how far digits are changed: degrees, shares, pixels for a pixel, pixels
CHANGES = {"turn": 12, "stretch": 0.12, "slant": 0.15, "way": 2}


class DivergedError(ValueError):
    """The loss is no finite number; the message says since when, and what to do."""


def network(kind, parameters, batch, **options):
    """A network of one of KINDS."""
    return getattr(import_module(f".{kind}", __package__), kind.title())(parameters, batch, **options)


class Run:
    """A training run, new or gone on with; :meth:`train` does what is left of it.

    ``learned`` and ``held_out`` are digits of the shape's size. With ``captured`` a step is one CUDA graph.
    Raises ValueError where there are too few digits for a batch.
    """

    def __init__(self, plan, shape, learned, held_out, captured):
        if len(learned) < plan.batch:
            raise ValueError(f"--batch {plan.batch}: must be at most {len(learned)}, the digits there are")
        self.plan, self.shape, self.learned, self.held_out = plan, shape, learned, held_out
        self.steps = len(learned) // plan.batch  # of an epoch; a rest that fills no batch waits for another order
        self.epoch, self.step, self.history = 0, 0, []
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
            self._capture()

    def _launch(self):
        """The kernels of a step, the next batch first."""
        net = self._net
        batches.launch(self._images, self._labels, self._order, self._changes, self._rates, net.counter, net.x,
                       net.classes, net.rate)  # fmt: skip
        net.step()

    def _capture(self):
        from .graph import Graph

        before = self.parameters.values.copy_to_host(), self.parameters.velocities.copy_to_host()
        self._work = Graph(self._launch)
        self.launches = self._work.kernels
        self.parameters.restore(*before)

    @property
    def done(self):
        return self.epoch >= self.plan.epochs

    def _begin(self):
        """Put the epoch's batches, changes and rates where the kernels find them, and its number of the step."""
        plan, net = self.plan, self._net
        random = np.random.default_rng([plan.seed, self.epoch])
        count = self.steps * plan.batch
        self._order.copy_to_device(random.permutation(len(self.learned))[:count].astype(np.int32))
        changes = batches.drawn(random, count, **CHANGES) if plan.changes else batches.unchanged(count)
        self._changes.copy_to_device(changes.reshape(-1))
        past = (self.epoch * self.steps + np.arange(self.steps)) / (plan.epochs * self.steps)
        # half a wave of the cosine (Loshchilov and Hutter 2017, eq. 5), from the rate to 0
        self._rates.copy_to_device((plan.rate * 0.5 * (1 + np.cos(np.pi * past))).astype(np.float32))
        net.counter.copy_to_device(np.full(1, self.step, np.int64))

    def train(self, stop=lambda: False, on_step=lambda: None, on_epoch=lambda epoch: None):
        """Train until the plan is done, or until ``stop`` says so after a step; what is said of each epoch is kept.

        Raises DivergedError. The run is then as it was when the epoch began, or went on.
        """
        while not self.done:
            before = self._state()
            began = time.perf_counter()
            self._begin()
            stopped = False
            while self.step < self.steps and not stopped:
                self._work()
                self.step += 1
                on_step()
                stopped = stop()
            cuda.synchronize()
            seconds = time.perf_counter() - began
            self._require_finite(before)
            if self.step < self.steps:
                return
            losses = self._net.losses.copy_to_host()
            loss, accuracy = self.look()
            if not np.isfinite(loss):
                message = self._said(self.epoch + 1, self.steps, f"{loss} on the held-out digits")
                self._restore(*before)
                raise DivergedError(message)
            self.history.append(Epoch(float(losses.mean(dtype=np.float64)), loss, accuracy, seconds))
            self.epoch, self.step = self.epoch + 1, 0
            on_epoch(self.history[-1])
            if stopped:
                return

    def _require_finite(self, before):
        losses = self._net.losses.copy_to_host().reshape(self.steps, -1)[: self.step].mean(axis=1)
        wrong = np.flatnonzero(~np.isfinite(losses))
        if not len(wrong) and np.isfinite(self.parameters.values.copy_to_host()).all():
            return
        step = int(wrong[0]) if len(wrong) else self.step - 1
        said = losses[step] if len(wrong) else "finite, a parameter is not"
        message = self._said(self.epoch + 1, step + 1, said)
        self._restore(*before)
        raise DivergedError(message)

    def _said(self, epoch, step, loss):
        return (
            f"epoch {epoch}, step {step}: the loss is {loss}: what was learned before this epoch is kept; "
            f"go on with a smaller --rate than {self.plan.rate:g}"
        )

    def look(self):
        """Loss and accuracy on the held-out digits."""
        self._test.forward()
        losses = self._test.losses.copy_to_host().mean(dtype=np.float64)
        return float(losses), float((self.answers() == self.held_out.labels).mean())

    def answers(self):
        """What the network says the held-out digits are, as of the last look."""
        return self._test.said.copy_to_host()

    def _state(self):
        p = self.parameters
        arrays = [a.copy_to_host() for a in (p.values, p.velocities, self._net.losses)]
        return self.epoch, self.step, list(self.history), *arrays

    def _restore(self, epoch, step, history, values, velocities, losses):
        self.epoch, self.step, self.history = epoch, step, history
        self.parameters.restore(values, velocities)
        self._net.losses.copy_to_device(losses)

    def save(self, path):
        """Write a checkpoint; raises StoreError."""
        epoch, step, history, values, velocities, losses = self._state()
        arrays = {"values": values, "velocities": velocities, "losses": losses}
        checkpoint.save(path, self.plan, self.shape, State(epoch, step, self._digits(), history), arrays)

    def _digits(self):
        return len(self.learned), len(self.held_out)

    def resume(self, path, given):
        """Go on from a checkpoint. ``given`` are the options that were asked for: they must be the checkpoint's.

        Only the rate may be another. Raises ValueError naming what does not fit, StoreError.
        """
        plan, state, arrays = checkpoint.load(path, self.shape)
        for name, value in given.items():
            if name != "rate" and getattr(plan, name) != value:
                found = getattr(plan, name)
                raise ValueError(f"--{name} {value}: the checkpoint's run has {found}: leave the option out")
        here, ours = store.shown(path), self._digits()
        if state.digits != ours:
            raise ValueError(f"{here}: is of a run with {state.digits} digits, learned and held out; here are {ours}")
        for name, value, most in (("epoch", state.epoch, plan.epochs), ("step", state.step, self.steps - 1)):
            if value > most:
                raise ValueError(f"{here}: {name} is {value}, must be at most {most}")
        for name, value, wanted in (
            ("epochs in the history", len(state.history), state.epoch),
            ("losses", arrays["losses"].size, self._net.losses.size),
        ):
            if value != wanted:
                raise ValueError(f"{here}: {name}: {value}, must be {wanted}")
        self._restore(state.epoch, state.step, state.history, **arrays)


def planned(path, shape, given):
    """The plan of a checkpoint's run, with the rate that is given, if one is; raises as :func:`checkpoint.load`."""
    plan, _, _ = checkpoint.load(path, shape)
    return replace(plan, **{name: value for name, value in given.items() if name == "rate"})

"""What a training run does, and how far it has come: what a checkpoint says beside its arrays."""

from dataclasses import dataclass, field
from typing import Literal

from common.catalog.schema import Amount, Count, Extent, Positive

from .record import Share

KINDS = ("fused", "layered")


@dataclass(frozen=True)
class Plan:
    """What a run does: all of this, with the digits, decides its bits. ``kernels`` is one of KINDS."""

    seed: Count = 0
    epochs: Extent = 100
    batch: Extent = 32
    rate: Positive = 0.05
    momentum: Share = 0.9
    decay: Amount = 5e-4
    kernels: Literal[KINDS] = KINDS[0]
    changes: bool = True


@dataclass(frozen=True)
class Epoch:
    """What came of an epoch; ``seconds`` without the look at the held-out digits."""

    loss: Amount
    held_out_loss: Amount
    held_out_accuracy: Share
    seconds: Amount


@dataclass(frozen=True)
class State:
    """How far a run has come: whole epochs, steps of the next, what came of each epoch; digits learned, held out."""

    epoch: Count
    step: Count
    digits: tuple[Extent, Extent]
    history: list[Epoch] = field(default_factory=list)

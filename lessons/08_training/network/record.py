"""Records of training, ``results/training/GPU.json``: how a network learned, and how fast, beside PyTorch."""

import base64
import datetime
import math
import platform
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct, field, to_builtins
from numpy.typing import NDArray

from common.catalog import catalog, sources, store
from common.catalog.device import Gpu
from common.catalog.store import Amount, Count, Digest, Extent, Name, Positive
from common.records import records
from common.records.records import Run
from common.run.messages import Timing

SCHEMA = "numba-cuda-workbook/training/1"
FOLDER = "training"
Share = Annotated[float, Meta(ge=0, le=1)]
EAGER, GRAPH = "PyTorch", "PyTorch, graph"
_PACKAGES = ("numba", "numba-cuda", "numpy", "torch", "mlxtend")


class Epoch(Struct, kw_only=True):
    """The mean loss of an epoch's steps, and what came of the held-out digits after it; seconds of the steps."""

    loss: Amount
    held_out_loss: Amount
    held_out_accuracy: Share
    seconds: Amount


class Mistake(Struct, kw_only=True):
    """A held-out digit that was not recognised: its number among all digits, label, answer and pixels (base64)."""

    number: Count
    label: Count
    said: Count
    pixels: str

    def image(self) -> NDArray[np.uint8]:
        """The pixels, row by row; raises ValueError if they are no square."""
        flat = np.frombuffer(base64.b64decode(self.pixels), np.uint8)
        side = math.isqrt(len(flat))
        return flat.reshape(side, side)


class Trained(Struct, kw_only=True):
    """A run of training. ``launches`` are kernels of a step; ``code`` the hashes of the files that it ran."""

    data: Name
    learned: Extent
    held_out: Extent
    seed: int
    batch: Extent
    rate: Positive
    momentum: Share
    decay: Amount
    kernels: Name
    history: Annotated[list[Epoch], Meta(min_length=1)]
    mistakes: list[Mistake]
    run: Run
    code: dict[str, Digest] = field(default_factory=dict)
    launches: Count | None = None


class Speed(Struct, kw_only=True):
    """A step's time on batches of ``batch``; ``layout`` of a library, ``launches`` of the book's kernels."""

    name: Name
    batch: Extent
    timing: Timing
    layout: str = ""
    launches: Count | None = None


class Compared(Struct, kw_only=True):
    """The book's network beside PyTorch's: losses of the same steps, gradients' largest errors, and speeds.

    ``gradients``: by parameter, the largest difference from PyTorch's gradient over the largest gradient.
    """

    batch: Extent
    rate: Positive
    library: Name
    losses: dict[str, list[Amount]]
    gradients: dict[str, dict[str, Amount]]
    speeds: list[Speed]
    run: Run
    code: dict[str, Digest] = field(default_factory=dict)

    def apart(self, name: str) -> float:
        """The largest relative difference of a network's losses from PyTorch's."""
        ours, theirs = (np.array(self.losses[one]) for one in (name, EAGER))
        return float(np.abs(ours / theirs - 1).max())

    def speed(self, name: str, batch: int) -> Speed | None:
        return next((one for one in self.speeds if (one.name, one.batch) == (name, batch)), None)


class Training(Struct, kw_only=True, omit_defaults=True, tag_field="schema", tag=SCHEMA):
    """The record of one GPU."""

    gpu: Gpu
    trained: Trained | None = None
    compared: Compared | None = None


def path_of(slug: str, folder: Path | None = None) -> Path:
    """The record's file, below ``folder`` (default: the user's records)."""
    return (folder or records.OWN) / FOLDER / f"{slug}.json"


def load(slug: str, folder: Path | None = None) -> Training | None:
    """A GPU's record; None if there is none. Raises RecordError naming what is wrong with the file."""
    path = path_of(slug, folder)
    if not path.exists():
        return None
    try:
        return store.convert(store.read_json(path), Training)
    except (store.StoreError, store.SchemaError) as error:
        why = error.why if isinstance(error, store.StoreError) else str(error)
        raise records.RecordError(f"{store.shown(path)}: {why}; move the file away to start anew") from None


def change(gpu: Gpu, entry: Trained | Compared) -> Path:
    """Put an entry in the place of the one before, in this GPU's record; returns the file. Raises StoreError."""
    path = path_of(gpu.slug)
    with store.locked(path.parent):
        record = load(gpu.slug) or Training(gpu=gpu)
        record.gpu = gpu
        setattr(record, type(entry).__name__.lower(), entry)
        store.write_json(path, to_builtins(record))
    return path


def run_now(gpu: Gpu | None) -> Run:
    """When and by what something was measured; without a GPU it was traced."""
    return Run(
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(), driver=gpu.driver if gpu else "",
        cuda=gpu.cuda if gpu else "", packages=sources.versions(_PACKAGES), python=platform.python_version(),
    )  # fmt: skip


def code() -> dict[str, str]:
    """The hashes of the files of the network, and of the steps that it runs, by name."""
    _, network = catalog.trained_network()
    files = Path(__file__).parent.glob("*.py")
    return sources.hashes([*files, *(catalog.find(name).path for name in network.steps)])

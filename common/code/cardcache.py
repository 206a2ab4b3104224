"""Cards of kernels that were compiled before, in the checkout's personal folder ``.workbook/`` (git ignores it).

A card holds as long as the files that its kernel is made of, the packages that compile it and the modules that read
the machine code are the same, byte for byte: it shows source lines, so a comment counts too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from pathlib import Path

from common.book import catalog, packages
from common.book.problems import Problem
from common.book.store import read_json, write
from common.code.messages import CodeCard

FOLDER = catalog.ROOT / ".workbook" / "cards"

_PACKAGES = (
    "numba", "numba-cuda", "llvmlite", "cuda-bindings", "nvidia-nvvm", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-nvdisasm",
)  # fmt: skip
_READERS = ("code", "microscope")  # folders of common whose modules make a card


def entry(path: Path, problem: Problem, architecture: str) -> Path:
    """The file that keeps the cards of this step file for this problem and compute capability."""
    common = catalog.ROOT / "common"
    readers = [_digest(file) for name in _READERS for file in sorted((common / name).glob("*.py"))]
    parts = [str(path.resolve()), problem.shape(), architecture, platform.python_version(), readers]
    parts.append(packages.versions(_PACKAGES))
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return FOLDER / f"{path.stem}-{key[:24]}.json"


def load(kept: Path) -> list[CodeCard] | None:
    """The cards kept in that file; None if there are none or a source file has changed."""
    try:
        data = read_json(kept)
        if any(_digest(Path(name)) != digest for name, digest in data["files"].items()):
            return None
        found: list[CodeCard] = data["cards"]
        return found if data["sum"] == _sum(found) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # not kept, or not by this version, or changed since: it is made anew


def store(kept: Path, cards: list[CodeCard], files: list[str]) -> None:
    """Keep cards and the digests of the files they come from; without a writable checkout nothing is kept."""
    with contextlib.suppress(OSError):
        data = {"files": {name: _digest(Path(name)) for name in files}, "cards": cards, "sum": _sum(cards)}
        write(kept, json.dumps(data))


def _sum(cards: list[CodeCard]) -> str:
    return hashlib.sha256(json.dumps(cards, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

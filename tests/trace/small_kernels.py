"""Small kernels as text, and their traces."""

import re
from pathlib import Path

from common.catalog import catalog, store
from common.trace import trace

HEAD = """
import math
import numpy as np
from numba import cuda, float32, float64, int32, uint32, uint64
from lessons.toolkit.memory import copy1_async, copy4_async, load4, shared_array, store4, wait_async
from lessons.toolkit.unroll import unrolled
"""


BODIES = store.read_toml(Path(__file__).with_name("bodies.toml"))


def sections(name):
    """Title and body of each piece of code, which starts with a comment line, of an entry of ``bodies.toml``."""
    pieces = re.split(r"^# (.+)\n", BODIES[name].strip("\n"), flags=re.MULTILINE)[1:]
    return list(zip(pieces[::2], (body.strip("\n") for body in pieces[1::2]), strict=True))


def named(expected):
    """The kinds of faults in a section's title."""
    kinds = expected.split(":")[0]
    return set() if kinds == "nothing" else set(kinds.split(", "))


def traced(path, problem, constants=None, **options):
    module = catalog.load(path, problem.ladder, constants=constants)
    return trace.run(module, problem, **{"every": True, **options})


def changed(text, changes):
    """The text with each old part replaced by the new one that follows it."""
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return text


def numbered(text, start):
    """The number of the first line that starts with these words."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))


def kinds(found):
    return {fault.kind for fault in found.faults}


def file_of(body, block=32, extra="", grid=1):
    """The text of a step whose kernel of (a, b, c) has this body."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    text = f"{HEAD}\n{extra}\n\n@cuda.jit\ndef kernel(a, b, c):\n{lines}\n\n"
    return text + f"def launch(a, b, c):\n    kernel[{grid}, {block}](a, b, c)\n"

"""Kernels of Hopper's asynchronous machine, as texts: right ones, and what makes them wrong in one place each."""

import functools
from pathlib import Path

import numpy as np
from small_kernels import BODIES

from common.catalog import inputs, problems, reference, store
from lessons.toolkit.maps import Maps

RIGHT = Path(__file__).parent / "hgemm_hopper.py"
PROBLEM = problems.Hgemm(M=72, N=136, K=328)
ONE_BLOCK = problems.Hgemm(M=40, N=120, K=328)  # enough for a mistake: all turns of the slots


@functools.cache
def expected(problem=PROBLEM):
    return reference.expected(problem, *inputs.integers(problem, 0))


TABLES = store.read_toml(Path(__file__).with_name("wrong_hopper.toml"))


def mistakes(kernel):
    """By name: what stands in place of what; the kind of the fault, and the start of the line it names."""
    return {
        name: ([text for pair in one["changes"] for text in pair], one["kind"], one["line"])
        for name, one in TABLES[kernel].items()
    }


WRONG, WRONG_CLUSTERS, WRONG_SLABS = map(mistakes, ("step", "cluster", "slab"))

HANDED = BODIES["handed"]
HEAD = BODIES["head"]
MULTIPLY = BODIES["multiply"]
COPY = BODIES["box"]
UNAWAITED = COPY[: COPY.index("        barrier_wait")]
IM2COL = BODIES["im2col"]
CLUSTER = BODIES["cluster"]
SLAB, REGISTERS, AT_END = (BODIES[name] for name in ("slab", "registers", "at_end"))


def cluster_arguments(turns=4):
    a = np.random.default_rng(2).integers(1, 99, (32, 64 * turns)).astype(np.float16)
    return a, Maps().tiled(a, (16, 64)), np.full((4, 32, 64 * turns), np.nan, np.float16), turns


def changed_slab(name):
    changes, kind, start = WRONG_SLABS[name]
    assert changes[0] in SLAB
    return SLAB.replace(*changes), kind, start

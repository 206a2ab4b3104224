"""A step launched once, on integers, wherever kernels run."""

from types import ModuleType

import numpy as np

from common.catalog import reference
from common.catalog.problems import Problem
from common.check import check, inputs


def is_right(module: ModuleType, problem: Problem) -> bool:
    """Is every output right, and nothing written beside them?"""
    bench = check.Bench(module, problem, {})
    x, weight = inputs.integers(problem, 0)
    bench.load(x, weight)
    bench.y.blank()
    bench.launch()
    return np.array_equal(bench.y.get(), reference.full(problem, x, weight)) and bench.y.trespasses() == []

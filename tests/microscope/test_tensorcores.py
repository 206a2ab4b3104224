"""Tensor cores and copies in groups on the tracer and in the simulator: right, and wrong in many ways."""

from pathlib import Path

import numpy as np
import pytest

from common.book import catalog, problems, reference
from common.measure import check, inputs
from common.microscope import simulator, trace

simulator.install()
RIGHT = Path(__file__).parents[1] / "patterns" / "hgemm_tensor_cores.py"
PROBLEM = problems.Hgemm(M=64, N=128, K=256)


def traced(path):
    return trace.run(catalog.load(path, "hgemm"), PROBLEM, every=True)


def simulated(path):
    """The output of one launch."""
    bench = check.Bench(catalog.load(path, "hgemm"), PROBLEM)
    bench.load(*inputs.integers(PROBLEM, 0))
    bench.y.blank()
    bench.run()
    return bench.y.get()


@pytest.fixture(scope="module")
def expected():
    return reference.expected(PROBLEM, *inputs.integers(PROBLEM, 0))


def test_a_right_kernel_is_right_and_sound(expected):
    found = traced(RIGHT)
    np.testing.assert_array_equal(found.output, expected)
    assert found.faults == []
    np.testing.assert_array_equal(simulated(RIGHT), expected)

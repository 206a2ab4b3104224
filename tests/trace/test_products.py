"""Products of registers that the tracer carries out all at once are what they are one by one."""

import numpy as np
import pytest

from common.catalog import catalog
from common.catalog.problems import Gemm
from common.check import inputs
from common.trace.bench import TracedBench
from common.trace.executor import Executor
from common.trace.trace import Tracer

pytestmark = pytest.mark.usefixtures("traced")
PROBLEM = Gemm(M=5, N=37, K=6)
STEP = """
from numba import cuda, float32, uint32

SIZE, OTHER = 3, 2

@cuda.jit
def kernel(a, b, c):
    n, m = cuda.grid(2)
    x, y, acc = cuda.local.array(6, float32), cuda.local.array(6, float32), cuda.local.array(6, float32)
    for i in range(6):
        acc[i] = float32(0.0)
        x[i] = a[min(m, 4), i]
        y[i] = b[i, min(n, 36)]
    i = j = 0
    one = float32(1.5) * float32(m)
BODY
    if m < c.shape[0] and n < c.shape[1]:
        total = float32(i * 10 + j)
        for t in range(6):
            total += acc[t] * float32(t + 1)
        c[m, n] = total

def launch(a, b, c):
    kernel[(2, 2), (32, 4)](a, b, c)
"""


@pytest.fixture
def outputs(write, monkeypatch):
    """Runs a body; what is written when products are done at once and one by one, and how often they were."""

    def run(body):
        text = STEP.replace("BODY", "\n".join("    " + line for line in body.strip("\n").splitlines()))
        module, tracer = catalog.load(write("gemm_products.py", text), "gemm"), Tracer()
        done, found, faults = [], [], []
        real = Executor.multiplied

        def noted(*given):
            done.append(real(*given))
            return done[-1]

        for at_once in (True, False):
            tried = noted if at_once else lambda *_: False
            monkeypatch.setattr(Executor, "multiplied", tried)
            tracer.forget()
            bench = TracedBench(module, PROBLEM, tracer)
            bench.load(*inputs.normals(PROBLEM, 3))
            bench.y.blank()
            bench.run()
            found.append(bench.y.get().view(np.uint32))
            faults.append([(fault.kind, fault.line) for fault in tracer.faults()])
        assert np.array_equal(*found)
        assert faults[0] == faults[1]
        return done, faults[0]

    return run


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(SIZE):\n    for j in range(OTHER):\n        acc[i * OTHER + j] += x[i] * y[j]",
        "for i in range(6):\n    acc[i] += one * y[5 - i]",
        "for i in range(5):\n    acc[i + 1] += acc[i] * x[i]",  # each sum is a factor of the next
        "for j in range(6):\n    acc[0] += x[j] * y[j]",
        "u = 2\nfor i in range(1, 6, 2):\n    for j in range(u):\n        acc[i] += x[u * j + 1] * one",
    ],
)
def test_done_at_once_they_are_what_they_are_one_by_one(outputs, body):
    done, faults = outputs(body)
    assert faults == []
    assert done
    assert all(done)


@pytest.mark.parametrize(
    "body",
    [
        "if m == 2:\n    for i in range(6):\n        acc[i] += x[i] * y[i]",  # not for all threads
        "for i in range(uint32(6)):\n    acc[i] += x[i] * y[i]",
        "for k in range(3):\n    for i in range(4):\n        acc[i + k // 2] += x[i] * y[k]",
        "for i in range(0):\n    acc[i] += x[i] * y[i]",
        "for i in range(min(m, 3)):\n    acc[i] += x[i] * y[i]",  # another range for each thread
        "for i in range(6):\n    acc[i] += x[i] * b[i, 0]",
        "for i in range(6):\n    acc[i] += x[i] * 2",  # in float64
        "z = cuda.local.array((2, 2, 2), float32)\nfor i in range(8):\n    z[i // 4, i // 2 % 2, i % 2] = x[i % 6]\n"
        "acc[0] = z[1, m % 2, 1]",  # indices of threads between constant ones
    ],
)
def test_what_is_not_that_simple_is_left_to_the_rest(outputs, body):
    done, faults = outputs(body)
    assert faults == []
    assert not any(done)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("for i in range(7):\n    acc[i] += x[0] * y[0]", "outside"),
        ("for i in range(6):\n    acc[i] += x[i - 1] * y[i]", "negative-index"),
        (
            "z, t = cuda.local.array(1, uint32), cuda.shared.array(256, float32)\n"
            "z[0] = 0\nz[0] = t[m]\nacc[0] = x[z[0]]",
            "read-before-write",
        ),
        ("z = cuda.local.array(6, float32)\nfor i in range(6):\n    acc[i] += z[i] * y[i]", "read-before-write"),
    ],
)
def test_what_is_wrong_with_one_is_found(outputs, body, kind):
    _, faults = outputs(body)
    assert kind in {fault for fault, _ in faults}


def test_loop_variables_are_those_of_the_last_turn(outputs):
    done, _ = outputs("for i in range(3):\n    for j in range(0, 6, 4):\n        acc[i] += x[j] * y[i]")
    assert done == [True]

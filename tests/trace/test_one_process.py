"""One process traces a step and compiles it; what it does not know is named."""

import numpy as np
import pytest
from msgspec.structs import replace
from numba import cuda
from numba.cuda import cg, syncthreads, threadIdx
from numba.cuda.cg import this_grid
from numba.cuda.extending import intrinsic
from sampling import one_of_each

from common.catalog import catalog, problems
from common.check import check
from common.machine_code import codegen
from common.trace.state import TraceError
from common.trace.trace import Tracer

STEPS = one_of_each(
    ("gemm_naive", "conv2d_constant_weights", "gemm_wide_loads", "hgemm_tma", "wgrad_split_k"), lambda _: "a step"
)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_traced_right_and_then_compiled(name):
    step, tracer = catalog.find(name), Tracer()
    problem = problems.FIRST[step.ladder]
    module = catalog.load(step.path, step.ladder)
    rules = replace(check.RULES, repeats=1, precision=step.precision, algorithm=step.algorithm)
    verdict = check.check_bench(check.Bench(module, problem, tracer=tracer), rules)
    assert (verdict.findings, tracer.faults()) == ([], [])
    architecture = step.requires if step.requires and step.requires.endswith("a") else "9.0"
    for launch in codegen.distinct(codegen.launches(module, problem)):
        assert ".entry" in codegen.ptx(launch, [architecture])[architecture]


@intrinsic
def of_ones_own(typing_context, value):
    return value(value), None


@cuda.jit
def by_names_alone(a):
    a[threadIdx.x] = threadIdx.x
    syncthreads()


@cuda.jit
def cooperative(a):
    a[31 - cuda.grid(1)] = cuda.grid(1)
    this_grid().sync()
    if cuda.grid(1) == 0:
        cg.this_grid().sync()


@cuda.jit
def with_an_intrinsic(a):
    a[0] = of_ones_own(3)


def line_of(kernel):
    return kernel.py_func.__code__.co_firstlineno + 2


def test_what_is_imported_from_numba_by_name_is_known():
    with Tracer():
        a = cuda.to_device(np.zeros(32, np.float32))
        by_names_alone[1, 32](a)
        assert a.copy_to_host().tolist() == list(range(32))
    with Tracer() as tracer:
        a = cuda.to_device(np.zeros(32, np.float32))
        cooperative[4, 8](a)
        assert a.copy_to_host().tolist() == list(range(31, -1, -1))
        assert [fault.kind for fault in tracer.faults()] == ["divergent-barrier"]


def test_what_the_tracer_does_not_know_is_named_with_its_line():
    said = f"line {line_of(with_an_intrinsic)}: of_ones_own is not known to the tracer"
    with Tracer(), pytest.raises(TraceError, match=said):
        with_an_intrinsic[1, 32](cuda.to_device(np.zeros(32, np.float32)))


def test_kernels_that_count_at_barriers_have_no_engines():
    """numba.cuda has a module that is called as one of Hopper's helpers."""
    with Tracer() as tracer:
        by_names_alone[1, 32](cuda.to_device(np.zeros(32, np.float32)))
        (executor,) = tracer._executors.values()
    assert not executor.has_engines

"""A check and a trace name the same line for the same mistake, in every wrong kernel."""

import os

import mutants
import pytest
from sampling import some

from common.catalog import catalog, problems
from common.check import run
from common.explain.faults import telling
from common.run import isolate
from common.run.messages import Check
from common.trace.messages import Trace, TraceOptions

PATIENCE = 60.0
# Two do not end; of one, nothing is written where a semaphore holds something, and values are told first.
LEFT_OUT = {"gemm_endless", "gemm_shared_ticket_assumed_zero", "gemm_semaphore_assumed_zero"}
KERNELS = [kernel for kernel in mutants.everything().values() if kernel.name not in LEFT_OUT]
FAULTY = 45  # of them at the first shape of their ladder
if not os.environ.get("WORKBOOK_ALL"):
    KERNELS = some(KERNELS, 9)
    FAULTY = 4


def problem_of(kernel):
    """Where the mistake shows if the kernel says which line it is in, else the first shape of its ladder."""
    return kernel.shapes[0] if kernel.line else problems.FIRST[kernel.ladder]


@pytest.fixture(scope="module")
def told():
    """By kernel in which a trace finds a fault: what a check says, and the first of those faults."""
    asked = [Trace(**place(kernel), options=TraceOptions(every=True)) for kernel in KERNELS]
    traced = {}
    for kernel, (_, result) in zip(KERNELS, isolate.run(asked, True, PATIENCE), strict=True):
        seen = result.trace.faults if result.trace is not None else []
        if seen:
            traced[kernel.name] = min(seen, key=telling)
    kernels = [kernel for kernel in KERNELS if kernel.name in traced]
    asked = [Check(**place(kernel), engine="traced", depth="once", algorithm=kernel.algorithm) for kernel in kernels]
    found = {}
    for kernel, (_, result) in zip(kernels, isolate.run(asked, True, PATIENCE), strict=True):
        step = next(one for one in catalog.steps() if one.ladder == kernel.ladder)
        (outcome,) = run._agreed(step, [run.Outcome.of(step, problem_of(kernel), None, result)], True, kernel.path)
        found[kernel.name] = outcome, traced[kernel.name]
    return found


def place(kernel):
    return {"ladder": kernel.ladder, "path": str(kernel.path), "shape": problem_of(kernel).shape()}


def test_a_check_and_a_trace_tell_the_same(told):
    assert len(told) >= FAULTY
    apart = {}
    for name, (outcome, traced) in told.items():
        first = next(iter(outcome.faults), None)
        if outcome.fine or first is None or (first.kind, first.line) != (traced.kind, traced.line):
            apart[name] = outcome.status, first, traced
    assert apart == {}


def test_a_marked_line_of_a_wrong_kernel_is_the_one_that_is_told(told):
    marked = {kernel.name: kernel.line for kernel in KERNELS if kernel.line}
    assert {name: told[name][1].line for name in marked} == marked

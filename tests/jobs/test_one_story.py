"""A check and a trace name the same line for the same mistake, in every wrong kernel."""

import os
from pathlib import Path

import classes
import pytest
from sampling import some

from common.catalog import catalog, problems
from common.explain.faults import Fault, telling
from common.jobs import run
from common.jobs.messages import Check
from common.run import isolate
from common.trace.messages import Trace, TraceOptions

HERE = Path(__file__).parents[1]
PATIENCE = 60.0
ENDLESS = {"endless", "endless_constant", "gemm_endless", "gemm_shared_ticket_assumed_zero"}
FILES = sorted((HERE / "wrong_kernels").glob("*.py"))
FILES = [path for path in FILES if path.stem not in ENDLESS]
FAULTY = 55  # of them at the first shape of their ladder
if not os.environ.get("WORKBOOK_ALL"):
    FILES = some(FILES, 9)
    FAULTY = 8


def ladder_of(path):
    return path.stem.partition("_")[0] if path.parent.name == "wrong_kernels" else "gemm"


def problem_of(path):
    """Where the mistake shows if the file says which line it is in, else the first shape of its ladder."""
    if path.parent.name == "wrong_kernels" and here(path):
        return classes.read(path).shapes[0]
    return problems.FIRST[ladder_of(path)]


def here(path):
    """The line of a file that must be named, None if it marks none."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.endswith("# <- here")), None)


@pytest.fixture(scope="module")
def told():
    """By file in which a trace finds a fault: what a check says, and the first of those faults."""
    places = {}
    for path in FILES:
        shape = problem_of(path).shape()
        places[path] = {"ladder": ladder_of(path), "path": str(path), "shape": shape}
    asked = [Trace(**place, options=TraceOptions(every=True)) for place in places.values()]
    traced = {}
    for path, (_, result) in zip(FILES, isolate.run(asked, True, PATIENCE), strict=True):
        seen = [Fault.of(one) for kernel in result.get("trace", {}).get("kernels", []) for one in kernel["faults"]]
        if seen:
            traced[path] = min(seen, key=telling)
    asked = [Check(**places[path], engine=engine, depth="once") for path in traced for engine in ("traced",)]
    results = [result for _, result in isolate.run(asked, True, PATIENCE)]
    found = {}
    for number, (path, fault) in enumerate(traced.items()):
        step = next(one for one in catalog.steps() if one.ladder == ladder_of(path))
        problem = problem_of(path)
        both = [run.Outcome(step, problem, None, result) for result in results[number : number + 1]]
        (outcome,) = run._agreed(step, both, True, path)
        found[path.stem] = outcome, fault
    return found


def test_a_check_and_a_trace_tell_the_same(told):
    assert len(told) >= FAULTY
    apart = {}
    for name, (outcome, traced) in told.items():
        first = next(iter(outcome.faults), None)
        if outcome.fine or first is None or (first.kind, first.line) != (traced.kind, traced.line):
            apart[name] = outcome.status, first, traced
    assert apart == {}


def test_a_marked_line_of_a_wrong_kernel_is_the_one_that_is_told(told):
    marked = [path for path in FILES if path.parent.name == "wrong_kernels" and here(path)]
    assert {path.stem: told[path.stem][1].line for path in marked} == {path.stem: here(path) for path in marked}

"""Every mistake is found and called what it is: ``tests/mutants`` holds a wrong kernel for each."""

import os
import random
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import classes
import mutants
import pytest
from sampling import DAY, one_of_each, some

from common.catalog import catalog, problems, store
from common.catalog.problems import RAGGED, Gemm
from common.check import run, tasks
from common.explain import diagnose
from common.explain.faults import telling
from common.report.table import Table, markdown
from common.run import isolate
from common.run.messages import Check
from common.trace.messages import Trace, TraceOptions

pytestmark = pytest.mark.usefixtures("traced")

COUNT = 375  # so that none goes missing unnoticed
KINDS = (
    "wrote_outside", "modified_input", "unwritten", "nan", "wrong", "imprecise", "stale", "unstable", "unsound",
    "refused",
)  # fmt: skip
ENDED = ("crashed", "timed_out", "unusable")  # what became of a task that has no verdict
PATIENCE = 120.0
GPU_LIMIT = 15.0  # of an endless kernel, its compilation included
# Of the kernels of a class a run tries so many, others each day, but no slow one; python tests/classes.py tries all.
DRAWN = 2
SLOW = {
    "conv3d_index_in_an_exception", "conv3d_no_barrier_before_next_taps", "gemm_list_of_partial_sums",
    "gemm_plain_python_helper", "gemm_product_of_slices", "gemm_rows_along_z_once_more",
    "gemm_shared_ticket_assumed_zero", "gemm_sum_of_a_generator",
    "hconv3d_corner_beyond_the_engine", "hconv3d_one_row_of_blocks_more", "hconv3d_stride_beyond_the_engine",
    "igemm_rows_of_the_first_consumer",
}  # fmt: skip


@dataclass(frozen=True)
class Expectation:
    """The kind, or kinds, and message that a finding must have."""

    kind: str
    says: str

    @property
    def kinds(self):
        return self.kind.split(" or ")

    def met_by(self, findings):
        return any(kind in self.kinds and re.search(self.says, message) for kind, message in findings)


def require(findings, *expected):
    """The first finding has a kind that is expected, and any has the message, too."""
    assert findings, "nothing was found"
    assert findings[0][0] in {kind for one in expected for kind in one.kinds}, findings
    assert any(one.met_by(findings) for one in expected), (expected, findings)


CORPUS = classes.corpus()
BASES = sorted(path.stem for path in (mutants.FOLDER / "bases").glob("*.py"))
FILES = [kernel for kernel in mutants.everything().values() if kernel.expect]


def traced(kernel):
    """What the tracer is to say."""
    return Expectation(*kernel.expect)


def on_any(kernel):
    """What a check with a GPU may say: the tracer is asked as well, and its fault is told first."""
    return [Expectation(*one) for one in (kernel.expect, kernel.on_gpu) if one]


def task(kernel, problem, **options):
    precision = catalog.said(kernel.path, kernel.text)["precision"]
    place = {"path": str(kernel.path), "ladder": kernel.ladder, "shape": problem.shape()}
    return Check(**place, precision=precision, algorithm=kernel.algorithm, **options)


def findings(kernel, problem, repeats=1):
    return answer(tasks.check_task(task(kernel, problem, engine="traced", depth="usual", repeats=repeats)))


def answer(result):
    """A child's result as findings."""
    if result.status in ("right", "wrong"):
        return [(finding.kind, finding.message) for finding in result.findings]
    return [(result.status, result.message)]


def with_kind(*kinds):
    return [kernel for kernel in FILES if traced(kernel).kind in kinds]


def each(kernels):
    """Parametrise a test over wrong kernels."""
    return pytest.mark.parametrize("kernel", [pytest.param(kernel, id=kernel.name) for kernel in kernels])


# --- the collection ---


def test_the_collection_is_complete():
    assert len(mutants.everything()) == COUNT
    assert Counter(kernel.kind for kernel in CORPUS) == classes.SIZES
    assert set(classes.CLASSES) == set(classes.SIZES)
    tables = store.read_toml(mutants.FOLDER / "mutants.toml")
    assert tables.keys() == {*BASES, *mutants.STEPS, *mutants.SOLVED, mutants.WHOLE}  # and none is there for nothing
    assert tables[mutants.WHOLE].keys() == {path.stem for path in (mutants.FOLDER / "whole").glob("*.py")}


def test_every_kind_of_finding_has_a_kernel():
    expected = {kind for kernel in FILES for one in on_any(kernel) for kind in one.kinds}
    assert expected | {"refused"} == {*KINDS, *ENDED}  # this one has a class


@pytest.mark.parametrize("find", ["acc = 1", "float32"])
def test_a_change_of_what_is_not_there_once_names_the_kernel_and_the_text(find):
    with pytest.raises(ValueError, match=f"gemm_x: must be in its base exactly once: '{find}'"):
        mutants.read("gemm_one_thread_each", "gemm_x", mistake="Is wrong.", expect=["nan", ""], changes=[[find, ""]])


@pytest.mark.parametrize("entry", [{"mistake": "Is wrong."}, {"mistake": "is", "expect": ["nan", ""]}])
def test_a_kernel_that_says_too_little_is_named(entry):
    with pytest.raises(ValueError, match="gemm_x: must say its mistake"):
        mutants.read("gemm_one_thread_each", "gemm_x", **entry)


@pytest.mark.parametrize("base", some(BASES, 14, 2))
def test_a_base_is_right_and_meets_no_expectation(base):
    kernel = mutants.read(base, f"{base}_unchanged", mistake="Nothing.", shown={"class": "none"})
    for problem in RAGGED[kernel.ladder][:2]:
        assert findings(kernel, problem) == []


def test_an_expectation_fails_on_another_kind_or_message():
    expected = Expectation("nan", "adds to")
    require([("nan", "the kernel adds to c"), ("wrong", "5 of 9")], expected)
    for found in ([("wrong", "5 of 9"), ("nan", "adds to c")], [("nan", "1 of 9")], [("wrong", "adds to c")], []):
        with pytest.raises(AssertionError):
            require(found, expected)


# --- those that say which finding comes first ---


SEEN = with_kind(*KINDS)


@each(one_of_each(SEEN, lambda kernel: (kernel.ladder, traced(kernel).kind)))
def test_the_mistake_is_found_and_named(kernel):
    # launches on equal inputs are compared only where that is the point
    repeats = 2 if traced(kernel).kind == "unstable" else 1
    found = []
    for problem in RAGGED[kernel.ladder]:
        found += findings(kernel, problem, repeats)
        if traced(kernel).met_by(found):
            break
    require(found, traced(kernel))


def test_a_kernel_without_a_verdict_says_why():
    kernels = some(with_kind("crashed", "unusable"), 3, 2)
    asked = [task(kernel, RAGGED[kernel.ladder][0], repeats=1) for kernel in kernels]
    for kernel, (_, result) in zip(kernels, isolate.run(asked, True, PATIENCE), strict=True):
        require(answer(result), traced(kernel))


def test_an_endless_kernel_is_stopped_and_the_rest_goes_on():
    (kernel,) = with_kind("timed_out")
    problem = Gemm(M=1, N=1, K=1)
    other, endless = task(mutants.everything()["gemm_no_launch"], problem), task(kernel, problem, seconds=1.0)
    (_, stopped), (_, last) = isolate.run([endless, other], True, PATIENCE)
    require(answer(stopped), traced(kernel))
    assert last.status == "unusable"


@pytest.mark.parametrize(("name", "problem"), [
    ("gemm_square_only", Gemm(M=16, N=16, K=16)), ("gemm_multiples_of_16_only", Gemm(M=16, N=32, K=16)),
    ("gemm_whole_k_tiles_only", Gemm(M=5, N=7, K=32)),
])  # fmt: skip
def test_a_shape_that_suits_the_mistake_does_not_show_it(name, problem):
    # so it is the ragged shapes that find it
    assert findings(mutants.everything()[name], problem) == []


# --- class by class ---


@pytest.mark.parametrize("kind", classes.CLASSES)
def test_a_check_finds_the_class(kind):
    kernels = [kernel for kernel in CORPUS if kernel.kind == kind]
    if not os.environ.get("WORKBOOK_ALL"):
        quick = [kernel for kernel in kernels if kernel.name not in SLOW]
        kernels = random.Random(DAY).sample(quick, min(DRAWN, len(quick)))
    # of a kernel for the GPU, what compiling it says comes first
    found = classes.compiled_elsewhere(kernels)
    # what wrong values suggest is of the kernels above, and of tests/explain
    with warnings.catch_warnings(), mock.patch.object(diagnose, "explain", return_value=""):
        warnings.simplefilter("ignore")  # as in a process of its own, where they are only printed
        for kernel in kernels:
            if found.get(kernel.name, {"status": "right"})["status"] == "right":
                found[kernel.name] = classes.verdict(kernel, seed=0)
    print(classes.table(kernels, found))
    passing = {kernel.name for kernel in kernels if found[kernel.name]["status"] == "right"}
    assert passing == classes.PASSING & {kernel.name for kernel in kernels}


def test_a_loop_that_hangs_on_what_nobody_wrote_is_ended_and_told():
    kernel = mutants.everything()["conv3d_dynamic_shared_index_assumed_zero"]
    ((kind, message),) = findings(kernel, RAGGED["conv3d"][0])
    assert kind == "crashed"
    assert re.search(r"\[\d+\], which nothing has written, is read, and a loop goes on", message)


# --- on a GPU ---


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
def test_the_gpu_shows_each_mistake():
    # one child process for each shape, as long as one is needed; some kinds each day
    kinds = one_of_each(FILES, lambda kernel: (kernel.expect[0], bool(kernel.on_gpu)))
    tried = some(kinds, len(kinds), 4)
    found = {kernel.name: [] for kernel in tried}
    for number in range(max(map(len, RAGGED.values()))):
        for seconds, endless in ((PATIENCE, False), (GPU_LIMIT, True)):
            kernels = [
                kernel
                for kernel in tried
                if (traced(kernel).kind == "timed_out") == endless
                and number < len(RAGGED[kernel.ladder])
                and not any(one.met_by(found[kernel.name]) for one in on_any(kernel))
            ]
            asked = [task(kernel, RAGGED[kernel.ladder][number]) for kernel in kernels]
            for kernel, (_, result) in zip(kernels, isolate.run(asked, False, seconds), strict=True):
                found[kernel.name] += answer(result)
    apart = {}
    for kernel in tried:
        try:
            require(found[kernel.name], *on_any(kernel))
        except AssertionError as error:
            apart[kernel.name] = str(error)
    assert apart == {}


# --- a check and a trace name the same line for the same mistake ---


# Two do not end; of one, nothing is written where a semaphore holds something, and values are told first.
LEFT_OUT = {"gemm_endless", "gemm_shared_ticket_assumed_zero", "gemm_semaphore_assumed_zero"}
TOLD = [kernel for kernel in mutants.everything().values() if kernel.name not in LEFT_OUT]
FEWEST = 45  # of them at the first shape of their ladder
if not os.environ.get("WORKBOOK_ALL"):
    TOLD = some(TOLD, 18)
    FEWEST = 0  # as the day's sample has it


def problem_of(kernel):
    """Where the mistake shows if the kernel says which line it is in, else the first shape of its ladder."""
    return kernel.shapes[0] if kernel.line else problems.FIRST[kernel.ladder]


@pytest.fixture(scope="module")
def told():
    """By kernel in which a trace finds a fault: what a check says, and the first of those faults."""
    asked = [Trace(**place(kernel), options=TraceOptions(every=True)) for kernel in TOLD]
    traced = {}
    for kernel, (_, result) in zip(TOLD, isolate.run(asked, True, PATIENCE), strict=True):
        seen = result.trace.faults if result.trace is not None else []
        if seen:
            traced[kernel.name] = min(seen, key=telling)
    kernels = [kernel for kernel in TOLD if kernel.name in traced]
    asked = [Check(**place(kernel), engine="traced", depth="once", algorithm=kernel.algorithm) for kernel in kernels]
    found = {}
    for kernel, (_, result) in zip(kernels, isolate.run(asked, True, PATIENCE), strict=True):
        step = next(one for one in catalog.steps() if one.ladder == kernel.ladder)
        (outcome,) = run.agreed([run.Outcome.of(step, problem_of(kernel), None, result)])
        found[kernel.name] = outcome, traced[kernel.name]
    return found


def place(kernel):
    return {"ladder": kernel.ladder, "path": str(kernel.path), "shape": problem_of(kernel).shape()}


def test_a_check_and_a_trace_tell_the_same(told):
    assert len(told) >= FEWEST
    apart = {}
    for name, (outcome, traced) in told.items():
        first = next(iter(outcome.faults), None)
        # a check's inputs cannot be written; in a trace that is a race with who reads them
        expected = ("input-written" if name == "gemm_modified_input" else traced.kind), traced.line
        if outcome.fine or first is None or (first.kind, first.line) != expected:
            apart[name] = outcome.status, first, traced
    assert apart == {}


def test_a_marked_line_of_a_wrong_kernel_is_the_one_that_is_told(told):
    marked = {kernel.name: kernel.line for kernel in TOLD if kernel.line}
    assert {name: told[name][1].line for name in marked} == marked


# --- the table of classes on the page lessons/CHECK.md; WRITE_CLASSES=1 writes it anew ---


PAGE = Path(__file__).resolve().parents[2] / "lessons/CHECK.md"
BLOCK = re.compile(r"(<!-- classes -->\n)(.*?)(<!-- end classes -->)", re.DOTALL)
MEANS = {
    "shapes": "wrong at some shapes alone", "values": "wrong for some operands alone",
    "state": "something is kept from one launch, shape or set of arrays to the next",
    "order": "right in one order of blocks or threads", "zero": "takes memory for zero that nobody has written",
    "sound": "races, barriers, unset reads, copies not waited for", "gpu": "runs as Python, and not on a GPU",
    "refusal": "refuses what it should compute",
}  # fmt: skip


def page_table():
    """Kernels tried and found by class, then what each of those that pass does."""
    passing = {name: mutants.everything()[name] for name in classes.PASSING}
    rows = []
    for kind in classes.CLASSES:
        missed = sum(kernel.kind == kind for kernel in passing.values())
        rows.append([f"{kind}: {MEANS[kind]}", str(classes.SIZES[kind]), str(classes.SIZES[kind] - missed)])
    rows.append(["all", str(sum(classes.SIZES.values())), str(sum(classes.SIZES.values()) - len(passing))])
    said = sorted(f"- `{name}`: {kernel.mistake}" for name, kernel in passing.items())
    after = ["These still pass:", "", *said] if said else ["None of them passes."]
    return "\n".join([markdown(Table(["class", "tried", "found"], rows)), "", *after]) + "\n"


def test_the_page_says_what_is_found_and_what_passes():
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("WRITE_CLASSES"):
        page = BLOCK.sub(lambda found: found[1] + page_table() + found[3], page)
        PAGE.write_text(page, encoding="utf-8")
    assert BLOCK.search(page)[2] == page_table()

"""How a check of a step runs: engine by engine, each with a module of its own, and no longer than it must."""

import random
import threading
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import kernels
import pytest
from msgspec.structs import replace as result_with
from processes import shown
from sampling import one_of_each, some_days

from common.catalog import catalog, device, problems, sources
from common.check import check, loading, plan, run
from common.cli import main
from common.commands import console
from common.commands.console import RIGHT
from common.edit import loop
from common.explain.faults import Fault
from common.records import records
from common.report import tables
from common.run import isolate
from common.run.messages import Check, Compile, Outcome, StepResult, Time, at
from common.timing import measuring, timing

FIRST = problems.FIRST["gemm"]
PATIENCE = 60.0


def text(before="", after="pass", first="pass"):
    return kernels.gemm(f"{after}\n        c[m, n] = acc", before, first)


def asked(path, engine, depth="once"):
    return result_with(plan.case(FIRST, engine, depth), path=str(path), repeats=1)


def test_an_exception_of_the_kernel_is_told_before_what_it_left_unwritten(write):
    path = write("gemm_raising.py", text(after='if m == 3:\n            raise ValueError("no row 3")'))
    ((_, result),) = isolate.run([asked(path, "traced")], True, PATIENCE)
    assert result.status == "wrong"
    assert [finding.kind for finding in result.findings] == ["unsound", "unwritten"]
    assert result.findings[0].message.startswith("ValueError('no row 3') is raised")
    line = path.read_text().splitlines().index('            raise ValueError("no row 3")') + 1
    assert [(fault.kind, fault.line) for fault in result.faults][:1] == [("raises", line)]


def test_what_a_trace_saw_nobody_write_takes_few_more_launches(write):
    """One in the opposite order; and one in a module of its own, as another shape came before."""
    counted = "\n\n_launch = launch\n\n\ndef launch(a, b, c):\n    print('launched')\n    _launch(a, b, c)\n"
    path = write("gemm_unwritten.py", kernels.gemm("if m != 30:\n            c[m, n] = acc") + counted)
    larger = result_with(asked(path, "traced"), shape=problems.Gemm(M=31, N=5, K=6).shape())
    for tasks, launches in ([larger], 2), ([asked(path, "traced"), larger], 3):
        *_, (_, result) = isolate.run(tasks, True, PATIENCE)
        assert [finding.kind for finding in result.findings] == ["unwritten"]
        assert result.prints == launches


@pytest.mark.parametrize("ladder", ["gemm", "dgrad"])
def test_processes_share_the_traces_and_two_that_follow_each_other_stay_together(ladder):
    cases = plan.cases(ladder, False, 3)
    check = run._StepCheck(next(one for one in catalog.everything() if one.ladder == ladder), True, None, None)
    check.lay_out(3, False, False, compiled=False)
    assert check.tasks == [task for group in check.groups for task in group]
    assert [task.problem for task in check.tasks] == [case.problem for case in cases]
    numbers = {id(task): number for number, task in enumerate(check.tasks)}
    takers = [check.shared() for _ in range(2)]
    taken = [[], []]
    for turn in range(2 * len(cases)):
        taken[turn % 2] += [numbers[id(task)] for task in islice(takers[turn % 2], 1)]
    assert sorted(taken[0] + taken[1]) == [*range(len(cases))]
    assert min(map(len, taken)) > 10
    followers = [number for number, case in enumerate(cases) if case.follows]
    assert followers
    for number in followers:
        own = next(own for own in taken if number in own)
        assert own[own.index(number) - 1] == number - 1


@some_days(5)
def test_what_does_not_compile_is_not_tried_any_further(write):
    # each launch takes its time, so that all cases together would take minutes
    path = write("gemm_dictionary.py", text(after="parts = {0: acc}", first="time.sleep(5)"))
    outcomes = list(run.check_steps([catalog.find("gemm_naive")], True, file=path))
    assert outcomes[0].only_compiled, outcomes[0]
    assert outcomes[0].status == "crashed"
    assert len(outcomes) < 10 < len({case.problem for case in plan.cases("gemm", False, 0)})


AS_IT_IS = "naive.launch(a, b, c)"
OTHERWISE = "for change in range(2):\n        naive.gemm_naive[(1, 1), (8, 8 << change)](a, b, c)"
CHANGED = "naive.gemm_naive = naive.cuda.jit(lambda a, b, c: None)\n"


@pytest.mark.parametrize(
    ("before", "launch", "compiled"),
    [("", AS_IT_IS, 0), ("", OTHERWISE, 1), (CHANGED, AS_IT_IS, 1)],
    ids=["as it is", "another launch", "another kernel"],
)
def test_what_another_step_launches_itself_is_not_compiled_unless_something_is_edited(
    write, monkeypatch, before, launch, compiled
):
    first = 'import importlib\n\nnaive = importlib.import_module("lessons.01_naive.gemm_naive")\n'
    path = write("gemm_as_before.py", f"{first}{before}\n\ndef launch(a, b, c):\n    {launch}\n")
    for edited, found in ({"gemm_naive"}, 1), ({"grid"}, 1), (set(), compiled):
        monkeypatch.setattr(sources, "edited", lambda file, edited=edited: file.stem in edited)
        check = run._StepCheck(catalog.find("gemm_naive"), True, FIRST, path)
        check.lay_out(0, False, False, compiled=True)
        ((_, result),) = isolate.run(check.tasks[:1], True, PATIENCE)
        assert result.status == "right", result.message
        assert len(result.kernels) == found


def test_what_is_too_large_without_a_gpu_is_said_at_once(monkeypatch):
    monkeypatch.setattr("common.run.isolate.Child", lambda *_: pytest.fail("a process is started"))
    (outcome,) = run.check_steps([catalog.find("gemm_naive")], True, problems.Gemm(M=4096, N=4096, K=4096))
    assert outcome.status == "unjudged"
    assert "one launch takes the tracer at least 69 s, more than 20 s" in outcome.reasons[0]
    assert console.exit_code([outcome], asked=True) == 2


def test_what_the_tracer_does_not_know_is_not_judged_and_named_with_its_line_at_once(write):
    path = write("gemm_unknown.py", text(after="with open('unknown') as file:\n            pass"))
    outcomes = list(run.check_steps([catalog.find("gemm_naive")], True, file=path, compiled=False))
    assert {one.status for one in outcomes} == {"unjudged"}
    assert len(outcomes) < len({case.problem for case in plan.cases("gemm", False, 0)}) / 2
    line = next(n for n, one in enumerate(path.read_text().splitlines(), 1) if "unknown" in one)
    assert f"line {line}" in outcomes[0].message
    assert console.exit_code(outcomes, asked=False) != RIGHT


def test_what_no_gpu_does_as_it_is_meant_is_a_mistake_with_its_line(write):
    path = write("gemm_constant.py", text("import numpy as np\nTABLE = np.ones(3)\n", "TABLE[0] = 1.0"))
    ((_, result),) = isolate.run([asked(path, "traced")], True, PATIENCE)
    line = next(n for n, one in enumerate(path.read_text().splitlines(), 1) if "TABLE[0]" in one)
    assert (result.status, result.faults[0].line) == ("crashed", line)


@pytest.fixture
def of_hopper(monkeypatch):
    """A step that requires another GPU than there is; no process is started, the tasks are listed."""
    tasks = []

    def answer(given, *_):
        for task in given:
            tasks.append(task)
            engine = task.engine if isinstance(task, Check) else None
            yield task, StepResult(status="right", findings=[], engine=engine)

    monkeypatch.setattr(isolate, "run", answer)
    monkeypatch.setattr(run, "inspect_device", lambda: (None, 8 << 30))
    monkeypatch.setattr(device, "compute_capability", lambda: "8.6")
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    monkeypatch.setattr(device, "require_gpu", lambda what: None)
    return replace(catalog.find("gemm_naive"), requires="9.0a"), tasks


def test_what_this_gpu_cannot_run_is_checked_without_it(of_hopper):
    step, tasks = of_hopper
    assert all(outcome.fine for outcome in run.check_steps([step], False, seed=3))
    assert isinstance(tasks[0], Compile)
    assert {task.engine for task in tasks[1:] if isinstance(task, Check)} == {"traced"}
    tasks.clear()
    list(run.check_steps([replace(step, requires="8.0")], False, seed=3))
    assert {task.engine for task in tasks if isinstance(task, Check)} == {"traced", "gpu"}


def test_what_this_gpu_cannot_run_is_listed_with_the_reason(of_hopper):
    step, tasks = of_hopper
    other = catalog.find("gemm_shared_tile")
    found = list(measuring.measure([(step, "gemm-4096"), (other, "gemm-4096")]))
    assert [outcome.step.name for outcome in found] == ["gemm_shared_tile", "gemm_naive"]
    assert found[-1].status == "refused"
    assert found[-1].message == "requires compute capability 9.0a: this GPU has 8.6"
    assert not any(getattr(task, "step", "") == step.name for task in tasks)
    assert [outcome.elsewhere for outcome in found] == [False, True]
    assert console.exit_code(found, asked=True) == RIGHT  # it is no failure
    refused = run.Outcome(step=step, problem=FIRST, status="refused", message="this shape")
    assert console.exit_code([refused], asked=True) != RIGHT


def test_a_step_is_compiled_for_what_it_runs_on(of_hopper):
    step, tasks = of_hopper
    steps = [replace(step, requires=requires) for requires in ("8.0", "9.0a", "12.0a", None)]
    list(run.compile_steps(steps, ("7.5", "8.0", "9.0", "10.0"), False))
    assert sorted(task.architectures for task in tasks) == [
        ["12.0a"], ["7.5", "8.0", "9.0", "10.0"], ["8.0", "9.0", "10.0"], ["9.0a"],
    ]  # fmt: skip
    tasks.clear()
    list(run.check_steps(steps[2:3], True, shape=FIRST))
    assert tasks[0].architectures == ["12.0a"]


# --- what a card has no room for ---


@pytest.fixture
def small_card(monkeypatch):
    """A GPU that answers as it is told to, and in which order it was asked."""
    asked = []

    def answer(given, without_gpu, seconds, *stops):
        for task in given:
            if any(stop.is_set() for stop in stops):
                return
            if isinstance(task, Check):
                asked.append(task)
            if getattr(task, "engine", "") == "gpu" and task.depth == "large":
                room = {"needed_bytes": 11 << 30, "free_bytes": 7 << 30}
                yield task, StepResult(status="unjudged", message="full", **room)
            else:
                engine = getattr(task, "engine", None) or "gpu"
                yield task, StepResult(status="right", findings=[], engine=engine)

    monkeypatch.setattr(isolate, "run", answer)
    monkeypatch.setattr(run, "inspect_device", lambda: (None, 8 << 30))
    monkeypatch.setattr(device, "compute_capability", lambda: "8.6")
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    return asked


def test_the_largest_shapes_come_last_and_hold_nothing_back_where_there_is_no_room(small_card, capsys):
    asked = small_card
    steps = [catalog.find("gemm_naive"), catalog.find("gemm_shared_tile")]
    outcomes = list(run.check_steps(steps, False, seed=3))
    large = [task for task in asked if task.depth == "large"]
    for step in steps:
        mine = [task for task in asked if task.engine == "gpu" and task.step == step.name]
        assert mine[-3:] == [task for task in large if task.step == step.name]
    left = [outcome for outcome in outcomes if outcome.left_out]
    assert len(left) == 6
    assert all(outcome.fine for outcome in outcomes)
    assert loop.told(outcomes) == []
    assert console.exit_code(outcomes, asked=False) == RIGHT
    assert console.exit_code(left, asked=True) != RIGHT  # nothing was shown
    console.say_left_out(outcomes)
    said = capsys.readouterr().out
    assert said == "left out for lack of memory: 6; 11.8 GB needed, 7.5 free\n"


def test_a_step_that_is_not_right_is_not_tried_at_the_largest_shapes(small_card, monkeypatch):
    asked = small_card
    ask = isolate.run

    def wrong(given, *rest):
        for task, result in ask(given, *rest):
            first = isinstance(task, Check) and task.shape == FIRST.shape()
            yield task, result_with(result, status="wrong") if first else result

    monkeypatch.setattr(isolate, "run", wrong)
    list(run.check_steps([catalog.find("gemm_naive")], False, seed=3))
    assert not [task for task in asked if task.depth == "large"]


def test_what_a_gpu_alone_found_gets_its_line_from_a_trace(small_card, monkeypatch):
    ask, traced = isolate.run, []
    driver, outside = Fault("illegal-address", "x", 40), Fault("outside", "a[9]", 20)

    def crashing(given, *rest):
        for task, result in ask(given, *rest):
            if getattr(task, "engine", "") == "gpu":
                result = StepResult(status="crashed", message="CUDA_ERROR_ILLEGAL_ADDRESS", faults=[driver])
            elif task.seconds == run.EXPLAIN_SECONDS:
                traced.append(task)
                result = result_with(result, status="wrong", faults=[outside])
            yield task, result

    monkeypatch.setattr(isolate, "run", crashing)
    wrong = [one for one in run.check_steps([catalog.find("gemm_naive")], False, seed=3) if not one.fine]
    (explained,) = traced
    assert explained.problem in [one.problem for one in wrong]
    assert [one.faults for one in wrong if one.problem == explained.problem] == [[outside]]
    driver = replace(driver, kind="unknown-name")  # which has its line
    list(run.check_steps([catalog.find("gemm_naive")], False, seed=3))
    assert len(traced) == 1


@pytest.mark.parametrize(("free", "spared"), [(0, True), (10**6, True), (9 * 10**9, False)])
def test_a_task_is_left_out_where_memory_is_short_but_not_where_it_takes_too_much_itself(monkeypatch, free, spared):
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    monkeypatch.setattr(device, "free_bytes", lambda: free)
    monkeypatch.setattr(loading, "let_go", lambda: None)

    def full(task):
        raise RuntimeError("[CUresult.CUDA_ERROR_OUT_OF_MEMORY] Call to cuMemAlloc results in")

    task = Check(path="x.py", ladder="gemm", shape={"M": 4096, "N": 4096, "K": 4096})
    if not spared:
        with pytest.raises(RuntimeError):
            loading.spared(full)(task)
        return
    result = loading.spared(full)(task)
    assert (result.status, result.free_bytes) == ("unjudged", free)
    assert result.needed_bytes == int(1.75 * 3 * 4 * 4096**2)
    assert result.message == "0.4 GB are needed, 0.0 are free"


# --- sizes, and rows that are timed again ---


class Timed:
    """A bench on a card that is so many times slower than one on which the whole problem takes 0.31 s."""

    factor, sizes = 1.0, []

    def __init__(self, module, problem, tile):
        self.problem = problem
        Timed.sizes.append(problem)

    def load(self, x, weight):
        assert x.shape == self.problem.input_shape

    def run(self):
        clock.now += Timed.factor * 0.31 * self.problem.flops / problems.preset("c3d-conv3a").flops


class clock:  # noqa: N801
    now = 0.0


@pytest.mark.parametrize(("factor", "ran"), [(1.0, 16), (1.7, 8), (10.0, 2)])
def test_a_slower_card_runs_a_smaller_problem(monkeypatch, factor, ran):
    monkeypatch.setattr(check, "Bench", Timed)
    monkeypatch.setattr(Timed, "factor", factor)
    monkeypatch.setattr(Timed, "sizes", [])
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    monkeypatch.setattr(loading, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    place = at(catalog.find("conv3d_direct"), problems.preset("c3d-conv3a"))
    monkeypatch.setattr(loading, "room", lambda: 8 << 30)
    found = loading.sized(Time(**place), None)
    assert (ran, 128) == (found.N, found.C)
    assert Timed.sizes[0].N == 1
    assert max(size.N for size in Timed.sizes) <= ran  # no launch lasted too long


def test_a_row_at_a_far_slower_clock_is_timed_again_once(of_hopper, monkeypatch):
    clocks = {"gemm_naive": iter([1000, 1700]), "gemm_shared_tile": iter([1700]), "gemm_wide_loads": iter([1690])}
    asked = []

    def answer(given, *_):
        for task in given:
            if isinstance(task, Time):
                asked.append(task.step)
                times = timing.Timing(1.0, 1.0, 1.0, 0.0, 10, next(clocks[task.step]))
                yield task, StepResult(status="right", shape=task.shape, timing=times)
            else:
                yield task, StepResult(status="right")

    monkeypatch.setattr(isolate, "run", answer)
    pairs = [(catalog.find(name), "gemm-4096") for name in clocks]
    found = list(measuring.measure(pairs))
    assert asked == [*clocks, "gemm_naive"]
    assert [outcome.time.sm_mhz for outcome in measuring.latest(found)] == [1700, 1700, 1690]


# --- the shipped verdicts, results/verdicts.json ---


STEPS = catalog.everything()


@pytest.fixture
def without_verdict(monkeypatch):
    """The steps that have none."""
    monkeypatch.setattr(run, "VERDICTS", records.RESULTS / "verdicts.json")
    return lambda: {step.name for step in STEPS} - run.shipped(STEPS).keys()


def test_each_shipped_step_has_a_verdict_of_its_code_as_it_is(without_verdict):
    assert without_verdict() == set(), "`make verdicts` finds them out again and writes results/verdicts.json"


def test_on_a_card_of_less_shared_memory_steps_that_take_other_tiles_have_none(without_verdict, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CARD", "8.6")
    found = without_verdict()
    assert {"hgemm_pipelined", "hconv3d_mma", "conv2d_tensor_core", "dgrad_minimal_filtering"} <= found
    runs_there = {step.name for step in STEPS if step.requires != "9.0a"}
    assert len(found & runs_there) < 10


@pytest.mark.parametrize("words", [(), ("gemm_naive",)])
def test_no_verdict_of_a_played_card_is_shipped(monkeypatch, capsys, words):
    monkeypatch.setenv("WORKBOOK_CARD", "8.6")
    assert main(["check", *words, "--record"]) == 2
    assert "this one has the limits of 8.6" in capsys.readouterr().err


@some_days(3)
@pytest.mark.parametrize("step", one_of_each(STEPS, lambda _: "a step"), ids=lambda step: step.name)
def test_a_shipped_verdict_is_found_again_at_the_whole_plan(step):
    outcomes = list(run.check_steps([step], True, seed=random.SystemRandom().randrange(1 << 20)))
    assert outcomes
    assert all(outcome.fine for outcome in outcomes), [outcome.reasons for outcome in outcomes if not outcome.fine]


# --- what no engine judged whole is said, and never hidden behind one that is right ---


NAIVE, FIRST = catalog.find("gemm_naive"), problems.FIRST["gemm"]
SEEN = StepResult(status="right", engine="traced", right=True, findings=[])
UNJUDGED = StepResult(status="unjudged", message="only the GPU ran it: shfl")


def outcomes(*results):
    return [Outcome.of(NAIVE, FIRST, None, result) for result in results]


def agreed(*results):
    (outcome,) = run.agreed(outcomes(*results))
    return outcome


def said(found):
    return shown(tables.checks(found), 200)


def test_of_one_shape_what_was_not_judged_is_told_before_what_is_right():
    gpu = result_with(SEEN, engine="gpu")
    assert agreed(gpu, UNJUDGED).status == agreed(UNJUDGED, gpu).status == "unjudged"
    assert agreed(SEEN, StepResult(status="wrong", findings=[]), UNJUDGED).status == "wrong"
    assert agreed(StepResult(status="right", only_compiled=True), SEEN).engine == "traced"


def test_a_shape_that_a_step_was_only_compiled_for_is_not_called_right():
    other = problems.RAGGED["gemm"][0]
    wrong = Outcome(step=NAIVE, problem=FIRST, status="wrong", engine="traced", findings=[])
    compiled = Outcome(step=NAIVE, problem=other, status="right", only_compiled=True)
    assert [one.problem for one in run.agreed([compiled, wrong])] == [FIRST]
    assert [one.problem for one in run.agreed([compiled])] == [other]


def test_of_what_does_not_compile_nothing_else_is_told():
    other = problems.RAGGED["gemm"][0]
    failed = Outcome(step=NAIVE, problem=FIRST, status="crashed", only_compiled=True)
    traced = [Outcome(step=NAIVE, problem=other, status=status, engine="traced") for status in ("unjudged", "right")]
    assert [one.status for one in run.agreed([failed, *traced])] == ["crashed"]
    late = result_with(failed, status="timed_out")
    assert [one.status for one in run.agreed([late, *traced])] == ["timed_out", "unjudged"]


def test_a_file_that_is_wrong_and_does_not_compile_is_compiled_to_the_end(write):
    path = write("gemm_shape.py", kernels.gemm("c[0, 0] = cuda.shared.array(c.shape[:1], float32)[0]"))
    (outcome,) = run.check_steps([NAIVE], True, file=path)
    assert (outcome.only_compiled, outcome.faults[0].kind) == (True, "shape-not-constant")


def test_enough_that_is_wrong_starts_nothing_more_and_does_not_cut_off_the_compiler(monkeypatch):
    check = run._StepCheck(NAIVE, True, None, None, enough=1)
    check.lay_out(0, False, False, compiled=True)
    built, traced = ([task for task in check.tasks if isinstance(task, kind)] for kind in (Compile, Check))
    said = {Compile: StepResult(status="right"), Check: StepResult(status="wrong")}
    monkeypatch.setattr(run.isolate, "run", lambda tasks, *_: ((task, said[type(task)]) for task in tasks))
    check._run(traced[:1], threading.Event())
    assert list(check.shared()) == []
    assert not check.given_up.is_set()
    check._run(built, threading.Event())
    assert check.given_up.is_set()


def test_a_right_step_that_computes_in_float64_is_right_and_told(write, capsys):
    path = write("gemm_wide.py", NAIVE.path.read_text().replace("acc = float32(0.0)", "acc = 0"))
    outcomes = list(run.check_steps([NAIVE], True, FIRST, path))
    assert console.exit_code(outcomes, asked=True) == RIGHT
    console.print_checks(outcomes)
    said = capsys.readouterr().out
    assert "gemm_naive is right, but the compiled kernel computes in float64" in said
    line = path.read_text().splitlines().index("        acc = 0") + 1
    assert f"line {line}: acc = 0" in said
    wrong = Outcome(step=NAIVE, problem=problems.RAGGED["gemm"][0], status="wrong")
    assert loop.notes([*outcomes, wrong]) == []


def test_the_edit_loop_does_not_call_it_sound():
    for result, sound in ((SEEN, True), (UNJUDGED, False)):
        lines = " ".join(loop.in_words("gemm_naive", loop.Stage(loop.CHECK, outcomes(result), 1.0)))
        assert ("and sound" in lines) == sound
        assert ("was not judged whole" in lines) != sound

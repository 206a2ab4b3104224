"""How a check of a step runs: engine by engine, each with a module of its own, and no longer than it must."""

import threading
from dataclasses import replace

import pytest

from common.book import catalog, device, problems
from common.commands import verdicts
from common.commands.console import RIGHT
from common.editing import words
from common.jobs import run
from common.jobs.messages import Check, Compile
from common.measure import plan
from common.microscope import simulator
from common.run import isolate

simulator.install()
FIRST = problems.FIRST["gemm"]
PATIENCE = 60.0

KERNEL = """
import time

from numba import cuda, float32

{before}
@cuda.jit
def product(a, b, c):
    n, m = cuda.grid(2)
    if m < c.shape[0] and n < c.shape[1]:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += a[m, k] * b[k, n]
        {after}
        c[m, n] = acc


def launch(a, b, c):
    {first}
    M, N = c.shape
    product[(-(-N // 16), -(-M // 8)), (16, 8)](a, b, c)
"""
KEPT = """
held = {}


def prepare(b, problem):
    host = b.copy_to_host()
    return held.setdefault((host.shape, host.tobytes()), cuda.to_device(host))


"""


def text(before="", after="pass", first="pass"):
    return KERNEL.format(before=before, after=after, first=first)


def asked(path, engine, depth="once"):
    case = plan.Case(FIRST, engine, depth)
    return Check(path=str(path), ladder="gemm", shape=FIRST.shape(), **case.fields(), repeats=1)


def test_a_step_that_keeps_arrays_by_their_contents_is_right_for_every_engine(write):
    path = write("gemm_kept.py", text(KEPT))
    tasks = [asked(path, engine) for engine in ("simulator", "traced", "simulator", "traced")]
    for task, result in isolate.run(tasks, True, PATIENCE):
        assert result["status"] == "right", result
        assert result["engine"] == task.engine
        assert "untraced" not in result, result


def test_an_exception_of_the_kernel_is_told_before_what_it_left_unwritten(write):
    path = write("gemm_raising.py", text(after='if m == 3:\n            raise ValueError("no row 3")'))
    ((_, result),) = isolate.run([asked(path, "traced")], True, PATIENCE)
    assert result["status"] == "wrong"
    assert [finding["kind"] for finding in result["findings"]] == ["unsound", "unwritten"]
    assert result["findings"][0]["message"].startswith("ValueError('no row 3') is raised")
    line = path.read_text().splitlines().index('            raise ValueError("no row 3")') + 1
    assert [(fault["kind"], fault["line"]) for fault in result["faults"]][:1] == [("raises", line)]


def test_what_does_not_compile_is_not_tried_any_further(write):
    # each launch takes its time, so that all cases together would take minutes
    path = write("gemm_dictionary.py", text(after="parts = {0: acc}", first="time.sleep(0.5)"))
    outcomes = list(run.check_steps([catalog.find("gemm_naive")], True, file=path))
    assert outcomes[0].result.get("only_compiled"), outcomes[0]
    assert outcomes[0].status == "crashed"
    assert len(outcomes) < 10 < len({case.problem for case in plan.cases("gemm", False, 0)})


def test_a_shape_that_was_asked_for_is_given_to_whom_it_is_not_too_large_for():
    """No right kernel is called endless, as one in the simulator is that takes minutes."""
    small, middle, large = (problems.Gemm(M=extent, N=extent, K=extent) for extent in (64, 200, 600))
    engines = {
        problem: [(case.engine, case.depth) for case in plan.cases_at(problem, False, 0)]
        for problem in (small, middle, large)
    }
    assert engines[small] == [("simulator", "usual"), ("traced", "thorough")]
    assert engines[middle] == [("traced", "thorough")]
    assert engines[large] == [("traced", "usual")]
    assert [one.engine for one in plan.cases_at(large, True, 0)] == ["gpu", "traced"]


def test_what_cannot_be_traced_at_a_large_shape_is_not_judged(write):
    path = write("gemm_complex.py", text(after="acc += abs(complex(0.0, 0.0))"))
    groups = run._check_groups(catalog.find("gemm_naive"), True, problems.Gemm(M=120, N=120, K=120), path, 0, False)
    (task,) = [task for group in groups for task in group.tasks]
    ((_, result),) = isolate.run([task], True, PATIENCE)
    assert result["status"] == "unjudged", result
    assert "what cannot be traced is judged at shapes of up to 2,000,000 operations" in result["message"]


def test_a_hopeless_step_starts_nothing(write, monkeypatch):
    hopeless = threading.Event()
    hopeless.set()
    group = run._CheckGroup(catalog.find("gemm_naive"), [asked(write("gemm_x.py", ""), "traced")], True, False)
    monkeypatch.setattr(isolate, "_Child", lambda *_: pytest.fail("a process is started"))
    assert group.run(threading.Event(), hopeless) == []


@pytest.fixture
def of_hopper(monkeypatch):
    """A step that requires another GPU than there is; no process is started, the tasks are listed."""
    tasks = []

    def answer(given, *_):
        for task in given:
            tasks.append(task)
            engine = {"engine": task.engine} if isinstance(task, Check) else {}
            yield task, {"status": "right", "findings": [], **engine}

    monkeypatch.setattr(isolate, "run", answer)
    monkeypatch.setattr(device, "compute_capability", lambda: "8.6")
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    return replace(catalog.find("gemm_naive"), requires="9.0a"), tasks


def test_what_this_gpu_cannot_run_is_checked_without_it(of_hopper):
    step, tasks = of_hopper
    assert all(outcome.fine for outcome in run.check_steps([step], False, seed=3))
    assert isinstance(tasks[0], Compile)
    assert {task.engine for task in tasks[1:] if isinstance(task, Check)} == {"simulator", "traced"}
    tasks.clear()
    list(run.check_steps([replace(step, requires="8.0")], False, seed=3))
    assert {task.engine for task in tasks} == {"simulator", "traced", "gpu"}


def test_what_this_gpu_cannot_run_is_listed_with_the_reason(of_hopper):
    step, tasks = of_hopper
    other = catalog.find("gemm_shared_tile")
    found = [outcome for _, outcome in run.measure([(step, "gemm-4096"), (other, "gemm-4096")])]
    assert [outcome.step.name for outcome in found] == ["gemm_shared_tile", "gemm_naive"]
    assert found[-1].status == "refused"
    assert found[-1].result["message"] == "requires compute capability 9.0a: this GPU has 8.6"
    assert not any(getattr(task, "step", "") == step.name for task in tasks)
    assert [outcome.elsewhere for outcome in found] == [False, True]
    assert verdicts.exit_code(found, asked=True) == RIGHT  # it is no failure
    refused = run.Outcome(step, FIRST, None, {"status": "refused", "message": "this shape"})
    assert verdicts.exit_code([refused], asked=True) != RIGHT


@pytest.mark.parametrize("name", [step.name for step in catalog.steps() if step.requires == "8.0"])
def test_a_card_without_these_tensor_cores_is_told_so_in_one_line(of_hopper, monkeypatch, name):
    monkeypatch.setattr(device, "compute_capability", lambda: "7.5")
    step = catalog.find(name)
    found = [outcome for _, outcome in run.measure([(step, catalog.presets(step)[0])])]
    ((_, text),) = words.told(found, 120)
    assert "requires compute capability 8.0: this GPU has 7.5" in text
    assert name in text
    assert len(text.splitlines()) == 1
    monkeypatch.setattr(device, "compute_capability", lambda: "8.0")
    assert run.beyond(step) == ""


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

"""The edit loop: stages in order, the soonest first; what it kept; and its logic with a GPU that is made up."""

import re
import shutil
import threading
import time
from pathlib import Path

import pytest
from msgspec import structs

from common import cli
from common.catalog import catalog, device, problems, sources
from common.catalog.catalog import Step
from common.check import plan, run
from common.commands import edits, lessons
from common.edit import history, loop
from common.explain.faults import Fault
from common.run import isolate
from common.run.messages import Check, Compile, Pair, Prepare, StepResult
from common.timing import timing

NAIVE = catalog.find("gemm_naive")
CARD = device.Gpu("NVIDIA Test 9", "9.0", 4, 1 << 30, 1 << 20, "1.2", "13.0")


def took(ms):
    return timing.Timing(ms, ms, ms, 0.0, 10)


PAIR = timing.Paired(took(2.46), took(2.0), ratio=1.23, ratio_p20=1.21, ratio_p80=1.25, ratio_error=0.004)


@pytest.fixture
def step(tmp_path):
    """gemm_naive in a folder of the test's own, to be edited."""
    path = tmp_path / "gemm_naive.py"
    shutil.copy(NAIVE.path, path)
    return Step("gemm_naive", "01_naive", "gemm", None, path, "title")


def edit(step, old, new):
    text = step.path.read_text()
    assert old in text
    step.path.write_text(text.replace(old, new))


def told(this):
    return [(stage.name, [outcome.status for outcome in stage.failed]) for stage in this.stages()]


# --- without a GPU, for real ---


def test_a_right_edit_goes_through_all_stages_and_is_kept(step):
    edit(step, "THREADS_X = 32", "THREADS_X = 16")
    this = loop.Run(step, "gemm-2048", without_gpu=True)
    stages = list(this.stages())
    assert [stage.name for stage in stages] == [loop.FIRST, loop.CHECK, loop.CODE]
    assert not any(stage.failed for stage in stages)
    assert {outcome.problem for outcome in stages[1].outcomes} >= {
        case.problem
        for case, _ in plan.chosen("gemm")
        if not case.wide  # a narrower one takes its place
    }
    assert [stage.seconds for stage in stages] == sorted(stage.seconds for stage in stages)
    (event,) = history.events("gemm_naive")
    assert (event.verdict, event.what, event.source) == ("right", "run", history.sha(step.path.read_bytes()))
    assert re.fullmatch(
        r"36\.0 instructions per multiply-add, \d+ registers on gemm-2048; the .* 36\.0", event.figure
    )
    assert history.stored("gemm_naive.py", event.source) == step.path.read_bytes()
    lines = " ".join(line for stage in stages for line in loop.in_words(step.name, stage))
    for said in (
        "compiles for compute capability 9.0",
        f"right at {problems.FIRST['gemm']}",
        " shapes, and sound",
        "36.0 instructions per multiply-add, ",
        "the shipped version 36.0",
    ):
        assert said in lines


def test_a_wrong_edit_ends_with_the_first_verdict_and_its_line(step):
    edit(step, "if m < M and n < N:", "if m < M:")
    (stage,) = loop.Run(step, "gemm-2048", without_gpu=True).stages()
    assert stage.name == loop.FIRST
    (outcome,) = stage.failed
    (fault,) = outcome.faults
    assert fault.kind == "outside"
    assert fault.code in step.path.read_text()
    said = loop.complaint(outcome)
    assert f"line {fault.line}: {fault.code}".replace("[", r"\[") in said or fault.code in said
    assert "look at: this index and its guard" in said


def seen(step, **changes):
    """What is said of an edited step at the first shape, and its outcome."""
    small = problems.FIRST["gemm"]
    task = run.placed(plan.case(small, "traced", "usual"), step, None)
    ((_, result),) = isolate.run([task], True, 60.0)
    outcome = run.outcome(step, task, result, None)
    return outcome, loop.complaint(outcome).replace("\\[", "[").splitlines()[1:]


def test_a_cause_stands_before_what_comes_of_it(step):
    edit(step, "c[m, n] = acc", "c[0, 0] = acc")
    outcome, lines = seen(step)
    assert [finding.kind for finding in outcome.findings] == ["unstable", "unwritten", "wrong"]
    said = "\n".join(lines)
    places = [said.index(text) for text in ("at once in line", "look at: ", "unwritten: ", "wrong: ")]
    assert places == sorted(places)
    assert "unstable: " not in said  # what is unstable is the race, which stands above
    assert said.count("look at: ") == 1


def test_a_barrier_that_is_not_called_stands_before_the_race(step):
    tiled = catalog.find("gemm_shared_tile").path.read_text()
    step.path.write_text(tiled.replace("cuda.syncthreads()  # nobody reads", "cuda.syncthreads  # nobody reads"))
    _, lines = seen(step)
    assert lines[0] == "  cuda.syncthreads is named here and not called: () is missing"
    assert any("with no barrier between" in line for line in lines[3:])


@pytest.mark.parametrize(("old", "new", "first"), [
    ("range(K)", "range(K - 1)", "wrong: .*the last term, k = K - 1, is left out"),
    ("c[m, n] = acc", "c[m, n] += acc", "nan: .* because the kernel adds to what c held before: it must assign"),
    ("acc += a[m, k]", "a[m, k] *= 2\n            acc += a[m, k]", "modified_input: .* elements of the input a"),
])  # fmt: skip
def test_a_finding_that_names_the_mistake_itself_stands_first(step, old, new, first):
    edit(step, old, new)
    _, lines = seen(step)
    assert re.match(f"  {first}", lines[0])


def test_what_does_not_compile_is_told_before_what_the_tracer_made_of_it(step):
    edit(step, "acc = float32(0.0)", "acc = cuda.shared.array((c.shape[0], 2), float32)[7, 1]")
    (stage,) = loop.Run(step, "gemm-2048", without_gpu=True).stages()
    (outcome,) = stage.failed
    assert outcome.faults[0].kind == "shape-not-constant"
    assert loop.complaint(outcome).startswith("gemm_naive, compiled for M=")


def test_a_refusal_is_called_one(step):
    step.path.write_text(
        step.path.read_text() + "\ndef prepare(b, problem):\n    raise ValueError('TILE=3: not today')\n"
    )
    (stage,) = loop.Run(step, "gemm-2048", without_gpu=True).stages()
    (outcome,) = stage.failed
    said = loop.complaint(outcome)
    assert "at M=18 N=36 K=36" in said
    assert "refused: this ordinary shape is refused: TILE=3: not today" in said
    (event,) = history.events("gemm_naive")
    assert event.verdict == "wrong"


def test_the_source_that_ran_is_the_one_that_was_saved_then(step):
    this = loop.Run(step, "gemm-2048", without_gpu=True)
    edit(step, "THREADS_X = 32", "THREADS_X = 16")
    stages = this.stages()
    ran = threading.Thread(target=lambda: list(stages))
    ran.start()
    deadline = time.monotonic() + 300
    while not this.version and time.monotonic() < deadline:
        time.sleep(0.01)
    source = step.path.read_bytes()
    step.path.write_text("no longer Python(")
    this.stop.set()
    ran.join(300)
    (event,) = history.events("gemm_naive")
    assert event.verdict == "unfinished"
    assert history.stored("gemm_naive.py", event.source) == source


# --- with a GPU that is made up ---


def right(**more):
    return StepResult(status="right", right=True, findings=[], elements_compared=1, **more)


class Gpu:
    """In place of the child processes: what each kind of task is answered."""

    def __init__(self, monkeypatch):
        self.check, self.first, self.traced, self.prepared = right(), right(), right(engine="traced"), right()
        self.pair = right(pairs={"shipped": PAIR}, gpu="NVIDIA Test 9")
        self.compiled = StepResult(status="crashed", message="ptxas was not found")
        self.asked = []
        monkeypatch.setattr(isolate, "run", self.run)
        monkeypatch.setattr(run, "inspect_device", lambda: (CARD, 8 << 30))

    def run(self, tasks, without_gpu, seconds, *stops):
        for task in tasks:
            self.asked.append((task.kind, without_gpu))
            if isinstance(task, Check):
                kind = "traced" if task.engine == "traced" else "check"
                kind = "first" if task.seconds == loop.FIRST_SECONDS else kind
            else:
                kind = {Pair: "pair", Compile: "compiled", Prepare: "prepared"}[type(task)]
            yield task, getattr(self, kind)
            if any(stop.is_set() for stop in stops):
                return


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch)


def on_gpu(step, preset="gemm-4096"):
    return loop.Run(step, preset, without_gpu=False)


def test_on_a_gpu_the_last_stage_is_the_time_beside_the_shipped_file(step, gpu):
    this = on_gpu(step)
    stages = list(this.stages())
    assert [stage.name for stage in stages] == [loop.FIRST, loop.CHECK, loop.TIME]  # the code was not to be had
    line = loop.in_words(step.name, stages[-1])[0]
    assert "1.23x the shipped version (paired, p20–p80 1.21–1.25): 2.00 ms against 2.46 ms on gemm-4096" in line
    (event,) = history.events("gemm_naive")
    assert event.verdict == "right"
    assert event.figure in line


def test_a_run_whose_shipped_file_is_not_known_is_timed_alone(step, gpu, monkeypatch):
    monkeypatch.setattr(sources, "shipped", lambda path: None)
    gpu.pair = right(pairs={}, timing=took(2.0), gpu="NVIDIA Test 9")
    stages = list(on_gpu(step).stages())
    assert (
        ": 2.00 ms on gemm-4096, NVIDIA Test 9; the shipped version is not known" in loop.in_words("s", stages[-1])[0]
    )
    assert history.events("gemm_naive")[0].figure.startswith("2.00 ms on gemm-4096, NVIDIA Test 9; the shipped")


def test_a_step_of_one_architecture_is_compiled_for_it():
    step = catalog.find("hgemm_wgmma")
    task = loop.Run(step, "hgemm-4096", without_gpu=True)._compile(problems.FIRST["hgemm"])
    assert task.architectures == ["9.0a"]


@pytest.fixture
def edited_helper(tmp_path, monkeypatch):
    """gemm_wide_loads as shipped, while a helper of it differs from what was shipped; the step, and that text."""
    original = catalog.find("gemm_wide_loads")
    path = tmp_path / original.path.name
    shutil.copy(original.path, path)
    helper = (catalog.LESSONS / "toolkit" / "memory.py").read_bytes() + b"OTHER = 1\n"
    text = sources.shipped
    edited = sources.edited
    monkeypatch.setattr(sources, "edited", lambda one: one.name == "memory.py" or edited(one))
    monkeypatch.setattr(sources, "shipped", lambda one: helper if one.name == "memory.py" else text(original.path))
    return Step(original.name, original.lesson, "gemm", None, path, "title"), helper


def test_a_step_on_an_edited_helper_is_timed_against_the_shipped_one_on_its_own(edited_helper, gpu):
    step, helper = edited_helper
    tasks, ask = [], gpu.run
    isolate.run = lambda given, *rest: (tasks.extend(given), ask(given, *rest))[1]
    assert told(on_gpu(step))[-1] == (loop.TIME, [])
    present = (catalog.LESSONS / "toolkit" / "memory.py").read_bytes()

    def read(helpers):
        return {name: Path(path).read_bytes() for name, path in helpers.items()}

    assert all(read(task.helpers) == {"memory": present} for task in tasks)
    (pair,) = [task for task in tasks if isinstance(task, Pair)]
    assert set(pair.against) == {"shipped"}
    assert read(pair.against["shipped"].helpers) == {"memory": helper}
    (kept,) = history.events("memory")
    assert (kept.what, history.stored("memory.py", kept.source)) == ("saved", present)


@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_what_cannot_be_told_apart_is_said(spread):
    said = loop.ratio(structs.replace(PAIR, ratio=1.01, ratio_error=spread))
    assert ("no difference that can be told" in said) == (spread > 0)


def test_what_a_gpu_lets_pass_and_a_trace_does_not_fails_the_check(step, gpu):
    fault = Fault("negative-index", "a[-1]", 3)
    gpu.traced = StepResult(status="crashed", message="IndexError", faults=[fault])
    assert told(on_gpu(step)) == [(loop.FIRST, []), (loop.CHECK, ["crashed"])]
    assert history.events("gemm_naive")[0].reason == "a[-1]"
    # what the tracer does not know is no fault
    said = "line 3: cg is not known to the tracer"
    gpu.traced = StepResult(status="unjudged", engine="traced", message=said)
    assert told(on_gpu(step))[-1] == (loop.TIME, [])


def test_a_fault_that_a_trace_has_a_line_for_is_told_in_place_of_the_gpus(step, gpu):
    driver = Fault("illegal-address", "x", 40)
    gpu.check = StepResult(status="crashed", message="CUDA_ERROR_ILLEGAL_ADDRESS", faults=[driver])
    gpu.traced = StepResult(status="wrong", engine="traced", faults=[Fault("outside", "a[9]", 20)])
    *_, stage = on_gpu(step).stages()
    assert [(fault.kind, fault.line) for fault in stage.failed[0].faults] == [("outside", 20)]


def test_beside_a_gpu_the_first_stage_does_not_wait_for_the_compiler(step, gpu, monkeypatch):
    compiled, told = threading.Event(), threading.Event()

    def slow(tasks, *rest):
        for task, result in gpu.run(tasks, *rest):
            if isinstance(task, Compile):
                told.wait(10)
                compiled.set()
            yield task, result

    monkeypatch.setattr(isolate, "run", slow)
    stages = on_gpu(step).stages()
    assert next(stages).name == loop.FIRST
    assert not compiled.is_set()
    told.set()
    stages.close()


def test_where_nothing_is_known_at_first_nothing_is_said(step, gpu):
    gpu.first = StepResult(status="unjudged", engine="traced", message="line 3: cg is not known to the tracer")
    first, *_ = on_gpu(step).stages()
    assert loop.in_words(step.name, first) == []


# --- commands ---


def test_check_and_time_keep_edited_steps_only(monkeypatch, step):
    other = catalog.find("conv2d_naive")
    monkeypatch.setattr(sources, "edited", lambda path: path == step.path)
    for _ in range(2):
        edits.keep([step, other])
    (event,) = history.events()
    assert (event.step, event.what) == ("gemm_naive", "saved")
    assert history.stored("gemm_naive.py", event.source) == step.path.read_bytes()


@pytest.fixture
def lesson(monkeypatch):
    """Lesson 01 whose every step runs in no time; lists what ran."""
    ran = []
    monkeypatch.setattr(lessons, "run_edited", lambda step, *_, **__: ran.append(step.name) or 0)
    monkeypatch.setattr(isolate, "warm", lambda: None)
    return ran


class Saved:
    """In place of the files' saves: one at each look, then Ctrl-C once all have run."""

    def __init__(self, *paths):
        self.left = [*paths, None, None, None]

    def __call__(self, files):
        return self

    def look(self):
        if not self.left:
            raise KeyboardInterrupt
        found = self.left.pop(0)
        return [found] if found else []


def test_watch_runs_only_what_was_saved(lesson, monkeypatch, capsys):
    monkeypatch.setattr(loop, "Saves", Saved(NAIVE.path, None, None, NAIVE.path))
    assert cli.lesson_main("01_naive", ["--watch"]) == 0
    assert lesson == ["gemm_naive", "gemm_naive"]
    assert "no longer watching" in capsys.readouterr().out


def test_watch_runs_a_named_or_edited_step_at_once(lesson, monkeypatch):
    monkeypatch.setattr(loop, "Saves", Saved())
    cli.lesson_main("01_naive", ["conv2d_naive", "--watch"])
    assert lesson == ["conv2d_naive"]
    monkeypatch.setattr(sources, "edited", lambda path: path == NAIVE.path)
    monkeypatch.setattr(loop, "Saves", Saved())
    cli.lesson_main("01_naive", ["--watch"])
    assert lesson == ["conv2d_naive", "gemm_naive"]


def test_a_step_that_is_saved_again_while_it_runs_is_stopped(step, gpu):
    stop = loop.Saves([step.path])
    assert not stop.is_set()
    this = loop.Run(step, "gemm-4096", False, stop)
    stages = this.stages()
    assert next(stages).name == loop.FIRST
    edit(step, "THREADS_X = 32", "THREADS_X = 16")
    assert list(stages) == []
    assert this.verdict == history.events("gemm_naive")[0].verdict == "unfinished"


def test_what_a_run_raises_ends_the_watch_in_one_line(monkeypatch, capsys):
    def full_disk(*_):
        raise OSError("full")

    monkeypatch.setattr(lessons, "run_edited", full_disk)
    monkeypatch.setattr(isolate, "warm", lambda: None)
    monkeypatch.setattr(loop, "Saves", Saved(NAIVE.path, None, None, None))
    assert cli.lesson_main("01_naive", ["--watch"]) == 2
    assert capsys.readouterr().err == "error: full\n"


# --- saves ---


def test_a_save_is_seen_once_its_writing_has_come_to_rest(write):
    first, second = write("a.py", "1\n"), write("b.py", "1\n")
    saves = loop.Saves([first, second])
    first.write_text("22\n")
    assert [saves.look() for _ in range(3)] == [[], [first], []]
    write("b.py.tmp", "2\n").replace(second)  # many editors write beside and move
    assert [saves.look() for _ in range(3)] == [[], [second], []]


def test_a_run_that_nothing_judged_is_not_kept_as_right(step, gpu):
    gpu.check = gpu.first = gpu.traced = StepResult(status="unjudged", message="cuda.popc is not known")
    gpu.pair = StepResult(status="unjudged", message="late")
    list(on_gpu(step).stages())
    (event,) = history.events("gemm_naive")
    assert (event.verdict, event.reason) == ("unjudged", "cuda.popc is not known")

"""Every option changes what is asked for, or is refused in one line that names it.

What would take time or a GPU is asked for and not done: a case says what of it an option must change.
"""

import inspect as signatures
import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from common import cli
from common.catalog import cache, catalog, device, exercises, problems, sources
from common.catalog.problems import Gemm
from common.check import run
from common.commands import arguments, bench, changed, edits, lessons, parts
from common.edit import history
from common.grade import grade
from common.machine_code import successor
from common.records import records
from common.report import traces
from common.report.table import Table
from common.run import isolate
from common.run.messages import Outcome, Paired, Timing
from common.timing import measuring, tools
from common.timing.ceilings import Ceilings
from common.timing.timing import Point, Sweep
from common.trace import trace

LESSON = "05_implicit_gemm"
SMALL = Gemm(M=3, N=4, K=2)
FIRST = exercises.find("01.1").name
CARD = device.Gpu("NVIDIA Test 9", "9.0", 100, 2**36, 2**25, "1", "13.0")
ENTRY = {"shape": SMALL.shape(), "kernels": []}


@dataclass
class Seen:
    """What a command asked for, by function, and what it said."""

    folder: Path
    asked: dict = field(default_factory=dict)
    code: int = 0
    out: str = ""
    err: str = ""

    def __getattr__(self, name):
        try:
            return SimpleNamespace(**self.asked[name][-1])
        except KeyError:
            raise AttributeError(name) from None

    @property
    def json(self):
        return json.loads(self.out)


def names(steps):
    return [step.name for step in steps]


def presets(pairs):
    return {preset for _, preset in pairs}


# Words, and what must then hold.
CASES = {
    "check gemm_naive 01.1 gemm_naive": lambda s: names(s.check_steps.steps) == ["gemm_naive", FIRST],
    "check gemm_naive --file {file} --json": lambda s: s.check_steps.file == s.folder / "mine.py" and s.json,
    'check gemm_naive --shape "M=3 N=4 K=2"': lambda s: s.check_steps.shape == SMALL,
    "check gemm_naive --sim --seed 7": lambda s: s.check_steps.without_gpu and s.check_steps.seed == 7,
    "check gemm_naive --record": lambda s: s.check_steps.without_gpu and not s.check_steps.options["compiled"],
    "time gemm_naive --file {file} --json": lambda s: s.measure.file == s.folder / "mine.py" and s.json,
    "bench": lambda s: len(s.measure_rows.pairs) > 50 and not s.measure_rows.fresh and not s.measure_rows.shipped,
    "bench gemm_naive --problem gemm-2048": lambda s: (
        presets(s.measure_rows.pairs) == {"gemm-2048"} and s.measure_rows.fresh and "profile" not in s.asked
    ),
    "bench --record": lambda s: s.measure_rows.shipped and "profile_steps" in s.asked and "sanitize_steps" in s.asked,
    "bench --part counters gemm_naive --problem gemm-2048 --record": lambda s: (
        presets(s.profile_steps.pairs) == {"gemm-2048"} and s.open_record.shipped and "keep profile" in s.asked
    ),
    "bench --part sanitizer gemm_naive --record": lambda s: (
        s.open_record.shipped and "keep sanitizer" in s.asked and "measure_rows" not in s.asked
    ),
    "bench --part compilers gemm_naive hgemm_tma --record": lambda s: (  # 9.0a: not by both compilers
        [(step.name, preset) for step, preset in s.time_compilers.pairs] == [("gemm_naive", "gemm-4096")]
        and s.open_record.shipped
        and "keep compilers" in s.asked
        and "2.00 ms by numba-cuda, 3.00 ms by" in s.out
    ),
    "inspect gemm_naive gemm_tuned": lambda s: (
        names(step for step, _ in s.summaries.pairs) == ["gemm_naive", "gemm_tuned"]
    ),
    "inspect gemm_naive --file {file} --json": lambda s: s.summaries.file == s.folder / "mine.py" and s.json,
    "inspect gemm_naive --problem gemm-2048 --cc 8.6": lambda s: (
        (presets(s.summaries.pairs), s.summaries.architecture) == ({"gemm-2048"}, "8.6")
    ),
    "inspect gemm_naive --ptx": lambda s: s.summaries.show == "ptx",
    "inspect gemm_naive --record": lambda s: "record_code" in s.asked and s.compile_steps.every_preset,
    'sweep gemm_tuned --values "PAD=0,2,0" --record': lambda s: (
        [tile["PAD"] for tile in s.sweep.tiles] == [0, 2] and s.open_record.shipped
    ),
    'trace gemm_naive --file {file} --shape "M=3 N=4 K=2" --block 1,2': lambda s: (
        [(task.path, task.shape, task.options.block) for task in s.results.tasks]
        == [(str(s.folder / "mine.py"), SMALL.shape(), (1, 2, 0))]
    ),
    "trace gemm_naive --html {out}.html": lambda s: (s.folder / "out.html").is_file(),
    "trace gemm_naive --agree": lambda s: (
        s.agreement.names == ("gemm_naive",) and s.agreement.record.data.agreement["gemm_naive"]
    ),
    "history gemm_naive": lambda s: s.events.step == "gemm_naive",
    "restore gemm_naive 3": lambda s: (s.choose.path.stem, s.choose.wanted) == ("gemm_naive", "3"),
    "reset gemm_naive": lambda s: s.shipped.path.stem == "gemm_naive",
    "grade 02.1 02.1 --sim": lambda s: [f.path.stem for f in s.all.files] == [exercises.find("02.1").name],
    "grade {class} --out {out}": lambda s: s.report.folder == s.folder / "out",
    "hint 01.2": lambda s: s.out.startswith("01.2 "),
    "hint": lambda s: "02.3" in s.out,
    "charts --record": lambda s: s.redraw.shipped and s.draw_photo.shipped,
    "all --fresh": lambda s: s.redraw.fresh and s.check_changed.fresh,
    "all --sim": lambda s: "measure_rows" not in s.asked and "ready" not in s.asked,
    f"{LESSON} conv3d_implicit_gemm --sim": lambda s: (
        names(s._lesson.chosen) == ["conv3d_implicit_gemm"] and s._lesson.without_gpu
    ),
    f"{LESSON} conv2d_layer_dispatch --watch": lambda s: (
        names(s.watch.steps) == ["conv2d_layer_dispatch"] and s.watch.at_once
    ),
}

# What is refused, and what the one line must say.
REFUSED = {
    'check gemm_naive --shape "M=99999999999999999999 N=1 K=1"': ["--shape 'M=99", "GB", "may take"],
    "check gemm_naive --seed -1": ["--seed -1: must be an integer from 0 to 2147483647"],
    "check gemm_naive --full --shape 'M=4 N=5 K=6'": ["--full has shapes of its own"],
    "check 01.1 --record": ["'01.1' is unknown"],
    "check gemm_naive --record --json": ["--record: goes with steps alone, not with --json"],
    "bench --part colour": ["--part 'colour': must be one of rows, epilogues"],
    "inspect": ["takes one STEP or two, and 0 are named"],
    "inspect gemm_naive --record --cc 8.0": ["--record: goes with steps alone, not with --cc"],
    "inspect gemm_naive --cc 9.": ["--cc '9.': must be a compute capability such as 9.0"],
    "inspect gemm_naive gemm_tuned --file {file}": ["--file", "name the one STEP", "2 are named"],
    'trace gemm_naive conv2d_naive --shape "M=3 N=4 K=2"': ["--shape 'M=3 N=4 K=2'", "one ladder"],
    "trace gemm_naive --agree --html {out}.html": ["--agree: goes with steps alone, not with --html"],
    'sweep gemm_tuned --values " "': ["--values ' ': must name a tunable", "PAD"],
    "grade 02.1 --out {out}": ["--out", "goes with a folder"],
    "check gemm_naive --shape 'M=1 N=1 K=1.5'": ["K='1.5': must be a positive integer"],
    "check gemm_nave": ["'gemm_nave' is unknown", "gemm_naive"],
    "restore gemm_nave": ["'gemm_nave' is unknown: the nearest are gemm_naive, "],
    "check --shape 'M=1 N=1 K=1'": ["one ladder", "bfgemm, conv2d, conv3d, dgrad"],
    "check --file x.py": ["--file x.py", "one STEP", "0 are named"],
    "check gemm_naive --file lost.py": ["lost.py", "no such file"],
    "grade 01.1 --seconds 0": ["--seconds 0", "more than 0"],
    "inspect gemm_naive --problem photo": ["'photo' is a conv2d problem", "gemm-4096"],
    "inspect gemm_naive --problem gemm_2049": ["nearest are gemm-2048, ", "; gemm presets are gemm-4096, "],
    "diff gemm_naive": ["gemm_naive starts its ladder", "compare it with"],
    f"{LESSON} gemm_nave": [f"'gemm_nave' is not in lesson {LESSON}", "conv2d_layer_dispatch"],
    f"{LESSON} --problem gemm-1": ["'gemm-1' is unknown", "gemm-8192", "conv2d presets are ece408-layer1"],
}


@pytest.fixture(scope="module")
def traced():
    """What a trace of a right kernel looks like."""
    return trace.run(catalog.load(catalog.find("gemm_naive").path, "gemm"), SMALL, kept=1)


def profiled(pairs):
    for step, preset in pairs:
        problem = problems.preset(preset)
        yield Outcome(step=step, problem=problem, preset=preset, status="right", source="s"), []


@pytest.fixture
def ask(monkeypatch, capsys, tmp_path, traced):
    """Run a command as if there were a GPU, noting what it asks for in place of doing it."""
    seen = Seen(tmp_path)
    (tmp_path / "mine.py").write_text("def launch(a, b, c): pass\n")
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "predict_tiles.py").write_text("")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def note(owner, name, answer=None):
        signature = signatures.signature(getattr(owner, name))

        def noted(*args, **options):
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            seen.asked.setdefault(name, []).append(bound.arguments)
            return answer(**bound.arguments) if callable(answer) else answer

        monkeypatch.setattr(owner, name, noted)

    def nothing(**_):
        yield from ()

    def compiled(steps, **_):
        return iter([Outcome(step=step, problem=SMALL, status="right") for step in steps])

    def keep(kind, *_):
        seen.asked.setdefault(f"keep {kind}", []).append({})

    data = SimpleNamespace(gpu=CARD, epilogues={}, sanitizer={}, agreement={}, compilers={}, profile={})
    record = SimpleNamespace(
        gpu_name=CARD.name, slug=CARD.slug, sweep=lambda *_: None, profile=lambda *_: None, keep=keep, data=data
    )
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "cache")
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    note(device, "ready", True)
    monkeypatch.setattr(device, "require_gpu", lambda what: None)
    monkeypatch.setattr(device, "compute_capability", lambda: "9.0")
    monkeypatch.setattr(device, "small_card", lambda: "")
    note(arguments, "open_record", record)
    monkeypatch.setattr(exercises.State.__init__, "__defaults__", (tmp_path / "exercises.json",))
    for name in ("run", "run_groups", "watched"):
        monkeypatch.setattr(isolate, name, None)
    note(run, "check_steps", nothing)
    note(measuring, "measure_device", (CARD, Ceilings(copy_gbs=1.0, fma_gflops=1.0)))
    note(run, "inspect_device", (CARD, 2**30))
    note(measuring, "measure", nothing)
    note(run, "compile_steps", compiled)
    note(records, "record_code")
    note(run, "summaries", nothing)
    note(run, "ask", ({"PAD": [0, 1, 2]}, {"PAD": 1}))
    note(measuring, "sweep", nothing)

    def clean(steps):
        return iter([(tool, step, 0, "") for tool in tools.TOOLS for step in steps])

    def by_both(pairs):
        times = [Timing(ms, ms, ms, 0.0, 10) for ms in (2.0, 3.0)]
        for step, preset in pairs:
            both = {device.NUMBA_CUDA: Paired(*times, 2 / 3, 2 / 3, 2 / 3, 0.0)}
            yield Outcome(step=step, problem=problems.preset(preset), preset=preset, status="right", pairs=both)

    note(measuring, "profile_steps", profiled)
    note(parts.pages, "table", Table(["step", "DRAM %"], [["`gemm_naive`", "3"]]))
    note(measuring, "sanitize_steps", clean)
    note(measuring, "time_compilers", by_both)
    monkeypatch.setattr(successor, "version", lambda: "0.6")
    note(trace, "results", lambda tasks: iter([traced] * len(tasks)))
    note(traces, "agreement", "agreed")
    note(traces, "count_both", lambda pairs: iter([(*pair, ENTRY) for pair in pairs]))
    note(history, "events", [])
    event = history.Event("gemm_naive", "0" * 64, "run", time="2026-01-02T03:04:05Z")
    note(history, "choose", event)
    note(history, "stored", b"")
    note(history, "put_back", "")
    note(sources, "shipped", None)
    note(grade, "report", (Path("a"), Path("b")))
    note(grade.Grader, "all", nothing)
    note(edits, "_remember")
    for module, name in (
        (changed, "redraw"), (changed, "draw_photo"),
        (lessons, "_lesson"), (lessons, "watch"), (edits, "keep"), (edits, "name_edited_helpers"),
    ):  # fmt: skip
        note(module, name, 0)
    monkeypatch.setattr(changed.pages, "update", lambda *_: [])
    note(changed, "check_changed", ([], []))
    for name in ("epilogues", "accuracy", "agreement"):
        monkeypatch.setitem(parts.PARTS, name, parts.Part(lambda *_: [], reached, reached))
    note(bench, "measure_rows", [])
    stand_in(monkeypatch, seen, grade, "Grader")

    def ask(text):
        places = {"file": tmp_path / "mine.py", "class": tmp_path / "class", "out": tmp_path / "out"}
        words = [word.format(**places) for word in shlex.split(text)]
        seen.asked.clear()
        seen.code = cli.lesson_main(LESSON, words[1:]) if words[0] == LESSON else cli.main(words)
        seen.out, seen.err = capsys.readouterr()
        return seen

    return ask


def reached(*_args, **_options):
    raise AssertionError("work is done that no case stands in for")


def stand_in(monkeypatch, seen, owner, name):
    """Note how objects of a class are made; they do nothing."""
    signature = signatures.signature(getattr(owner, name))

    class Noted:
        all = getattr(getattr(owner, name), "all", None)

        def __init__(self, *args, **options):
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            seen.asked.setdefault(name, []).append(bound.arguments)

        def known(self, *_):
            return {}

        keep = known

    monkeypatch.setattr(owner, name, Noted)


@pytest.mark.parametrize("words", CASES)
def test_an_option_changes_what_is_done(ask, words):
    seen = ask(words)
    assert seen.code == 0, seen.err
    assert CASES[words](seen)


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_line(ask, words):
    seen = ask(words)
    assert (seen.code, seen.out) == (2, "" if "--json" not in words else seen.out)
    (line,) = seen.err.splitlines()
    assert line.startswith("error: ")
    assert [text for text in REFUSED[words] if text not in line] == []
    assert not {"results", "refresh", "sweep", "compile_steps", "check_steps"} & set(seen.asked)


@pytest.mark.parametrize(("command", "found"), [("inspect", "summaries"), ("bench --part counters", "profile_steps")])
def test_a_step_named_alone_is_shown_on_the_preset_of_its_lesson(ask, command, found):
    default = problems.DEFAULT_PRESET
    one = next(one for one in catalog.steps() if catalog.usual_preset(one) != default[one.ladder])
    other = catalog.predecessors(one)[0].name
    shown = [presets(getattr(ask(f"{command} {words}"), found).pairs) for words in (one.name, f"{one.name} {other}")]
    assert shown == [{catalog.usual_preset(one)}, {default[one.ladder]}]


@pytest.mark.parametrize(("source", "says"), [(None, False), ("0" * 64, True)], ids=["as it is", "older"])
def test_a_sweep_that_is_older_than_the_code_starts_anew(ask, monkeypatch, source, says):
    def clean(steps):
        return iter([(tool, step, 0, "") for tool in tools.TOOLS for step in steps])

    code = cache.code(catalog.find("gemm_tuned").path)
    old = Sweep(source=source or code, points=[Point(tile={"PAD": 0}, status="wrong")])
    record = arguments.open_record(shipped=False)
    monkeypatch.setattr(record, "sweep", lambda *_: old)
    seen = ask("sweep gemm_tuned")
    assert f"{0 if says else 1} points of this sweep are recorded and current" in seen.out
    assert [tile["PAD"] for tile in seen.sweep.tiles] == ([0, 1, 2] if says else [1, 2])


def test_nothing_is_recorded_if_not_all_compiles_and_that_is_said(ask, monkeypatch):
    wrong = Outcome(step=catalog.find("gemm_naive"), problem=SMALL, status="crashed", message="no")
    monkeypatch.setattr(run, "compile_steps", lambda *_, **__: iter([wrong]))
    seen = ask("inspect gemm_naive --record")
    assert seen.code == 1
    assert "record_code" not in seen.asked
    assert "nothing is recorded" in seen.err


def test_a_bench_tells_what_failed_and_tries_alone_what_failed_together(ask, monkeypatch):
    named = ("gemm_naive", "gemm_tuned", "gemm_coarsened", "gemm_shared_tile")
    *items, held = ((catalog.find(name), "gemm-2048") for name in named)
    items, tried = [*items, held], []

    def measure(group, _):
        tried.append([step.name for step, _ in group])
        if items[1] in group:
            raise TimeoutError("too late")
        return 0

    part = parts.Part(lambda *_: items, lambda _, item: item == held, measure, together=2)
    monkeypatch.setitem(parts.PARTS, "counters", part)
    seen = ask("bench --part counters")
    assert seen.code == 1
    assert tried == [["gemm_naive", "gemm_tuned"], ["gemm_naive"], ["gemm_tuned"], ["gemm_coarsened"]]
    assert seen.err == "error: gemm_tuned gemm-2048: too late\n"


def test_trace_shows_both_steps_and_the_sentence_last(ask):
    seen = ask("trace gemm_naive gemm_tuned")
    assert seen.out.index("gemm_naive at M=") < seen.out.index("gemm_tuned at M=")
    assert seen.out.splitlines()[-1] == "For each multiply-add gemm_tuned needs 1.00 of gemm_naive's global loads."

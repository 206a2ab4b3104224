"""Every option of every command is honoured, or refused in one line that names it: alone, and beside every other.

What would take time or a GPU is asked for and not done: a case says what of it an option must change.
"""

import argparse
import inspect as signatures
import itertools
import json
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import asdict

from common import cli
from common.book import weighing
from common.catalog import cache, catalog, device, exercises, problems
from common.catalog.problems import Gemm
from common.commands import (
    arguments,
    choosing,
    edits,
    exercising,
    lessons,
    mainjob,
    measuring,
    pictures,
    renewing,
    selftime,
    web,
)
from common.edit import history, shipped
from common.explain import faults
from common.grade import folders, grade
from common.jobs import run, unchanged
from common.jobs.run import Outcome
from common.records import recording, records
from common.records.entries import Agreement, Counted, Point, Sweep
from common.report import agreement, charts, tracefigures, tracewords
from common.run import isolate
from common.timing import sanitizer
from common.timing.ceilings import Ceilings
from common.timing.profiler import Counts
from common.trace import trace

LESSON = "05_implicit_gemm"
SMALL = Gemm(M=3, N=4, K=2)
LAYER = "N=1 C=2 H=5 W=4 K=3 R=2 S=4"


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


@dataclass
class Case:
    """Words that have an option in them, and what must then hold; ``whole``: they are all of the command's."""

    words: str
    holds: object
    whole: bool = False


def whole(words, holds):
    return Case(words, holds, True)


def names(steps):
    return [step.name for step in steps]


def simulated(seen):
    """Does a lesson's run, watch or explanation do without the GPU?"""
    if "explain" in seen.asked:
        return seen.explain.simulator
    return (seen._watch if "_watch" in seen.asked else seen._lesson).simulated


def is_json(seen):
    return seen.json is not None


# By command: the words before each case's, and a case for each option or positional.
BASE = {
    "check": "gemm_naive", "time": "gemm_naive", "bench": "gemm_naive", "compile": "gemm_naive",
    "inspect": "gemm_naive", "profile": "gemm_naive", "sanitize": "gemm_naive", "sweep": "gemm_naive",
    "trace": "gemm_naive", "grade": "{class}", "photo": "conv2d_unrolled", LESSON: "conv2d_layer_dispatch",
}  # fmt: skip
CASES = {
    "list": {"--json": Case("--json", is_json)},
    "check": {
        "STEP": whole("gemm_naive 01.1 gemm_naive", lambda s: names(s.check_steps.steps) == ["gemm_naive", FIRST]),
        "--file": Case("--file {file}", lambda s: s.check_steps.file == s.folder / "mine.py"),
        "--json": Case("--json", is_json),
        "--shape": Case('--shape "M=3 N=4 K=2"', lambda s: s.check_steps.shape == SMALL),
        "--sim": Case("--sim", lambda s: s.check_steps.simulator),
        "--seed": Case("--seed 7", lambda s: s.check_steps.seed == 7),
        "--full": Case("--full", lambda s: s.check_steps.full),
        "--record": Case("--record", lambda s: s.check_steps.simulator and not s.check_steps.compiled),
    },
    "time": {
        "STEP": whole("gemm_naive", lambda s: names(step for step, _ in s.time_steps.pairs) == ["gemm_naive"]),
        "--file": Case("--file {file}", lambda s: s.time_steps.file == s.folder / "mine.py"),
        "--json": Case("--json", is_json),
        "--problem": Case("--problem gemm-2048", lambda s: {p for _, p in s.time_steps.pairs} == {"gemm-2048"}),
    },
    "bench": {
        "STEP": whole("gemm_naive", lambda s: names(s.Bench.steps) == ["gemm_naive"]),
        "--problem": Case("--problem gemm-2048", lambda s: {p for _, p in s.Bench.chosen["pairs"]} == {"gemm-2048"}),
        "--record": Case("--record", lambda s: s.Bench.chosen["shipped"]),
    },
    "compile": {
        "STEP": whole("01.1", lambda s: names(s.compile_steps.steps) == [FIRST]),
        "--file": Case("--file {file}", lambda s: s.compile_steps.file == s.folder / "mine.py"),
        "--json": Case("--json", is_json),
        "--problem": Case("--problem gemm-2048", lambda s: s.compile_steps.preset == "gemm-2048"),
        "--cc": Case("--cc 8.0 --cc 8.6 --cc 8.0", lambda s: s.compile_steps.architectures == ("8.0", "8.6")),
        "--machine-code": Case("--machine-code", lambda s: s.compile_steps.machine_code),
        "--record": Case("--record", lambda s: "record_code" in s.asked and s.compile_steps.every_preset),
    },
    "inspect": {
        "STEP": whole("gemm_naive", lambda s: names(step for step, _ in s.cards.pairs) == ["gemm_naive"]),
        "STEP2": Case(
            "gemm_tuned", lambda s: names(step for step, _ in s.cards.pairs) == ["gemm_naive", "gemm_tuned"]
        ),
        "--file": Case("--file {file}", lambda s: s.cards.file == s.folder / "mine.py"),
        "--problem": Case("--problem gemm-2048", lambda s: {p for _, p in s.cards.pairs} == {"gemm-2048"}),
        "--cc": Case("--cc 8.6", lambda s: s.cards.architecture == "8.6"),
        "--ptx": Case("--ptx", lambda s: s.cards.show == "ptx"),
        "--sass": Case("--sass", lambda s: s.cards.show == "sass"),
        "--json": Case("--json", is_json),
    },
    "profile": {
        "STEP": whole("gemm_naive", lambda s: names(step for step, _ in s.profile_steps.pairs) == ["gemm_naive"]),
        "--problem": Case("--problem gemm-2048", lambda s: {p for _, p in s.profile_steps.pairs} == {"gemm-2048"}),
        "--record": Case("--record", lambda s: s.open_record.shipped and "put_profile" in s.asked),
    },
    "sanitize": {
        "STEP": whole("gemm_naive", lambda s: names(s.sanitize_steps.steps) == ["gemm_naive"]),
        "--record": Case("--record", lambda s: s.open_record.shipped and "put_sanitizer" in s.asked),
    },
    "accuracy": {"--record": Case("--record", lambda s: s.open_record.shipped)},
    "renew": {
        "PART": whole("rows", lambda s: not s.Bench.fresh and "profile_steps" not in s.asked),
        "--minutes": whole("rows --minutes 0.5", lambda s: "Bench" not in s.asked and "rows: no time for 1" in s.out),
        "--record": whole("rows --record", lambda s: s.open_record.shipped and s.Bench.chosen["shipped"]),
        "--list": whole("--list", lambda s: s._list.names[0] == "rows" and list(s.asked) == ["_list"]),
    },
    "epilogues": {
        "--problem": Case(
            "--problem hc3d-conv3a", lambda s: {p for _, p, _ in s.measure_epilogues.convolutions} == {"hc3d-conv3a"}
        ),
        "--record": Case("--record", lambda s: s.open_record.shipped),
    },
    "sweep": {
        "STEP": whole("gemm_tuned", lambda s: s.sweep.step.name == "gemm_tuned"),
        "--problem": Case("--problem gemm-2048", lambda s: s.sweep.preset == "gemm-2048"),
        "--values": Case('--values "PAD=0,2,0"', lambda s: [t["PAD"] for t in s.sweep.tiles] == [0, 2]),
        "--record": Case("--record", lambda s: s.open_record.shipped),
    },
    "trace": {
        "STEP": Case("gemm_tuned", lambda s: s.out.count("gemm_tuned") or "gemm_tuned" in names_of(s)),
        "--file": Case("--file {file}", lambda s: str(s.folder / "mine.py") in paths_of(s)),
        "--json": Case("--json", is_json),
        "--shape": Case('--shape "M=3 N=4 K=2"', lambda s: {str(shape) for shape in shapes_of(s)} == {str(SMALL)}),
        "--block": Case("--block 1,2", lambda s: {t.options.block for t in s.results.tasks} == {(1, 2, 0)}),
        "--figure": Case("--figure {out}/own.png", lambda s: s.save.stem == s.folder / "out" / "own"),
        "--html": Case(
            "--html {out}.html", lambda s: f"{s.folder / 'out.html'}" in (s.out + s.err).replace("\n", "")
        ),
        "--agree": Case("--agree", lambda s: "refresh" in s.asked),
        "--record": Case("--agree --record", lambda s: "put_agreement" in s.asked),
    },
    "diff": {
        "FROM": whole("gemm_naive gemm_tuned", lambda s: "@@ gemm_naive.py" in s.out),
        "TO": whole("gemm_naive gemm_tuned", lambda s: ", gemm_tuned.py" in s.out),
    },
    "history": {"STEP": whole("gemm_naive", lambda s: s.events.step == "gemm_naive")},
    "restore": {
        "STEP": whole("gemm_naive", lambda s: (s.choose.path.stem, s.choose.wanted) == ("gemm_naive", None)),
        "N|HASH": whole("gemm_naive 3", lambda s: s.choose.wanted == "3"),
    },
    "reset": {"LESSON|STEP": whole("gemm_naive", lambda s: s.text.path.stem == "gemm_naive")},
    "ship": {},
    "grade": {
        "TARGET": whole(
            "02.1 02.1 --sim", lambda s: [f.path.stem for f in s.all.files] == [exercises.find("02.1").name]
        ),
        "--json": Case("--json", lambda s: s.json["grades"] == []),
        "--sim": Case("--sim", lambda s: s.Grader.machine.gpu is None),
        "--seconds": Case("--seconds 90.5", lambda s: s.Grader.limits.seconds == 90.5),
        "--memory": Case("--memory 2", lambda s: s.Grader.limits.memory_bytes == 2 << 30),
        "--workers": Case("--workers 3", lambda s: s.all.workers == 3),
        "--out": Case("--out {out}", lambda s: s.report.folder == s.folder / "out"),
    },
    "hint": {"NUMBER": whole("01.2", lambda s: s.out.startswith("01.2 "))},
    "progress": {},
    "book": {
        "--out": Case("--out {out}", lambda s: s._build.out == s.folder / "out"),
        "--fresh": Case("--fresh", lambda s: s._build.fresh),
        "--weigh": Case("--weigh", lambda s: s._weigh.program == "browser"),
    },
    "charts": {
        "--fresh": Case("--fresh", lambda s: s.redraw.fresh),
        "--record": Case("--record --fresh", lambda s: s.redraw_shipped.fresh and "redraw" not in s.asked),
    },
    "photo": {
        "STEP": whole("conv2d_coarsened", lambda s: s.draw_photo.step.name == "conv2d_coarsened"),
        "--sim": Case("--sim", lambda s: s.draw_photo.simulator),
        "--record": Case("--record", lambda s: s.draw_photo.folder == records.RESULTS),
    },
    "selftime": {"--json": Case("--json", is_json)},
    "all": {
        "--fresh": Case("--fresh", lambda s: all(one.fresh for one in (s.redraw, s.Outcomes, s.Bench))),
        "--sim": Case("--sim", lambda s: "Bench" not in s.asked and "ready" not in s.asked),
    },
    LESSON: {
        "STEP": whole("conv3d_implicit_gemm", lambda s: s._lesson.name == "conv3d_implicit_gemm"),
        "--problem": Case("--problem ece408-layer2", lambda s: "ece408-layer2" in problem_of(s)),
        "--sim": Case("--sim", simulated),
        "--watch": Case("--watch", lambda s: "_watch" in s.asked),
        "--explain": Case("--explain", lambda s: s.explain.step.name == "conv2d_layer_dispatch"),
        "--shape": Case(f'--explain --shape "{LAYER}"', lambda s: str(s.explain.problem) == LAYER),
    },
}
FIRST = exercises.find("01.1").name


def names_of(seen):
    return [task.step for task in seen.results.tasks] if "results" in seen.asked else names(agreed(seen))


def paths_of(seen):
    if "results" in seen.asked:
        return [task.path for task in seen.results.tasks]
    return [str(step.path) for step in agreed(seen)]


def shapes_of(seen):
    if "results" in seen.asked:
        return [problems.from_shape("gemm", task.shape) for task in seen.results.tasks]
    return [problem for _, problem in seen.refresh.pairs]


def agreed(seen):
    return [step for step, _ in seen.refresh.pairs]


def problem_of(seen):
    """The preset that a lesson's run, watch or explanation is about."""
    if "explain" in seen.asked:
        return [name for name, problem in problems.PRESETS.items() if problem == seen.explain.problem]
    return [(seen._watch if "_watch" in seen.asked else seen._lesson).preset]


@pytest.fixture(scope="module")
def traced():
    """What a trace of a right kernel looks like."""
    return trace.run(catalog.load(catalog.find("gemm_naive").path, "gemm"), SMALL).as_dict()


def reached(*_args, **_options):
    raise AssertionError("work is done that no case stands in for")


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
        return iter([Outcome(step, SMALL, None, {"status": "right", "kernels": []}) for step in steps])

    card = device.Gpu("NVIDIA Test 9", "9.0", 100, 2**36, 2**25, "1", "13.0")
    record = SimpleNamespace(
        gpu_name=card.name, slug=card.slug, sweep=lambda *_: None, put_sweep=lambda *_: None,
        put_profile=lambda *a: seen.asked.setdefault("put_profile", []).append({}),
        put_sanitizer=lambda *a: seen.asked.setdefault("put_sanitizer", []).append({}),
        put_agreement=lambda *a: seen.asked.setdefault("put_agreement", []).append({}),
    )  # fmt: skip
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "cache")
    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    note(device, "ready", True)
    monkeypatch.setattr(device, "require_gpu", lambda what: None)
    monkeypatch.setattr(device, "compute_capability", lambda: "9.0")
    note(choosing, "open_record", (record, "key"))
    monkeypatch.setattr(exercises.State.__init__, "__defaults__", (tmp_path / "exercises.json",))
    for name in ("run", "run_groups", "watched"):
        monkeypatch.setattr(isolate, name, reached)
    note(run, "check_steps", nothing)
    note(run, "measure_device", (card, Ceilings(copy_gbs=1.0, fma_gflops=1.0)))
    note(run, "inspect_device", (card, 2**30))
    note(run, "time_steps", nothing)
    note(run, "compile_steps", compiled)
    note(recording, "record_code")
    note(run, "cards", nothing)
    note(run, "explain", "because")
    note(run, "tunables", {"tunables": {"PAD": [0, 1, 2]}, "shipped": {"PAD": 1}})
    note(run, "sweep", nothing)
    note(run, "measure_epilogues", nothing)
    note(
        run,
        "profile_steps",
        lambda pairs: [run.Profiled(*pair, [], {}, catalog.provenance(pair[0].path)) for pair in pairs],
    )
    note(run, "sanitize_steps", lambda steps: iter([(t, step, 0, "") for t in sanitizer.TOOLS for step in steps]))
    note(trace, "results", lambda tasks: iter([traced] * len(tasks)))
    note(agreement, "refresh", lambda pairs, known: iter([(*pair, ENTRY) for pair in pairs]))
    note(agreement, "rows", (["kernel", "shape"], [], []))
    note(charts, "save", lambda stem, **_: stem)
    note(tracefigures, "accesses")
    note(selftime, "measure", selftime.Measured(1, False, {}))
    note(history, "events", [])
    note(history, "choose", lambda path, wanted: history.Event(path.stem, "0" * 64, "run"))
    note(history, "stored", b"")
    note(history, "put_back", "")
    note(shipped, "text", None)
    note(folders, "report", (Path("a"), Path("b")))
    note(grade.Grader, "all", nothing)
    note(exercising, "_remember")
    note(unchanged.Outcomes, "known", {})
    monkeypatch.setattr(weighing, "browser", lambda: "browser")
    for module, name in (
        (web, "_build"), (web, "_weigh"), (measuring, "accuracy"), (pictures, "redraw"), (pictures, "redraw_shipped"),
        (pictures, "draw_photo"), (lessons, "_lesson"),
        (lessons, "_watch"),
        (mainjob, "_check_rest"), (renewing, "_list"), (renewing, "_rows"), (lessons, "keep_shipped"),
        (edits, "name_edited_helpers"),
    ):  # fmt: skip
        note(module, name, {"_check_rest": [], "_rows": [(catalog.find("gemm_tuned"), "gemm-2048")]}.get(name, 0))

    class Noted:
        """Stands in for a class whose construction is noted."""

        def __init_subclass__(cls, of):
            cls.signature = signatures.signature(of)
            cls.of = of.__name__

        def __init__(self, *args, **options):
            bound = self.signature.bind(*args, **options)
            bound.apply_defaults()
            seen.asked.setdefault(self.of, []).append(bound.arguments)

        def prepare(self, _):
            return SimpleNamespace(before_timing=lambda: None, cancel=lambda: None)

        failed = left = ()

        def known(self, *_):
            return {}

        def run(self, *_, **options):
            return 0

        def wait(self):
            return []

    class Bench(Noted, of=measuring.Bench):
        pass

    class Grader(Noted, of=grade.Grader):
        all = grade.Grader.all

    class Outcomes(Noted, of=unchanged.Outcomes):
        keep = Noted.known

    monkeypatch.setattr(measuring, "Bench", Bench)
    monkeypatch.setattr(grade, "Grader", Grader)
    monkeypatch.setattr(unchanged, "Outcomes", Outcomes)

    def ask(command, words):
        places = {"file": tmp_path / "mine.py", "class": tmp_path / "class", "out": tmp_path / "out"}
        listed = [word.format(**places) for word in shlex.split(words)]
        seen.asked.clear()
        try:
            seen.code = cli.lesson_main(LESSON, listed) if command == LESSON else cli.main([command, *listed])
        except SystemExit as ended:
            seen.code = ended.code
        seen.out, seen.err = capsys.readouterr()
        return seen

    return ask


ENTRY = {"shape": SMALL.shape(), "kernels": []}


def parsers():
    """Each command's parser, and a lesson's, which are all alike."""
    commands = next(a for a in cli.common_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {**commands.choices, LESSON: lessons.parser(LESSON)}


def options_of(parser):
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    return {action.option_strings[-1] if action.option_strings else action.metavar for action in actions}


def test_every_option_has_a_case():
    assert {name: options_of(parser) for name, parser in parsers().items()} == {
        name: set(cases) for name, cases in CASES.items()
    }


ALL = [(command, option) for command, cases in CASES.items() for option in cases]


@pytest.mark.parametrize(("command", "option"), ALL)
def test_an_option_changes_what_is_done(ask, command, option):
    case = CASES[command][option]
    seen = ask(command, case.words if case.whole else f"{BASE.get(command, '')} {case.words}")
    assert seen.code == 0, seen.err
    assert case.holds(seen)
    if not case.whole and command in BASE:  # and it is the option that does
        without = ask(command, BASE[command])
        assert without.code == 0, without.err
        assert not held(case, without)


def held(case, seen):
    try:
        return case.holds(seen)
    except (AttributeError, KeyError, ValueError):
        return False


@pytest.mark.parametrize(("command", "found"), [("inspect", "cards"), ("profile", "profile_steps")])
def test_a_step_named_alone_is_shown_on_the_preset_of_its_lesson(ask, command, found):
    default = problems.DEFAULT_PRESET
    one = next(one for one in catalog.steps() if catalog.usual_preset(one) != default[one.ladder])
    other = catalog.predecessors(one)[0].name
    presets = [
        {p for _, p in getattr(ask(command, words), found).pairs} for words in (one.name, f"{one.name} {other}")
    ]
    assert presets == [{catalog.usual_preset(one)}, {default[one.ladder]}]


@pytest.mark.parametrize("command", BASE)
def test_two_options_are_both_honoured_or_one_is_named_as_refused(ask, command):
    chosen = {name: case for name, case in CASES[command].items() if not case.whole}
    for one, other in itertools.combinations(chosen, 2):
        first, second = chosen[one], chosen[other]
        seen = ask(command, f"{BASE[command]} {first.words} {second.words}")
        if seen.code == 2:
            said = seen.err.splitlines()
            assert one in said[-1] or other in said[-1] or ("STEP" in (one, other) and "STEP" in said[-1]), said
            assert len(said) == 1 or said[0].startswith("usage: "), said
        else:
            assert seen.code == 0, (one, other, seen.err)
            assert first.holds(seen), (one, other)
            assert second.holds(seen), (one, other)


@pytest.mark.parametrize(("command", "option"), ALL)
def test_no_value_is_empty_and_no_option_is_given_twice(ask, command, option):
    (action,) = (a for a in parsers()[command]._actions if option in (*a.option_strings, a.metavar))
    if not isinstance(action, arguments.Once):
        return
    if action.option_strings:
        seen = ask(command, f"{BASE.get(command, '')} {option} 1 {option} 2")
        assert (seen.code, seen.asked) == (2, {})
        assert f"error: {option} '2': is given twice" in seen.err
        seen = ask(command, f"{BASE.get(command, '')} {option}")
        assert (seen.code, seen.asked) == (2, {})
        assert seen.err.splitlines() == [f"error: {option}: must have a value: {action.metavar}"]
        words = f"{BASE.get(command, '')} {option} ''"
    else:
        before = [one for one in CASES[command] if not one.startswith("--")].index(option)
        words = "gemm_naive " * before + "''"
    seen = ask(command, words)
    assert (seen.code, seen.asked) == (2, {})
    assert seen.err.startswith(f"error: {option} '': must not be empty")
    assert len(seen.err.splitlines()) == 1


# What is refused, and what the one line must say.
REFUSED = [
    ("check", 'gemm_naive --shape "M=99999999999999999999 N=1 K=1"', ["--shape 'M=99", "GB", "may take"]),
    ("check", "gemm_naive --seed -1", ["--seed -1: must be an integer from 0 to 2147483647"]),
    ("check", "gemm_naive --seed 1.5", ["--seed '1.5': must be an integer"]),
    ("check", "gemm_naive --full --shape 'M=4 N=5 K=6'", ["--full has shapes of its own"]),
    ("compile", "gemm_naive --cc 1.0", ["--cc '1.0': must be a compute capability", "7.5, 8.0"]),
    ("compile", "gemm_naive --cc 99.0", ["--cc '99.0'", "7.5, 8.0"]),
    ("compile", "gemm_naive --record --cc 8.0", ["--record: takes one --cc, 9.0"]),
    ("compile", "01.1 --record", ["--record", FIRST, "is an exercise"]),
    ("inspect", "gemm_naive gemm_naive", ["STEP2 gemm_naive: is STEP itself"]),
    ("inspect", "gemm_naive --cc 9", ["--cc '9': must be a compute capability such as 9.0"]),
    ("inspect", "gemm_naive gemm_tuned --file {file}", ["--file", "name the one STEP", "2 are named"]),
    ("trace", "gemm_naive gemm_naive", ["STEP2 gemm_naive: is STEP itself"]),
    ("trace", "gemm_naive gemm_tuned --file {file}", ["--file", "name the one STEP", "2 are named"]),
    ("trace", "gemm_naive gemm_tuned --figure {out}", ["--figure", "draws one STEP, and 2 are named"]),
    ("trace", 'gemm_naive conv2d_naive --shape "M=3 N=4 K=2"', ["--shape 'M=3 N=4 K=2'", "one ladder"]),
    ("trace", "gemm_naive --figure own.pdf", ["--figure own.pdf: must be", ".png or .svg"]),
    ("trace", "gemm_naive --figure /", ["--figure /: must be"]),
    ("trace", "gemm_naive --html own.pdf", ["--html own.pdf: must end in .html"]),
    ("trace", "gemm_naive --html none/own.html", ["--html none/own.html: there is no folder none"]),
    ("trace", "gemm_naive --agree --html {out}.html", ["--html: goes with a trace of one block"]),
    ("trace", 'gemm_naive --shape "M=99999999 N=99999999 K=1"', ["--shape 'M=99999999", "GB"]),
    ("trace", "gemm_naive --record", ["--record: goes with --agree"]),
    ("trace", "01.1 --agree --record", ["--record", FIRST, "is an exercise"]),
    ("sweep", 'gemm_tuned --values " "', ["--values ' ': must name a tunable", "PAD"]),
    ("sweep", 'gemm_tuned --values "PAD=1 PAD=2"', ["--values 'PAD=2': PAD is given twice"]),
    ("grade", "02.1 --out {out}", ["--out", "goes with a folder"]),
    ("grade", "--out {out}", ["--out", "goes with a folder"]),
    ("grade", "{class} --memory 0.001", ["--memory 0.001: must be at least 0.5"]),
    ("grade", "{class} --memory inf", ["--memory inf: must be more than 0, and less than a million"]),
    ("grade", "{class} --workers 1.5", ["--workers '1.5': must be an integer"]),
    ("grade", "{class} --seconds long", ["--seconds 'long': must be a number"]),
    (LESSON, f'--shape "{LAYER}"', [f"--shape '{LAYER}': goes with --explain"]),
    (LESSON, "--explain", ["--explain: takes the one STEP"]),
    (LESSON, "gemm_naive --explain", ["'gemm_naive' is not in lesson 05"]),
    (LESSON, "conv2d_layer_dispatch --explain --problem unet3d", ["'unet3d' is a conv3d problem"]),
    (LESSON, "conv2d_layer_dispatch --explain --watch", ["--explain: goes without --watch"]),
    (LESSON, f'conv2d_layer_dispatch --explain --problem photo --shape "{LAYER}"', ["--shape", "--problem photo"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "words", "says"), REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_line(ask, command, words, says):
    seen = ask(command, words)
    assert (seen.code, seen.out) == (2, "")
    (line,) = seen.err.splitlines()
    for text in says:
        assert text in line
    assert not {"results", "refresh", "sweep", "compile_steps", "check_steps", "explain"} & set(seen.asked)


@pytest.mark.parametrize(("source", "says"), [(None, False), ("0" * 64, True)], ids=["as it is", "older"])
def test_a_sweep_that_is_older_than_the_code_starts_anew(ask, monkeypatch, source, says):
    code = catalog.provenance(catalog.find("gemm_tuned").path)
    old = Sweep(source=source or code.source, helpers=code.helpers, points=[Point(tile={"PAD": 0}, status="wrong")])
    record, _ = choosing.open_record(shipped=False)
    monkeypatch.setattr(record, "sweep", lambda *_: old)
    seen = ask("sweep", "gemm_tuned")
    assert ("measured on an older version of the file" in seen.out) == says
    assert [tile["PAD"] for tile in seen.sweep.tiles] == ([0, 1, 2] if says else [1, 2])


def test_a_refusal_is_json_where_json_is_asked_for(ask):
    seen = ask("check", "gemm_naive --json --seed one")
    assert seen.json == {"error": "--seed 'one': must be an integer"}


def test_what_a_command_does_not_know_is_answered_with_its_own_usage(ask):
    seen = ask("trace", "gemm_naive --seed 3")
    assert seen.code == 2
    assert "usage: python -m common trace " in seen.err
    assert "--figure OUT" in seen.err
    assert seen.err.splitlines()[-1].endswith("unrecognized arguments: --seed 3")


def test_nothing_is_recorded_if_not_all_compiles_and_that_is_said(ask, monkeypatch):
    wrong = Outcome(catalog.find("gemm_naive"), SMALL, None, {"status": "crashed", "message": "no"})
    monkeypatch.setattr(run, "compile_steps", lambda *_, **__: iter([wrong]))
    seen = ask("compile", "gemm_naive --record")
    assert seen.code == 1
    assert "record_code" not in seen.asked
    assert "nothing is recorded" in seen.err


def test_a_shape_may_take_what_a_process_may(ask, monkeypatch):
    need = 3 * SMALL.least_bytes
    for room, code in ((need, 0), (need - 1, 2)):
        monkeypatch.setattr(device, "memory_for_a_child", lambda gpu, room=room: room)
        assert ask("check", 'gemm_naive --shape "M=3 N=4 K=2"').code == code


def test_the_command_that_shows_a_fault_can_be_copied(monkeypatch, write):
    fault = faults.Fault("outside", "m", 1, thread=(0, 0, 0), block=(0, 0, 0))
    found = {"trace": {"kernels": [{"faults": [fault.as_dict()]}]}}
    monkeypatch.setattr(isolate, "run", lambda *_: [({}, found)])
    file = write("my kernels/mine $1.py", "")
    _, command = tracewords.suspicion(catalog.find("gemm_naive"), SMALL, file)
    assert shlex.split(command)[-2:] == ["--file", str(file)]


def test_what_is_known_of_a_shipped_step_is_not_said_of_another_file(monkeypatch, write):
    step, problem = catalog.find("gemm_shared_tile"), trace.SHAPES["gemm"][0]
    counts = dict.fromkeys(agreement.COLUMNS, 4)
    kernel = {"name": step.name, "totals": counts}
    monkeypatch.setattr(trace, "results", lambda tasks: iter([{"kernels": [kernel]}] * len(tasks)))
    for one, said in (
        (step, "The compiler reads four neighbours"),
        (replace(step, path=write("mine.py", step.path.read_text())), "Not explained"),
    ):
        ((traced, merged),) = agreement.count([(one, problem)])
        measured = Counts(**{**counts, "shared_load_wavefronts": 3})
        found = Counted(kernel=step.name, hardware=measured, trace=traced[step.name], compiled=merged.get(step.name))
        case = Agreement(**asdict(catalog.provenance(one.path)), shape=problem.shape(), kernels=[found])
        (note,) = agreement.rows({step.name: {str(problem): case}}, [one])[2]
        assert said in note
        assert (step.name in merged) == (one is step)


# --- two steps beside each other ---


def of(name, problem=trace.SHAPES["gemm"][0]):
    step = catalog.find(name)
    return trace.run(catalog.load(step.path, step.ladder), problem).as_dict()


def test_two_traces_end_with_one_sentence_on_their_loads():
    coarse, tile, naive = ({name: of(name)} for name in ("gemm_coarsened", "gemm_shared_tile", "gemm_naive"))
    assert tracewords.comparison(tile | coarse) == (
        "gemm_coarsened needs 0.56 of gemm_shared_tile's shared loads per multiply-add, and 1.00 of its global loads."
    )
    assert tracewords.comparison(naive | tile) == (
        "gemm_shared_tile needs 2.00 shared loads per multiply-add where gemm_naive needs none, and 0.031 of its "
        "global loads."
    )
    copies = {"copies": {"kernels": [{**naive["gemm_naive"]["kernels"][0], "fma": 0, "per_fma": {}}]}}
    assert tracewords.comparison(naive | copies) == (
        "copies has no float32 multiply-add: its loads cannot be compared."
    )


def test_trace_shows_both_steps_and_the_sentence_last(ask):
    seen = ask("trace", "gemm_naive gemm_tuned")
    assert seen.out.index("gemm_naive at M=") < seen.out.index("gemm_tuned at M=")
    assert seen.out.splitlines()[-1] == "gemm_tuned needs 1.00 of gemm_naive's global loads per multiply-add."
    seen = ask("trace", "gemm_naive gemm_tuned --json")
    assert [entry["step"] for entry in seen.json["steps"]] == ["gemm_naive", "gemm_tuned"]
    assert seen.json["comparison"].startswith("gemm_tuned needs 1.00 of ")

"""``renew`` measures what a record lacks or has of older code, keeps each lesson's as it comes, and goes on."""

import dataclasses
import shutil
from types import SimpleNamespace

import pytest

from common.book import catalog, device
from common.cli import main
from common.commands import choosing, measuring, renewing
from common.jobs import run
from common.measure import profiler, sanitizer
from common.measure.profiler import Counts
from common.report import agreement, records
from common.report.entries import Agreement, Counted
from common.report.records import Record

COUNTS = Counts(**dict.fromkeys(profiler.COUNTED, 0))
STEPS = ("gemm_naive", "gemm_tuned", "conv3d_implicit_gemm", "hgemm_mma", "hgemm_clustered", "dgrad_direct")
CARD = f"{records.REFERENCE_GPU}.json"


@pytest.fixture
def card(monkeypatch, tmp_path):
    """As if there were a GPU whose record is a copy of the reference card's; what is measured is noted."""
    shutil.copyfile(records.RESULTS / CARD, tmp_path / CARD)
    few, asked = [catalog.find(name) for name in STEPS], []
    able = renewing._able
    monkeypatch.setattr(renewing, "_able", lambda record: [step for step in able(record) if step in few])

    def opened():
        record = Record.load(tmp_path / CARD)
        return record, record.start_run()

    def profiled(pairs):
        asked.append([step.name for step, _ in pairs])
        return [run.Profiled(step, preset, [], {}, catalog.provenance(step.path)) for step, preset in pairs]

    def sanitized(steps):
        asked.append([step.name for step in steps])
        return iter([(tool, step, 0, "") for tool in sanitizer.TOOLS for step in steps])

    def counted(pairs):
        asked.append([step.name for step, _ in pairs])
        for step, shape in pairs:
            kernels = [Counted(kernel="k", hardware=COUNTS, trace=COUNTS)]
            code = catalog.provenance(step.path)
            entry = Agreement(source=code.source, helpers=code.helpers, shape=shape.shape(), kernels=kernels)
            yield step, shape, entry

    def fused(convolutions):
        asked.append([step for step, _, _ in convolutions])
        for name, preset, ways in convolutions:
            step, made = catalog.find(name), catalog.ROOT / f"{ways.replace('.', '/')}.py"
            code = {"code": catalog.provenance(step.path), "ways": catalog.provenance(made)}
            yield step, preset, {**code, "shape": {}, "found": [], "library": ""}

    def erred(steps):
        asked.append([step.name for step in steps])
        points = [SimpleNamespace(operands="normals", product=step.name, points=[], library="") for step in steps]
        return {"products": points, "code": {step.name: catalog.provenance(step.path) for step in steps}}

    monkeypatch.setattr(device, "gpu_count", lambda: 1)
    monkeypatch.setattr(device, "require_gpu", lambda what: None)
    monkeypatch.setattr(choosing, "open_record", opened)
    monkeypatch.setattr(run, "profile_steps", profiled)
    monkeypatch.setattr(run, "sanitize_steps", sanitized)
    monkeypatch.setattr(agreement, "refresh", counted)
    monkeypatch.setattr(run, "measure_epilogues", fused)
    monkeypatch.setattr(run, "measure_accuracy", erred)
    return SimpleNamespace(asked=asked, path=tmp_path / CARD)


def forget(path):
    """Make the record one whose gemm_tuned is of older code."""
    text = path.read_text()
    step = catalog.find("gemm_tuned")
    now = catalog.provenance(step.path).source
    assert now in text
    path.write_text(text.replace(now, "0" * len(now)))


@pytest.mark.parametrize("part", renewing.PARTS)
def test_what_is_missing_is_measured_by_lesson_and_then_nothing(card, part, capsys):
    forget(card.path)
    expected = renewing.PARTS[part].missing(Record.load(card.path))
    assert main(["renew", part]) == 0
    names = [name for batch in card.asked for name in batch]
    assert names == [step.name for step, *_ in expected] if part != "errors" else "gemm_tuned" in names
    lessons = [{catalog.find(name).lesson for name in batch} for batch in card.asked]
    assert part == "errors" or all(len(lesson) == 1 for lesson in lessons)
    card.asked.clear()
    assert main(["renew", part]) == 0
    assert card.asked == []
    capsys.readouterr()
    assert main(["renew", part, "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"{part}: nothing"]
    if part != "epilogues":
        forget(card.path)
        assert main(["renew", part]) == 0
        assert "gemm_tuned" in card.asked[0]
        assert part == "errors" or card.asked == [["gemm_tuned"]]


def test_what_fails_costs_only_its_lesson_and_what_was_measured_is_kept(card, monkeypatch, capsys):
    lessons = sorted({step.lesson for step, _ in renewing.PARTS["counters"].missing(Record.load(card.path))})
    assert len(lessons) > 2
    whole = run.profile_steps

    def failing(pairs):
        if pairs[0][0].lesson == lessons[1]:
            raise profiler.ProfileError("ncu was lost")
        return whole(pairs)

    monkeypatch.setattr(run, "profile_steps", failing)
    assert main(["renew", "counters"]) == 1
    assert "ncu was lost" in capsys.readouterr().out
    left = renewing.PARTS["counters"].missing(Record.load(card.path))
    assert {step.lesson for step, _ in left} == {lessons[1]}


def test_rows_are_those_that_make_all_would_time(card, monkeypatch):
    asked = []
    monkeypatch.setattr(run, "inspect_device", lambda: ("card", 2**30))
    monkeypatch.setattr(measuring, "Bench", lambda *given, **options: asked.append((given, options)))
    monkeypatch.setattr(measuring, "bench", lambda _: 0)
    assert main(["renew", "rows"]) == 0
    ((given, options),) = asked
    assert (given, options) == ((catalog.everything(), "card", 2**30), {"fresh": False})
    assert card.asked == []


def test_a_card_is_asked_for_what_it_can_run_only(card):
    record = Record.load(card.path)
    record.data.gpu = dataclasses.replace(record.data.gpu, compute_capability="8.0")
    for part in ("counters", "sanitizer", "agreement"):
        names = {step.name for step, *_ in renewing.PARTS[part].missing(record)}
        assert names
        assert not names & {step.name for step in catalog.everything() if not step.runs_on("8.0")}


def test_an_unknown_part_is_one_line(card, capsys):
    assert main(["renew", "speed"]) == 2
    said = capsys.readouterr().err
    assert said == "error: PART 'speed': must be one of rows, epilogues, errors, counters, sanitizer, agreement\n"
    assert card.asked == []

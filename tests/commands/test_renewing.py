"""``renew`` measures what a record lacks or has of older code, keeps it as it comes, and goes on whatever fails."""

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from common.catalog import cache, catalog, device, problems, sources, store
from common.cli import main
from common.commands import choosing, measuring, renewing
from common.jobs import run
from common.jobs.run import Outcome
from common.records import current, records
from common.records.entries import Agreement, Counted
from common.records.records import Record
from common.report import agreement, training
from common.timing import peers, profiler, sanitizer
from common.timing.profiler import Counts

COUNTS = Counts(**dict.fromkeys(profiler.COUNTED, 0))
STEPS = ("gemm_naive", "gemm_tuned", "conv3d_implicit_gemm", "hgemm_mma", "hgemm_clustered", "dgrad_direct")
CARD = f"{records.REFERENCE_GPU}.json"


@pytest.fixture
def card(monkeypatch, tmp_path):
    """As if there were a GPU whose record is a copy of the reference card's; what is measured is noted.

    Of STEPS, counters, the sanitizer's findings and agreement are of older code, and so is training; a preset's
    epilogues are not there.
    """
    older = json.loads((records.RESULTS / CARD).read_text())
    for name in STEPS:
        step, now = catalog.find(name), sources.provenance(catalog.find(name).path).source
        for part, of in (("profile", problems.DEFAULT_PRESET[step.ladder]), ("sanitizer", name), ("agreement", name)):
            held = json.dumps(older[part].get(of, {}))
            older[part][of] = json.loads(held.replace(now, "0" * len(now)))
    older["epilogues"].popitem()
    (tmp_path / CARD).write_text(json.dumps(older))
    (tmp_path / "training").mkdir()
    learnt = json.loads((records.RESULTS / "training" / CARD).read_text())
    for part in ("trained", "compared"):
        learnt[part]["code"] = dict.fromkeys(learnt[part]["code"], "0" * 64)
    (tmp_path / "training" / CARD).write_text(json.dumps(learnt))
    monkeypatch.setattr(records, "OWN", tmp_path)
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "cache")
    monkeypatch.setenv("COLUMNS", "2000")
    few, asked = [catalog.find(name) for name in STEPS], []
    able = renewing._able
    monkeypatch.setattr(renewing, "_able", lambda record: [step for step in able(record) if step in few])

    def opened(shipped):
        record = Record.load(tmp_path / CARD)
        return record, record.start_run()

    def profiled(pairs):
        asked.append([step.name for step, _ in pairs])
        return [run.Profiled(step, preset, [], {}, sources.provenance(step.path)) for step, preset in pairs]

    def sanitized(steps):
        asked.append([step.name for step in steps])
        return iter([(tool, step, 0, "") for tool in sanitizer.TOOLS for step in steps])

    def counted(pairs):
        asked.append([step.name for step, _ in pairs])
        for step, shape in pairs:
            kernels = [Counted(kernel="k", hardware=COUNTS, trace=COUNTS)]
            code = sources.provenance(step.path)
            entry = Agreement(source=code.source, helpers=code.helpers, shape=shape.shape(), kernels=kernels)
            yield step, shape, entry

    def fused(convolutions):
        asked.append([step for step, _, _ in convolutions])
        for name, preset, ways in convolutions:
            step, made = catalog.find(name), catalog.ROOT / f"{ways.replace('.', '/')}.py"
            code = {"code": sources.provenance(step.path), "ways": sources.provenance(made)}
            yield step, preset, {**code, "shape": {}, "found": [], "library": ""}

    def erred(steps):
        asked.append([step.name for step in steps])
        points = [SimpleNamespace(operands="normals", product=step.name, points=[], library="") for step in steps]
        return {"products": points, "code": {step.name: sources.provenance(step.path) for step in steps}}

    def trained(words, **_):
        asked.append([{"train": "trained", "compare": "compared"}[words[-1]]])
        path = training.path_of(records.REFERENCE_GPU)
        data = json.loads(path.read_text())
        data[asked[-1][0]]["code"] = current.trained_code()
        path.write_text(json.dumps(data))
        return subprocess.CompletedProcess(words, 0, "one\nrecorded\n", "")

    monkeypatch.setattr(subprocess, "run", trained)
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
    now = sources.provenance(step.path).source
    assert now in text
    path.write_text(text.replace(now, "0" * len(now)))


def missing(card, part="counters"):
    """The names of what the record lacks of a part."""
    return [renewing._named(one) for one in renewing.PARTS[part].missing(Record.load(card.path))]


def lesson(name):
    return catalog.find(name).lesson


@pytest.mark.parametrize("part", renewing.PARTS)
def test_what_is_missing_is_measured_by_lesson_and_then_nothing(card, part, capsys):
    forget(card.path)
    expected = renewing.PARTS[part].missing(Record.load(card.path))
    assert expected
    assert main(["renew", part]) == 0
    names = [name for batch in card.asked for name in batch]
    assert names == [first.name for first, *_ in expected] if part != "errors" else "gemm_tuned" in names
    own = part in ("errors", "training")
    assert own or all(len({*map(lesson, batch)}) == 1 for batch in card.asked)
    assert part == "errors" or all(len(batch) <= renewing.PARTS[part].together for batch in card.asked)
    card.asked.clear()
    assert main(["renew", part]) == 0
    assert card.asked == []
    capsys.readouterr()
    assert main(["renew", part, "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"{part}: nothing"]
    if part not in ("epilogues", "training"):
        forget(card.path)
        assert main(["renew", part]) == 0
        assert "gemm_tuned" in card.asked[0]
        assert part == "errors" or card.asked == [["gemm_tuned"]]


def test_counters_of_another_problem_are_read_anew_where_they_were_read_before(card):
    before, record = missing(card), json.loads(card.path.read_text())
    assert "gemm_tuned gemm-2048" not in before
    record["profile"]["gemm-2048"] = {"gemm_tuned": record["profile"]["gemm-4096"]["gemm_tuned"]}
    card.path.write_text(json.dumps(record))
    assert {*missing(card)} - {*before} == {"gemm_tuned gemm-2048"}


def failing(monkeypatch, error, which, owner=run, name="profile_steps"):
    """Let a measurement of steps raise ``error`` if one of them is ``which``."""
    whole = getattr(owner, name)

    def measured(pairs):
        if any((one[0] if isinstance(one, tuple) else one).name == which for one in pairs):
            raise error
        return whole(pairs)

    monkeypatch.setattr(owner, name, measured)


def table(out):
    """The rows of the table at the end: part, what, why."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line[:1] == "│"]


@pytest.mark.parametrize(("error", "why"), [
    (profiler.ProfileError("ncu was lost"), "ncu was lost"),
    (TimeoutError("ncu was not done within 135 s"), "ncu was not done within 135 s"),  # a kernel that hangs
    (KeyError("Kernel Name"), "KeyError: 'Kernel Name'"),  # what nobody has thought of
])  # fmt: skip
def test_what_fails_costs_nothing_else_and_is_told_in_one_table(card, monkeypatch, capsys, error, why):
    wanted = missing(card)
    assert "hgemm_mma hgemm-4096" in wanted
    failing(monkeypatch, error, "hgemm_mma")
    assert main(["renew", "counters", "sanitizer"]) == 1
    told = capsys.readouterr()
    assert table(told.out)[-1] == ["counters", "hgemm_mma hgemm-4096", why]
    assert told.err.count("Traceback") == isinstance(error, KeyError)  # once, and not for what is known
    assert missing(card) == ["hgemm_mma hgemm-4096"]
    assert missing(card, "sanitizer") == []


def test_what_failed_comes_last_and_alone_in_the_next_run(card, monkeypatch):
    forget(card.path)
    whole = run.profile_steps
    failing(monkeypatch, profiler.ProfileError("lost"), "gemm_naive")
    assert main(["renew", "counters"]) == 1
    forget(card.path)
    monkeypatch.setattr(run, "profile_steps", whole)
    card.asked.clear()
    assert main(["renew", "counters"]) == 0
    assert card.asked == [["gemm_tuned"], ["gemm_naive"]]
    assert cache.get("renewing", "nvidia-h200", renewing.Past).unfinished["counters"] == []


@pytest.mark.parametrize(("part", "error"), [
    ("counters", profiler.UnavailableError(profiler.NO_TOOL)),
    ("counters", profiler.UnavailableError(profiler.NO_PERMISSION)),
    ("sanitizer", sanitizer.UnavailableError("compute-sanitizer was not found")),
    ("agreement", profiler.UnavailableError(profiler.NO_TOOL)),
])  # fmt: skip
def test_a_tool_that_is_not_there_is_asked_for_once_and_the_other_parts_go_on(card, monkeypatch, capsys, part, error):
    asked = []

    def absent(ones):
        asked.append(ones)
        raise error
        yield

    names = {
        "counters": (run, "profile_steps"),
        "sanitizer": (run, "sanitize_steps"),
        "agreement": (agreement, "refresh"),
    }
    owner, name = names[part]
    monkeypatch.setattr(owner, name, absent if part == "agreement" else lambda ones: next(absent(ones)))
    wanted = missing(card, part)
    assert main(["renew", part, "errors", "training"]) == 1
    assert len(asked) == 1
    assert table(capsys.readouterr().out)[-1] == [part, ", ".join(sorted(wanted, key=wanted.index)), str(error)]
    assert missing(card, "training") == []


def test_the_tools_say_so_when_they_are_not_there(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for asked in (profiler.command, lambda: sanitizer.command("memcheck")):
        with pytest.raises((profiler.UnavailableError, sanitizer.UnavailableError)):
            asked()
    with pytest.raises(profiler.UnavailableError):
        profiler.parse("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")


def test_a_sanitizer_that_did_not_start_has_found_nothing_in_the_step(monkeypatch):
    monkeypatch.setattr(device, "require_gpu", lambda what: None)
    monkeypatch.setattr(sanitizer, "command", lambda tool: [tool])
    monkeypatch.setattr(run.isolate, "watched", lambda *_: ([], "Error: the driver is not supported"))
    with pytest.raises(sanitizer.SanitizerError, match="no summary from compute-sanitizer: Error: the driver"):
        list(run.sanitize_steps([catalog.find("gemm_naive")]))


def test_a_launch_that_failed_and_the_sanitizer_has_nothing_against_is_no_error_of_the_steps(monkeypatch):
    result = {"status": "crashed", "message": "the card is busy"}
    monkeypatch.setattr(device, "require_gpu", lambda what: None)
    monkeypatch.setattr(sanitizer, "command", lambda tool: [tool])
    for summary, steps in (("0 errors", ["gemm_naive"]), ("0 errors", ["gemm_naive", "gemm_tuned"])):
        output = f"========= ERROR SUMMARY: {summary}"
        monkeypatch.setattr(run.isolate, "watched", lambda tasks, *_, output=output: ([result] * len(tasks), output))
        with pytest.raises(sanitizer.SanitizerError, match="gemm_naive: memcheck: the card is busy"):
            list(run.sanitize_steps([catalog.find(name) for name in steps]))
    monkeypatch.setattr(run.isolate, "watched", lambda *_: ([result], "========= ERROR SUMMARY: 2 errors"))
    assert {count for _, _, count, _ in run.sanitize_steps([catalog.find("gemm_naive")])} == {2}


LAUNCHED = {"status": "right", "kernels": ["k", "k"]}


@pytest.mark.parametrize(("results", "kernels", "why"), [
    ([LAUNCHED], 1, "gemm_naive: ncu read 1 of 2 kernels"), ([LAUNCHED, LAUNCHED], 2, "gemm_tuned: ncu read 0 of 2"),
    ([{**LAUNCHED, "kernels": []}], 1, "gemm_naive: ncu read 0 of 0 kernels"),
    ([{"status": "crashed", "message": "no memory"}], 0, "gemm_naive: no memory"),
    ([], None, "gemm_naive: the profiled process ended early: no output"),
    ([LAUNCHED], None, "ncu gave no counters: no output"),
])  # fmt: skip
def test_counters_that_were_read_in_part_are_not_kept(monkeypatch, results, kernels, why):
    columns = ["ID", "Kernel Name", *profiler.COUNTED.values()]
    rows = [[str(i), "k", *["1"] * len(profiler.COUNTED)] for i in range(kernels or 0)]
    output = "\n".join(",".join(f'"{cell}"' for cell in row) for row in [columns, *rows])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(run.isolate, "watched", lambda *_: (results, output if kernels is not None else ""))
    steps = [catalog.find(name) for name in ("gemm_naive", "gemm_tuned")][: max(1, len(results))]
    tasks = [run.messages.Launch(**run.at(step, agreement.cases([step])[0][1])) for step in steps]
    with pytest.raises(profiler.ProfileError, match=re.escape(why)):
        run.profiled(tasks, profiler.COUNTED)


def test_errors_that_a_sanitizer_finds_are_kept_and_in_the_table(card, monkeypatch, capsys):
    def found(steps):
        return iter([(tool, s, 3 * (s.name == "gemm_naive"), "") for tool in sanitizer.TOOLS for s in steps])

    monkeypatch.setattr(run, "sanitize_steps", found)
    assert main(["renew", "sanitizer"]) == 1
    ((part, name, why),) = table(capsys.readouterr().out)[-1:]
    assert (part, name) == ("sanitizer", "gemm_naive")
    assert why == f"errors that were found: {', '.join(f'3 by {tool}' for tool in sanitizer.TOOLS)}"
    assert missing(card, "sanitizer") == []


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_end_in_the_middle_keeps_what_was_measured_and_says_where(card, monkeypatch, capsys, end):
    wanted = missing(card)
    failing(monkeypatch, None, "hgemm_mma")
    whole = run.profile_steps

    def ended(pairs):
        if pairs[0][0].name == "hgemm_mma":
            os.kill(os.getpid(), end)
            time.sleep(30)
        return whole(pairs)

    monkeypatch.setattr(run, "profile_steps", ended)
    heeded = signal.signal(end, signal.SIG_DFL)  # a shell lets what it starts in the background ignore interrupts
    try:
        assert main(["renew", "counters"]) == 128 + end
    finally:
        signal.signal(end, heeded)
    out = capsys.readouterr().out
    assert re.search(r"│ hgemm_mma hgemm-4096.* │ it was ended after 0 s of it │", out)
    left = missing(card)
    assert 0 < len(left) < len(wanted)
    assert Record.load(card.path).gpu_name == "NVIDIA H200"


def test_a_kill_while_a_file_is_written_leaves_the_one_before_and_the_next_run_goes_on(card, monkeypatch):
    """As by SIGKILL: no handler runs, nothing is cleaned up."""
    replace, wanted = os.replace, missing(card)
    pid = os.fork()
    if pid == 0:
        seen = []

        def killed(source, target):
            seen.append(target)
            if os.path.basename(target) == CARD and len([one for one in seen if os.path.basename(one) == CARD]) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.replace = killed
        main(["renew", "counters"])
        os._exit(7)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    left = missing(card)
    assert len(wanted) - len(left) == 2
    assert main(["renew", "counters"]) == 0
    asked = [name for batch in card.asked for name in batch]
    assert sorted(asked) == sorted(name.split()[0] for name in left)


def test_a_full_disk_of_temporary_files_ends_the_run_at_once_too(card, monkeypatch, capsys):
    asked = []

    def full(pairs):
        asked.append(pairs)
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/workbook-x")

    monkeypatch.setattr(run, "profile_steps", full)
    assert main(["renew", "counters", "sanitizer"]) == 2
    assert len(asked) == 1
    assert capsys.readouterr().err == "error: /tmp/workbook-x: No space left on device\n"
    assert card.asked == []


def test_a_full_disk_ends_the_run_at_once_with_one_line(card, monkeypatch, capsys):
    def full(self, *_):
        raise store.StoreError(card.path, "cannot be written", "No space left on device")

    monkeypatch.setattr(Record, "put_profile", full)
    assert main(["renew", "counters", "sanitizer"]) == 2
    assert len(card.asked) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("cannot be written: No space left on device")


@pytest.mark.parametrize("spoil", [lambda text: text[: len(text) // 2], lambda text: "", lambda text: "[]"])
def test_half_a_record_is_one_line_and_nothing_is_measured(card, capsys, spoil):
    card.path.write_text(spoil(card.path.read_text()))
    assert main(["renew"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert CARD in line
    assert "to start anew" in line
    assert card.asked == []


def test_two_at_once_are_refused_and_the_first_ones_end_frees(card, capsys):
    with store.locked(cache.FOLDER / "renewing"):
        assert main(["renew", "counters"]) == 2
    said = "error: another renew is measuring here: two at once would disturb each other, and measure all twice\n"
    assert capsys.readouterr().err == said
    assert card.asked == []
    assert main(["renew", "counters"]) == 0


@pytest.mark.parametrize("name", ["NVIDIA [red]H200[/] / MIG 1g.18gb", "[/bold]", "Grafikkarte Ü 🂡"])
def test_a_card_may_be_called_anything(card, monkeypatch, capsys, name):
    gpu = dataclasses.replace(Record.load(card.path).data.gpu, name=name)
    assert re.fullmatch(r"[a-z0-9-]+", gpu.slug)
    monkeypatch.setattr(
        choosing, "open_record", lambda _: (lambda one: (one, one.start_run()))(Record.open(gpu, card.path.parent))
    )
    assert main(["renew", "counters", "--list"]) == 0
    assert f"the record of {name}:" in capsys.readouterr().out
    assert main(["renew", "counters"]) == 0
    assert Record.load(card.path.parent / f"{gpu.slug}.json").gpu_name == name


def lasting(card, monkeypatch, seconds):
    """Let each pair's counters take so long, by a clock of the test's own."""
    now, whole = [0.0], run.profile_steps

    def profiled(pairs):
        now[0] += seconds * len(pairs)
        return whole(pairs)

    monkeypatch.setattr(run, "profile_steps", profiled)
    monkeypatch.setattr(renewing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize("seconds", [10, 100, 250])
def test_runs_of_nine_minutes_begin_what_they_end_and_measure_nothing_twice(card, monkeypatch, capsys, seconds):
    every = sorted((step for step in catalog.everything() if step.runs_on("9.0")), key=lambda step: step.lesson)
    monkeypatch.setattr(renewing, "_able", lambda record: every)
    now, wanted = lasting(card, monkeypatch, seconds), missing(card)
    runs = 0
    while left := missing(card):
        began, runs = now[0], runs + 1
        assert main(["renew", "counters", "--minutes", "9"]) == 0
        assert now[0] - began <= 540
        assert len(left) - len(missing(card)) == min(len(left), 540 // seconds)
        told = f"counters: no time for {len(missing(card))}, with which the next run goes on"
        assert (told in capsys.readouterr().out) == bool(missing(card))
    assert runs == -(-len(wanted) // (540 // seconds))
    asked = [name for batch in card.asked for name in batch]
    assert asked == [name.split()[0] for name in wanted]


def test_what_never_was_measured_is_begun_with_a_minute_left_or_more(card, monkeypatch):
    lasting(card, monkeypatch, 25)
    assert main(["renew", "counters", "--minutes", "0.9"]) == 0
    assert card.asked == []
    assert main(["renew", "counters", "--minutes", "1"]) == 0
    assert [len(batch) for batch in card.asked] == [1, 1]
    card.asked.clear()
    assert main(["renew", "counters", "--minutes", "0.5"]) == 0  # it is known now
    assert [len(batch) for batch in card.asked] == [1]


def test_what_takes_longer_than_there_is_time_is_stopped_told_and_last(card, monkeypatch, capsys):
    first, whole = missing(card)[0], run.profile_steps
    monkeypatch.setattr(renewing, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(run, "profile_steps", lambda pairs: time.sleep(60))
    began = time.monotonic()
    assert main(["renew", "counters", "--minutes", "0.05"]) == 1
    assert time.monotonic() - began < 25
    out = capsys.readouterr().out
    assert "the time is up: what was measured is kept" in out
    assert table(out)[-1][:2] == ["counters", first]
    assert re.fullmatch(r"the time was up after \d s of it", table(out)[-1][2])
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    monkeypatch.setattr(run, "profile_steps", whole)
    assert main(["renew", "counters"]) == 0
    assert card.asked[-1] == [first.split()[0]]


def test_minutes_are_above_zero(card, capsys):
    for text in ("0", "-1", "nan"):
        assert main(["renew", "--minutes", text]) == 2
        assert capsys.readouterr().err == f"error: --minutes {text}: must be above 0\n"
    assert card.asked == []


def test_rows_are_those_that_make_all_would_time(card, monkeypatch):
    asked = []

    def bench(*given, **options):
        asked.append((given, options))
        return SimpleNamespace(failed={}, left=[])

    monkeypatch.setattr(run, "inspect_device", lambda: ("card", 2**30))
    monkeypatch.setattr(measuring, "Bench", bench)
    monkeypatch.setattr(measuring, "bench", lambda *_: 0)
    assert main(["renew", "rows"]) == 0
    ((given, options),) = asked
    assert (given, options) == ((catalog.everything(), "card", 2**30), {"fresh": False, "shipped": False})
    assert card.asked == []


@pytest.fixture
def rows(card, monkeypatch):
    """Rows take ten seconds each, none is held; ``measured`` is what was, ``status`` what comes of a pair, if not
    right."""
    now = lasting(card, monkeypatch, 10)
    seen = SimpleNamespace(measured=[], status={}, now=now)

    def measure(pairs, _, libraries, ceilings, quick=False):
        if ceilings:
            now[0] += 10
            yield "ceilings", {"status": seen.status.get("ceilings", "right"), "message": "lost", "ceilings": None}
        for step, preset in pairs:
            now[0] += 10
            status = seen.status.get(f"{step.name} {preset}", "right")
            seen.measured.append(f"{step.name} {preset}")
            yield (
                "step",
                Outcome(
                    step,
                    None,
                    preset,
                    {"status": status, "message": "no result within 180 s", "timing": SimpleNamespace(median_ms=1)},
                ),
            )
        for preset in libraries:
            yield "library", (preset, {"status": "crashed", "message": "no kernel image is available"})

    gpu = Record.load(card.path).data.gpu
    monkeypatch.setattr(Record, "open", classmethod(lambda cls, gpu, folder: cls.load(card.path)))
    monkeypatch.setattr(Record, "set_ceilings", lambda *_: None)
    monkeypatch.setattr(run, "inspect_device", lambda: (gpu, 2**37))
    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run, "Preparing", lambda *_: SimpleNamespace(before_timing=lambda: 0, cancel=lambda: 0))
    monkeypatch.setattr(current, "rows", lambda *_: [])
    monkeypatch.setattr(current, "ceilings", lambda record: True)
    monkeypatch.setattr(measuring.recording, "record_step", lambda *_: None)
    monkeypatch.setattr(measuring.verdicts, "print_times", lambda *_: None)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return seen


def test_with_a_gpu_rows_of_another_driver_are_listed_as_they_would_be_measured(card, monkeypatch, capsys):
    gpu = dataclasses.replace(Record.load(card.path).data.gpu, driver="1")
    monkeypatch.setattr(run, "inspect_device", lambda: (gpu, 2**37))
    monkeypatch.setattr(
        choosing, "open_record", lambda _: (record := Record.open(gpu, card.path.parent), record.start_run())
    )
    assert main(["renew", "rows", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()[1].removeprefix("rows: ").split(", ")
    assert listed == list(map(renewing._named, choosing.pairs(renewing._able(Record.load(card.path)), None, True)))
    monkeypatch.setattr(device, "gpu_count", lambda: 0)
    assert main(["renew", "rows", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()[1].split(", ")) < len(listed)


def test_rows_end_in_time_and_what_is_left_is_said(rows, capsys):
    every = len(choosing.pairs(catalog.everything(), None, every_preset=True))
    assert main(["renew", "rows", "--minutes", "9"]) == 0
    assert len(rows.measured) == 54
    assert rows.now == [540]
    assert f"rows: no time for {every - 54}, with which the next run goes on" in capsys.readouterr().out


def test_rows_of_older_code_come_before_those_of_another_driver(rows, card):
    forget(card.path)
    older = [name for name in map(renewing._named, renewing._rows(Record.load(card.path))) if "gemm_tuned" in name]
    assert main(["renew", "rows"]) == 0
    assert rows.measured[: len(older)] == older
    assert len(rows.measured) == len({*rows.measured}) == len(choosing.pairs(catalog.everything(), None, True))


def test_a_row_that_hangs_is_in_the_table_and_last_in_the_next_run(rows, capsys):
    rows.status = {"gemm_naive gemm-4096": "timed_out"}
    assert main(["renew", "rows", "errors"]) == 1
    why = "timed_out: no result within 180 s"
    assert table(capsys.readouterr().out)[-1] == ["rows", "gemm_naive gemm-4096", why]
    every = len(rows.measured)
    rows.status = {}
    assert main(["renew", "rows"]) == 0
    assert len(rows.measured) == 2 * every
    assert rows.measured[-1] == "gemm_naive gemm-4096"


def test_a_card_whose_ceilings_cannot_be_measured_fails_the_rows_and_the_other_parts_go_on(
    rows, card, monkeypatch, capsys
):
    monkeypatch.setattr(current, "ceilings", lambda record: False)
    rows.status = {"ceilings": "crashed"}
    assert main(["renew", "rows", "sanitizer"]) == 1
    assert table(capsys.readouterr().out)[-1] == ["rows", "rows", "the GPU could not be measured: lost"]
    assert rows.measured == []
    assert missing(card, "sanitizer") == []


def test_a_library_that_cannot_run_here_is_in_the_table_and_one_that_is_not_there_is_none(rows, monkeypatch, capsys):
    monkeypatch.setattr(current, "libraries", lambda *_: [])
    monkeypatch.setattr(peers, "available", lambda: False)
    assert main(["renew", "rows"]) == 0
    assert peers.HOW_TO_GET.split()[0] in capsys.readouterr().out
    monkeypatch.setattr(peers, "available", lambda: True)
    assert main(["renew", "rows"]) == 1
    parts, names, why = zip(*table(capsys.readouterr().out), strict=True)
    assert (parts[0], why[0]) == ("rows", "no kernel image is available")
    assert "the library gemm-4096" in " ".join(names)


def ended(code, err):
    return lambda words, **_: subprocess.CompletedProcess(words, code, "", err)


def late(words, **given):
    raise subprocess.TimeoutExpired(words, given["timeout"])


@pytest.mark.parametrize(("ran", "why"), [
    (ended(2, "error: the comparison needs PyTorch: pip install torch\n"),
     "the comparison needs PyTorch: pip install torch"),
    (ended(-11, ""), "{} ended with exit code -11"),
    (ended(0, ""), "nothing came of it"),  # it trained something else, as in the simulator
    (late, "{} was not done within 600 s"),
])  # fmt: skip
def test_a_lessons_own_command_that_fails_is_told_with_its_words(card, monkeypatch, capsys, ran, why):
    monkeypatch.setattr(subprocess, "run", ran)
    assert main(["renew", "training"]) == 1
    told = {name: said for _, names, said in table(capsys.readouterr().out) for name in names.split(", ")}
    assert told == {"trained": why.format("train"), "compared": why.format("compare")}


def test_a_lessons_own_command_runs_as_its_reader_would_run_it(card, monkeypatch):
    asked, whole = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda words, **given: asked.append((words[1:], given)) or whole(words))
    assert main(["renew", "training"]) == 0
    assert [words for words, _ in asked] == [["-m", "lessons.08_training", name] for name in ("train", "compare")]
    assert all(given["cwd"] == catalog.ROOT for _, given in asked)


def test_a_record_of_training_that_does_not_name_its_code_is_of_older_code(card, capsys):
    assert main(["renew", "training"]) == 0
    path = training.path_of(records.REFERENCE_GPU)
    data = json.loads(path.read_text())
    del data["trained"]["code"]
    data["compared"]["code"]["fused"] = "0" * 64
    path.write_text(json.dumps(data))
    assert missing(card, "training") == ["trained", "compared"]
    path.unlink()
    assert missing(card, "training") == ["trained", "compared"]


def test_a_card_is_asked_for_what_it_can_run_only(card):
    record = Record.load(card.path)
    record.data.gpu = dataclasses.replace(record.data.gpu, compute_capability="8.0")
    record.data.epilogues.clear()
    for part in ("counters", "sanitizer", "agreement", "epilogues"):
        names = {step.name for step, *_ in renewing.PARTS[part].missing(record)}
        assert names
        assert not names & {step.name for step in catalog.everything() if not step.runs_on("8.0")}


def test_an_unknown_part_is_one_line(card, capsys):
    assert main(["renew", "speed"]) == 2
    said = capsys.readouterr().err
    assert (
        said
        == "error: PART 'speed': must be one of rows, epilogues, errors, counters, sanitizer, agreement, training\n"
    )
    assert card.asked == []

"""Nothing a student wrote is lost: not by reset or restore, not by two runs at once, not by a full disk."""

import errno
import json
import shutil
import subprocess
import sys

import pytest
from sampling import one_of_each

from common.catalog import catalog, exercises, sources, store
from common.edit import history
from common.edit.history import Event

RIGHT, WRONG, UNUSABLE = 0, 1, 2
GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
STEP = "gemm_coarsened"
AS_TYPED = b"# caf\xe9, and no Python\r\nx = = 1\r\n\x00"  # bytes, whatever they are


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    """The lessons in a folder of the test's own, which no git knows."""
    root = tmp_path / "workbook"
    shutil.copytree(catalog.LESSONS, root / "lessons", ignore=shutil.ignore_patterns("*.png", "__pycache__"))
    monkeypatch.setattr(catalog, "ROOT", root)
    monkeypatch.setattr(catalog, "LESSONS", root / "lessons")
    listing = (exercises.everything, exercises.find, exercises.chosen)
    for function in (catalog.lessons, catalog.steps, catalog.everything, *listing):
        monkeypatch.setattr(function, "__defaults__", (root / "lessons",))
    return root / "lessons"


@pytest.fixture
def git(lessons):
    """A repository around the lessons; runs git in it."""

    def git(*words):
        author = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *author, *words], cwd=catalog.ROOT, check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "as shipped")
    return git


@pytest.fixture
def call(call):
    """Exit code, and all that was said."""

    def both(*words):
        code, out, err = call(*words)
        return code, out + err

    return both


def path_of(lessons, step=STEP):
    return next(lessons.glob(f"*/{step}.py"))


def edit(path, old="WPT = 8", new="WPT = 4"):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path.read_bytes()


# --- reset and restore ---


@GIT
def test_edit_reset_restore_gives_the_bytes_back(call, lessons, git):
    path = path_of(lessons)
    original, edited = path.read_bytes(), AS_TYPED
    path.write_bytes(edited)
    assert call("reset", "03")[0] == RIGHT
    assert path.read_bytes() == original
    assert call("restore", STEP)[0] == RIGHT
    assert path.read_bytes() == edited
    assert call("restore", STEP, history.sha(original)[:8])[0] == RIGHT
    assert path.read_bytes() == original


@GIT
def test_an_edited_helper_is_named_with_the_way_back(call, lessons, git):
    helper = lessons / "toolkit" / "memory.py"
    original = helper.read_bytes()
    edited = edit(helper, "VECTOR, HALVES", "HALVES, VECTOR")
    code, said = call("reset", "03")
    assert (code, helper.read_bytes()) == (RIGHT, edited)  # it is not lesson 03's alone
    assert "lessons/toolkit/memory.py is edited" in said
    assert "python -m common reset memory" in " ".join(said.split())
    assert "unroll.py" not in said
    assert call("reset", "memory")[0] == RIGHT
    assert helper.read_bytes() == original
    assert "saved" in call("history", "memory")[1]
    assert call("restore", "memory")[0] == RIGHT
    assert helper.read_bytes() == edited
    helper.unlink()
    assert "lessons/toolkit/memory.py is edited" in call("reset", "03")[1]
    call("reset", "memory")
    assert helper.read_bytes() == original


def test_what_is_noted_as_shipped_is_so():
    noted = json.loads((catalog.LESSONS / "shipped.json").read_text())
    files = {path.relative_to(catalog.LESSONS).as_posix(): path for path in sources.editable()}
    assert {name: sources.source_hash(path) for name, path in files.items()} == noted, "python -m common ship"
    assert [path.name for path in files.values() if sources.edited(path)] == []


@pytest.mark.parametrize("name", ["memory", STEP])
def test_without_git_a_deleted_file_comes_back(call, lessons, name):
    sources.keep_copies()
    path = next(lessons.rglob(f"{name}.py"))
    original = path.read_bytes()
    path.unlink()
    assert call("reset", name)[0] == RIGHT
    assert path.read_bytes() == original


@GIT
@pytest.mark.parametrize("name", one_of_each(["05.1", "predict_worked_example.py"], lambda _: "an exercise"))
def test_an_exercise_is_kept_when_it_is_graded_and_reset_alone(call, lessons, git, monkeypatch, name):
    monkeypatch.setattr(exercises.State, "remember", lambda *_: None)
    path = lessons / "05_implicit_gemm" / "exercises" / "predict_worked_example.py"
    original = path.read_bytes()
    call("grade", "05.1", "--sim")
    assert history.events("predict_worked_example") == []  # as shipped
    edited = edit(path, "GEMM_M = None", "GEMM_M = 9")
    for _ in range(2):
        call("grade", "05.1", "--sim")
    (event,) = history.events("predict_worked_example")
    assert (event.what, event.source) == ("saved", history.sha(edited))
    assert "saved" in call("history", name)[1]
    assert call("reset", name)[0] == RIGHT
    assert path.read_bytes() == original
    assert call("restore", name)[0] == RIGHT
    assert path.read_bytes() == edited


@GIT
def test_an_edited_exercise_has_its_solution_still(lessons, git):
    one = exercises.find("gemm_double")
    path, solution = lessons / "01_naive" / "exercises" / "gemm_double.py", one.solution
    edit(path, "@cuda.jit\n", "@cuda.jit\n# mine\n")
    assert one.solution != path.read_text()
    edit(path, "float32(", "float64(")
    git("commit", "-qam", "mine")
    assert one.solution == one.write_solution().read_text() == solution


def test_without_git_an_exercise_that_was_edited_before_any_copy_is_not_judged(call, lessons):
    path = lessons / "01_naive" / "exercises" / "gemm_double.py"
    original, _ = path.read_bytes(), edit(path, "@cuda.jit\n", "@cuda.jit()\n")
    assert "exercises/gemm_double.py is edited, and neither git nor .workbook has it as shipped" in " ".join(
        call("grade", "01.5", "--sim")[1].split()
    )
    path.write_bytes(original)
    call("hint")
    edit(path, "@cuda.jit\n", "@cuda.jit()\n")
    assert "@cuda.jit\n" in exercises.find("01.5").solution


@GIT
def test_a_deleted_file_and_a_broken_header_are_mended(call, lessons, git):
    path, other = path_of(lessons), path_of(lessons, "gemm_wide_loads")
    original = path.read_bytes()
    path.unlink()
    edit(other, "Previous step: gemm_coarsened", "")
    assert call("list")[0] == UNUSABLE  # the chain of steps is broken
    assert call("reset", "03")[0] == RIGHT
    assert path.read_bytes() == original
    assert call("list")[0] == RIGHT


@GIT
def test_edits_may_be_committed(call, lessons, git):
    path = path_of(lessons)
    original, edited = path.read_bytes(), edit(path)
    git("commit", "-qam", "mine")
    assert sources.edited(path)
    call("reset", "03")
    assert path.read_bytes() == original
    call("restore", STEP)
    assert path.read_bytes() == edited


def test_what_was_edited_before_any_copy_was_kept_is_left_alone(call, lessons):
    path = path_of(lessons)
    edited = edit(path)
    code, said = call("reset", "03")
    assert path.read_bytes() == edited
    assert f"{STEP}: left as it is: neither git nor .workbook has the shipped version" in " ".join(said.split())
    assert sources.edited(path)


@GIT
def test_comments_and_layout_are_no_edit(lessons, git):
    path = path_of(lessons)
    path.write_text(
        path.read_text().replace("# multiply", "# multiply and add").replace("TILE = 32  #", "TILE = 32 #")
    )
    assert not sources.edited(path)
    edit(path)
    assert sources.edited(path)


# --- the store ---


def test_a_source_is_stored_once_under_its_hash_and_name(workbook):
    first, second = (history.keep(AS_TYPED, "gemm_x.py") for _ in range(2))
    assert first == second == workbook / "sources" / history.sha(AS_TYPED) / "gemm_x.py"
    assert history.stored("gemm_x.py", history.sha(AS_TYPED)) == AS_TYPED
    assert [path.name for path in workbook.rglob("*") if path.is_file()] == ["gemm_x.py"]


def test_events_are_numbered_in_the_order_they_happened(workbook):
    for step, source in (("gemm_a", "1" * 64), ("gemm_b", "2" * 64), ("gemm_a", "3" * 64)):
        history.add(Event(step, source, "run", verdict="right", figure="1.50x the shipped version"))
    assert [(e.step, e.number, e.source[0]) for e in history.events()] == [
        ("gemm_a", 1, "1"), ("gemm_b", 1, "2"), ("gemm_a", 2, "3"),
    ]  # fmt: skip
    assert [event.number for event in history.events("gemm_a")] == [1, 2]
    assert history.events("gemm_c") == []


def test_a_broken_event_costs_only_itself(workbook):
    history.add(Event("gemm_a", "1" * 64, "run"))
    (workbook / "runs" / "gemm_a" / "00000000000000000000-0-0.json").write_text("{")
    (workbook / "runs" / "gemm_a" / "00000000000000000001-0-0.json").write_text('{"colour": 1}')
    assert [event.source[0] for event in history.events("gemm_a")] == ["1"]


def test_runs_at_once_lose_nothing(workbook):
    code = (
        "import sys; from pathlib import Path\n"
        "from common.edit import history\n"
        "history.FOLDER = Path(sys.argv[1])\n"
        "for i in range(30):\n"
        "    source = f'{sys.argv[2]} {i}'.encode()\n"
        "    history.keep(source, 'gemm_a.py'); history.keep(b'both', 'gemm_a.py')\n"
        "    history.add(history.Event('gemm_a', history.sha(source), 'run'))\n"
    )
    command = [sys.executable, "-c", code, str(workbook)]
    runs = [subprocess.Popen([*command, name], cwd=catalog.ROOT) for name in "ab"]
    assert [run.wait(300) for run in runs] == [0, 0]
    events = history.events("gemm_a")
    assert [event.number for event in events] == list(range(1, 61))
    assert {history.stored("gemm_a.py", event.source) for event in events} == {
        f"{name} {i}".encode() for name in "ab" for i in range(30)
    }
    assert not list(workbook.rglob("*.tmp"))


# --- which version ---


@pytest.fixture
def three(workbook, write):
    """A file with three earlier sources; the present one is none of them."""
    path = write("gemm_x.py", "now\n")
    for text in (b"first\n", b"second\n", b"third\n"):
        history.keep(text, path.name)
        history.add(Event("gemm_x", history.sha(text), "run"))
    return path


def test_a_version_is_chosen_by_number_or_hash(three):
    assert history.choose(three, "2").source == history.sha(b"second\n")
    assert history.choose(three, history.sha(b"first\n")[:7]).source == history.sha(b"first\n")
    assert history.choose(three, None).source == history.sha(b"third\n")
    three.write_bytes(b"third\n")
    assert history.choose(three, None).source == history.sha(b"second\n")


@pytest.mark.parametrize("wanted", ["0", "4", "abc", "ffffffff"])
def test_a_version_that_is_none_is_said(three, wanted):
    with pytest.raises(ValueError, match=r"must be a number from 1 to 3, or a hash's first 4 digits or more"):
        history.choose(three, wanted)


def test_history_shows_what_came_of_each_run(call, monkeypatch, workbook):
    monkeypatch.setenv("COLUMNS", "140")
    present = history.sha(sources.find("gemm_naive").read_bytes())
    figure = "1.23x the shipped version, gemm-4096, NVIDIA Test 9"
    history.add(Event("gemm_naive", "1" * 64, "run", verdict="wrong", reason="5 of 9 elements are wrong"))
    history.add(Event("gemm_naive", present, "run", verdict="right", figure=figure))
    history.add(Event("conv2d_naive", "2" * 64, "saved"))
    code, said = call("history", "gemm_naive")
    assert code == RIGHT
    lines = [line for line in said.splitlines() if "│" in line]
    assert len(lines) == 2
    assert "1111" in lines[0]
    assert "wrong: 5 of 9 elements are wrong" in lines[0]
    assert "now" in lines[1]
    assert "right: 1.23x the shipped version, gemm-4096, NVIDIA Test 9" in lines[1]
    assert "conv2d_naive" in call("history")[1]


# --- a disk that is full, a folder that cannot be written ---


@pytest.fixture
def full_disk(monkeypatch):
    def write(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", write)


@GIT
@pytest.mark.usefixtures("full_disk")
def test_on_a_full_disk_reset_touches_nothing(call, lessons, git):
    path = path_of(lessons)
    edited = edit(path)
    code, said = call("reset", "03")
    assert code == UNUSABLE
    assert "cannot be written: No space left on device" in " ".join(said.split())
    assert path.read_bytes() == edited


def test_a_folder_that_cannot_be_written_is_named(workbook):
    workbook.write_text("a file where the folder should be")
    with pytest.raises(store.StoreError, match=r"\.workbook.*cannot be written: "):
        history.keep(b"x", "gemm_x.py")
    with pytest.raises(store.StoreError, match=r"cannot be written: "):
        history.add(Event("gemm_x", "1" * 64, "run"))

"""What a key depends on is found by walking imports; values are kept under their keys."""

import os
import time

import pytest

from common.catalog import cache, catalog, sources, store
from common.check import run
from common.report import pages
from common.report.pages import Draw

NAIVE = catalog.find("gemm_naive")
COMMON = catalog.ROOT / "common"


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "cache")


KEYS = {
    "check": lambda: run._key(NAIVE, "tracer"),
    "chart": lambda: pages._key(Draw("code", "machine-code.json")),
}


def of(*folders):
    return {path for folder in folders for path in (COMMON / folder).rglob("*.py")}


@pytest.fixture
def depends(monkeypatch):
    """By kind of key, the files that it is made of, whatever other tests took for the checkout."""
    monkeypatch.setattr(sources, "imports", sources.imports.__wrapped__)
    found, walk = {}, cache.files
    for kind, make in KEYS.items():
        monkeypatch.setattr(cache, "files", lambda roots, kind=kind: found.setdefault(kind, walk(roots)))
        make()
    return {kind: set(files) for kind, files in found.items()}


def test_a_verdict_depends_on_what_finds_it_and_on_nothing_that_shows_it(depends):
    assert not depends["check"] & of("report", "commands", "edit", "grade")
    wanted = ("check/check.py", "check/plan.py", "check/run.py", "catalog/reference.py", "trace/executor.py")
    assert {COMMON / name for name in (*wanted, "check/tasks.py", "explain/faults.py")} <= depends["check"]


def test_a_chart_depends_on_what_draws_it_and_not_on_the_tracer(depends):
    assert not depends["chart"] & {COMMON / "report" / "book.py", *of("commands", "trace", "grade", "edit")}
    wanted = ("report/charts.py", "records/records.py", "timing/ceilings.py", "timing/tools.py")
    assert {COMMON / name for name in wanted} <= depends["chart"]


def test_comments_of_the_house_change_nothing_and_code_does(tmp_path, monkeypatch, write):
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    monkeypatch.setattr(store, "_ROOT", tmp_path)
    texts = {}

    def digest(name, text):
        texts[name] = write(name, text)
        old = time.time() - 60 + len(texts)
        os.utime(texts[name], (old, old))
        return cache.digest(cache.files([texts.get("common/a/one.py", tmp_path / "common/a/one.py")]))

    one = 'from common.a import two\nfrom common.a.three import X\nRULES = "rules.toml"\n'
    first = digest("common/a/one.py", one)
    found = {digest("common/a/two.py", "Y = 1\n"), digest("common/a/three.py", "X = 1\n")}
    found |= {digest("common/a/rules.toml", "x = 1\n"), digest("common/a/rules.toml", "x = 2\n")}
    assert len(found | {first}) == 5
    now = digest("common/a/two.py", "Y = 1\n")
    assert digest("common/a/two.py", "# why\nY = 1\n") == now
    assert digest("common/a/two.py", "Y = 2\n") != now


@pytest.mark.parametrize(("text", "found"), [
    ("from lessons.toolkit import unroll\n", True),
    ("from lessons import toolkit\nimport lessons.toolkit.unroll as u\n", True),
    ("import importlib\nm = importlib.import_module('lessons.toolkit.unroll')\n", True),
    ("def f():\n    from lessons.toolkit.unroll import unrolled\n", True),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lessons.toolkit import unroll\n", False),
    ("'''See lessons.toolkit.unroll.'''\n", False),
])  # fmt: skip
def test_files_are_found_however_they_are_named(text, found, tmp_path, monkeypatch, write):
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    monkeypatch.setattr(catalog, "LESSONS", tmp_path / "lessons")
    helper = write("lessons/toolkit/unroll.py", "x = 1\n")
    step = write("lessons/01/step.py", text)
    assert (helper.resolve() in cache.files([step])) is found


def test_a_file_of_ones_own_has_those_beside_it_and_each_byte_counts_where_lines_are_shown(write):
    step, beside = write("gemm_mine.py", "import helper\n"), write("helper.py", "x = 1\n")
    assert cache.files([step]) == sorted([step.resolve(), beside.resolve()])
    before = cache.key([step], "9.0", text=True)
    assert cache.key([step], "8.6", text=True) != before
    beside.write_text("x = 1  # a comment moves lines\n")
    assert cache.key([step], "9.0", text=True) != before
    (broken := write("gemm_broken.py", "def launch(:\n")).touch()
    assert cache.files([broken]) == [broken.resolve()]


# --- values ---


def test_a_value_is_kept_under_its_key_and_as_its_type():
    cache.put("numbers", "key", [1, 2])
    assert cache.get("numbers", "key", list[int]) == [1, 2]
    assert cache.get("numbers", "other", list[int]) is None
    assert cache.get("others", "key", list[int]) is None
    assert cache.get("numbers", "key", list[str]) is None


@pytest.mark.parametrize("text", ["", "[", '{"key": "key"}', '["1"]'])
def test_what_cannot_be_read_is_found_anew(text):
    cache.put("numbers", "key", [1])
    (file,) = (cache.FOLDER / "numbers").iterdir()
    file.write_text(text)
    assert cache.get("numbers", "key", list[int]) is None
    cache.put("numbers", "key", [1])
    assert cache.get("numbers", "key", list[int]) == [1]


def test_what_was_not_used_for_longest_goes_first(tmp_path):
    now = time.time()
    for age, name in enumerate(("new", "used", "old")):
        (tmp_path / f"{name}.kernel").write_bytes(b"x" * 10)
        os.utime(tmp_path / f"{name}.kernel", (now - age, now - age))
    cache.prune(tmp_path, most_bytes=25)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.kernel", "used.kernel"]

"""Files are written whole or not at all, and what is read is named where it is not as it must be."""

import os
import threading
from typing import Annotated, TypedDict

import pytest
from msgspec import Struct

from common.catalog import store
from common.catalog.store import Count, Name, Number, SchemaError, StoreError

POSIX = pytest.mark.skipif(os.name != "posix", reason="limits and modes of POSIX")


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("stage", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch, stage, error):
    path = tmp_path / "page.md"
    store.write(path, "old")

    def fail(*_):
        raise error

    monkeypatch.setattr(store.os, stage, fail)
    kind = StoreError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(kind) as caught:
        store.write(path, "new")
    if kind is StoreError:
        assert str(caught.value).endswith("page.md: cannot be written: No space left on device")
    assert path.read_text() == "old"
    assert files(tmp_path) == ["page.md"]


@POSIX
def test_a_new_file_has_the_mode_that_the_users_mask_leaves_it(tmp_path):
    """Grades that nobody else may read."""
    before = os.umask(0o077)
    try:
        store.write(tmp_path / "a" / "grades.json", "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "grades.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("content", "why"), [
    (b"", "Expecting value: line 1 column 1"),
    (b"{", "Expecting property name enclosed in double quotes: line 1 column 2"),
    (b"[" * 100_000, "maximum recursion depth exceeded"),
    ("é".encode("latin-1"), "'utf-8' codec can't decode byte 0xe9"),
], ids=["empty", "half", "deep", "latin"])  # fmt: skip
def test_what_is_no_json_is_named(tmp_path, content, why):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        store.read_json(path)
    assert "a.json: " in str(caught.value)
    assert f": {why}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["a = " + "[" * 5000, "a = [1, 2"], ids=["deep", "half"])
def test_what_is_no_toml_is_named(tmp_path, content):
    path = tmp_path / "a.toml"
    path.write_text(content)
    with pytest.raises(StoreError, match=r"a\.toml: not readable as TOML: \w"):
        store.read_toml(path)


def test_the_lock_is_for_one_at_a_time(tmp_path):
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        with store.locked(tmp_path):
            inside += 1
            most = max(most, inside)
            counted.wait(0.01)
            inside -= 1

    counted = threading.Event()
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert files(tmp_path) == []


class _A(Struct):
    a: Number
    b: Name | None = None


class _Strict(_A, forbid_unknown_fields=True):
    pass


class _One(Struct, tag_field="kind", tag="a"):
    n: str


class _Two(Struct, tag_field="kind", tag="b"):
    n: int


class _Keys(TypedDict):
    n: Count


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ({"a": -1}, dict[str, Count], "Expected `int` >= 0 - at `$[...]`"),
        ({"a": 1, "b": ""}, _A, "Expected `str` of length >= 1 - at `$.b`"),
        ({"a": 1, "x": 2}, _Strict, "Object contains unknown field `x`"),
        (
            {"x": 1},
            dict[Annotated[str, store.one_of(["y"])], Number],
            "Expected `str` matching regex '^(?:y)\\\\Z' - at `key` in `$`",
        ),
        ([{"kind": "b", "n": "1"}], list[_One | _Two], "Expected `int`, got `str` - at `$[0].n`"),
        ([{"kind": "c"}], list[_One | _Two], "Invalid value 'c' - at `$[0].kind`"),
        ({}, _Keys, "Object missing required field `n`"),
    ],
)
def test_the_first_flaw_is_named_with_what_is_allowed(value, kind, says):
    with pytest.raises(SchemaError) as caught:
        store.convert(value, kind)
    assert str(caught.value) == says


def test_what_was_read_of_a_file_is_kept_while_its_stamp_is_the_same(write, monkeypatch):
    reads = []

    @store.kept_by_stamp
    def read(path):
        reads.append(path)
        return path.read_text(encoding="utf-8")

    path = write("a.txt", "one")
    assert (read(path), read(path), len(reads)) == ("one", "one", 2)  # just written: it may be again
    monkeypatch.setattr(store, "_CLOCK_NS", 0)
    assert (read(path), read(path), len(reads)) == ("one", "one", 3)
    path.write_text("other", encoding="utf-8")
    assert (read(path), len(reads)) == ("other", 4)
    store.write(path, "third")  # a new file of the same length
    os.utime(path, ns=(0, 0))
    assert (read(path), len(reads)) == ("third", 5)
    path.unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            read(path)

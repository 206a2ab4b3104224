"""What the machine is taken to be."""

import os

import pytest

from common.book import device


@pytest.mark.parametrize(
    ("card", "played", "reported", "bounds"),
    [
        ("9.0", "", "9.0", "9.0"), ("9.0", "8.6", "8.6", "8.6"), ("8.6", "9.0", "8.6", "8.6"),
        (None, "8.6", None, "8.6"),
        ("8.0", "8.6", "8.0", "8.6"),  # the newer card has less shared memory
        (None, "", None, None), ("13.0", "", "13.0", "13.0"), ("13.0", "12.0", "12.0", "12.0"),
    ],
)  # fmt: skip
def test_a_played_card_is_never_more_than_the_card(card, played, reported, bounds, monkeypatch):
    monkeypatch.setattr(device, "_capability", lambda: card)
    monkeypatch.setenv(device.CARD_SWITCH, played)
    assert device.compute_capability() == reported
    assert device.bounds(card) == bounds


@pytest.mark.parametrize(
    ("card", "played", "told"),
    [(None, "", ""), ("9.0", "", ""), ("8.6", "", "8.6"), ("9.0", "7.5", "7.5"), (None, "10.0", "")],
)
def test_what_runs_without_the_card_has_its_tiles(card, played, told, monkeypatch):
    monkeypatch.setattr(device, "_capability", lambda: card)
    monkeypatch.setenv(device.CARD_SWITCH, played)
    assert device.environment(True)[device.CARD_SWITCH] == told


def test_a_card_that_cannot_be_played_is_told_with_those_that_can(monkeypatch):
    monkeypatch.setenv(device.CARD_SWITCH, "8.5")
    with pytest.raises(ValueError, match=r"WORKBOOK_CARD=8\.5: must be one of 7\.5, 8\.0, 8\.6, .*12\.1, or not set"):
        device.played()


@pytest.mark.parametrize(
    ("share", "count"), [("max 100000", 3), ("200000 100000", 2), ("50000 100000", 1), ("900000 100000", 3), ("?", 3)]
)
def test_processors_are_those_that_this_process_may_use(share, count, tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text(share)
    monkeypatch.setattr(device, "_SHARE", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 9}, raising=False)
    assert device.processors() == count


def test_without_a_container_all_count(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "_SHARE", tmp_path / "none")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert device.processors() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert device.processors() == 1

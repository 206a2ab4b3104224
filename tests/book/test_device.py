"""What the machine is taken to be."""

import os

import pytest

from common.book import device


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

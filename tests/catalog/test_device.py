"""What the machine is taken to be."""

import os
import re

import pytest

from common import cli
from common.catalog import device, sources
from common.commands import arguments
from common.run import isolate


@pytest.mark.parametrize(
    ("card", "played", "reported", "bounds"),
    [
        ("9.0", "", "9.0", "9.0"), ("9.0", "8.6", "8.6", "8.6"), ("8.6", "9.0", "8.6", "8.6"),
        ("8.0", "8.6", "8.0", "8.6"),  # the newer card has less shared memory
        (None, "8.6", None, "8.6"),
    ],
)  # fmt: skip
def test_a_played_card_is_never_more_than_the_card(card, played, reported, bounds, monkeypatch):
    monkeypatch.setattr(device, "_capability", lambda: card)
    monkeypatch.setenv(device.CARD_SWITCH, played)
    assert device.compute_capability() == reported
    assert device.bounds() == bounds


@pytest.mark.parametrize(("card", "played", "told"), [
    (None, "", ""), ("9.0", "", ""), ("8.6", "", "8.6"), ("9.0", "7.5", "7.5"), (None, "10.0", ""),
])  # fmt: skip
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


class Driver:
    """What libcuda answers: attributes by number, an error by the name of the function that gives it."""

    def __init__(self, attributes=(), version=13000, **errors):
        self.attributes = {75: 8, 76: 6, 20: 0, 133: 0, **dict(attributes)}
        self.version, self.errors = version, errors

    def __getattr__(self, name):
        def call(*words):
            if name in self.errors:
                return self.errors[name]
            match name:
                case "cuDriverGetVersion":
                    words[0]._obj.value = self.version
                case "cuDeviceGetCount":
                    words[0]._obj.value = 1
                case "cuDeviceGetAttribute":
                    words[0]._obj.value = self.attributes[words[1]]
                case "cuGetErrorString":
                    words[1]._obj.value = b"in its words"
            return 0

        return call


@pytest.mark.parametrize("driver", [Driver({75: 7, 76: 5}), Driver(version=14000), Driver({20: 3, 133: 1})])
def test_a_gpu_that_can_be_used(driver, monkeypatch):
    monkeypatch.setattr(device, "loaded", lambda: driver)
    monkeypatch.setattr(sources, "versions", lambda _: {"nvidia-cuda-nvcc": "13.0.88"})
    assert device.ready()


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        (
            Driver(version=12080),
            r"driver is for CUDA 12\.8, the packages for CUDA 13: `make all CUDA=12` installs those",
        ),
        (Driver(version=11080), r"driver is for CUDA 11\.8, the packages for CUDA 13: update the driver"),
        (Driver({75: 7, 76: 0}), r"compute capability is 7\.0, and 7\.5 is the least"),
        (Driver({20: 3}), r"compute mode takes one process at a time.*`nvidia-smi -c DEFAULT`"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_told_in_one_line_with_what_to_do(driver, told, monkeypatch):
    monkeypatch.setattr(device, "loaded", lambda: driver)
    monkeypatch.setattr(sources, "versions", lambda _: {"nvidia-cuda-nvcc": "13.0.88"})
    with pytest.raises(device.NoGpuError) as caught:
        device.ready()
    found = str(caught.value)
    assert re.search(told, found)
    assert "\n" not in found
    assert found.endswith("check, all and lessons go without it with --sim")


@pytest.mark.parametrize(("driver", "told"), [
    (None, r"^$"), (Driver(), r"^$"),
    (Driver(cuInit=100), r"^the CUDA driver offers no GPU \(error 100, in its words\): .*CUDA_VISIBLE_DEVICES"),
])  # fmt: skip
def test_why_a_driver_offers_no_gpu(driver, told, monkeypatch):
    monkeypatch.setattr(device, "loaded", lambda: driver)
    assert re.search(told, device.silent())


@pytest.mark.parametrize("words", [["check", "gemm_naive"], ["all"], ["bench"], ["grade", "01"]])
def test_a_command_ends_in_one_line_before_anything_runs(words, monkeypatch, capsys):
    monkeypatch.setattr(device, "loaded", lambda: Driver({20: 3}))
    monkeypatch.setattr(isolate, "run", None)
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert "nvidia-smi -c DEFAULT" in said.err
    assert len(said.err.splitlines()) == 1


def test_a_driver_that_does_not_start_is_told_once_and_the_command_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(device, "loaded", lambda: Driver(cuInit=804))
    assert arguments.without_gpu(False, None)
    assert capsys.readouterr().err.count("error 804") == 1
    assert arguments.without_gpu(True, None)  # --sim asks nothing
    assert capsys.readouterr().err == ""

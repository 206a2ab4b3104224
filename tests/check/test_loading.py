"""How large a problem a card takes: by its memory, and by the time of a launch, with cards made up."""

import os
from types import SimpleNamespace

import pytest

from common.catalog import catalog, problems
from common.catalog.problems import PRESETS
from common.check import loading
from common.run import messages

GB = 10**9
TIMED = [name for ladder in problems.LADDERS for name in problems.timed_presets(ladder)]


def room(free_gb, l2_mb=4):
    return loading.room_bytes(int(free_gb * GB), l2_mb << 20)


def test_the_budget_is_coarse_and_leaves_room_for_libraries_and_the_flush_buffer():
    assert room(6.0) == room(6.0 + 0.2) == 10 * loading.STEP
    assert room(0.3) == 0
    assert room(6.0, l2_mb=50) < room(6.0)
    assert all(
        0 < free - room(free / GB) < loading.LIBRARIES + loading.FLUSHED + loading.STEP + 1 for free in (GB, 9 * GB)
    )
    assert loading.flush_bytes(50 << 20) == 400 << 20
    assert loading.flush_bytes(3 << 20) == 64 << 20


@pytest.mark.parametrize("preset", TIMED)
def test_every_preset_runs_whole_on_6_gb_and_at_half_at_least_on_4(preset):
    problem = PRESETS[preset]
    # what a context and a display take of such a card is gone
    assert loading.fitted(problem, room(5.4)) == problem
    smaller = loading.fitted(problem, room(3.6))
    assert smaller.flops >= problem.flops / 2
    assert loading.needed(smaller) <= room(3.6)
    assert loading.fitted(problem, room(79)) == problem


def test_what_cannot_be_made_smaller_has_no_room():
    with pytest.raises(loading.NoRoomError, match=r"GB are needed, 0\.0 are free"):
        loading.fitted(PRESETS["photo"], 1000)
    with pytest.raises(loading.NoRoomError, match=r"11\.3 GB are needed, 6\.9 are free"):
        loading.require_large(problems.Gemm(M=70_001, N=3, K=31_003), int(6.9 * GB))
    loading.require_large(problems.Gemm(M=70_001, N=3, K=31_003), 12 * GB)


def test_sizes_halve_the_batch_or_all_of_a_product():
    assert [size.N for size in loading.sizes(PRESETS["unet3d"])] == [4, 2, 1]
    assert [size.shape() for size in loading.sizes(problems.Gemm(M=9, N=4, K=20))] == [
        {"M": 9, "N": 4, "K": 20}, {"M": 4, "N": 2, "K": 10}, {"M": 2, "N": 1, "K": 5},
    ]  # fmt: skip


class Launches:
    """A card of so many operations a second, on which a launch takes at least ``idle`` seconds."""

    def __init__(self, rate, idle=0.0):
        self.rate, self.idle, self.sizes = rate, idle, []

    def __call__(self, problem):
        self.sizes.append(problem)
        return max(self.idle, problem.flops / self.rate)


@pytest.mark.parametrize("preset", [name for name in TIMED if PRESETS[name].flops > loading.QUICK_FLOPS])
def test_a_launch_is_timed_small_first_and_never_lasts_too_long(preset):
    problem = PRESETS[preset]
    for seconds in (0.001, 0.31, 3.1, 31.0):
        launches = Launches(problem.flops / seconds)
        found = loading.within_time(problem, launches)
        assert launches(found) <= loading.LAUNCH_SECONDS or found == list(loading.sizes(problem))[-1]
        assert (found == problem) == (seconds <= loading.LAUNCH_SECONDS)
        larger = [size for size in loading.sizes(problem) if size.flops > found.flops]
        assert not larger or launches(larger[-1]) > loading.LAUNCH_SECONDS
        assert launches.sizes[0].flops <= problem.flops / 4


def test_a_record_s_size_holds_where_it_would_be_chosen_again():
    problem = PRESETS["c3d-conv3a"]
    full, half, quarter, *_ = loading.sizes(problem)
    roomy = room(79)
    assert loading.runs_at(problem, full, 0.3, roomy)
    assert loading.runs_at(problem, full, 0.6, roomy)  # a clock that was low a while
    assert loading.runs_at(problem, half, 0.3, roomy)  # twice as much takes too long
    assert loading.runs_at(problem, half, 0.22, roomy)
    assert not loading.runs_at(problem, half, 0.1, roomy)  # it was measured where memory was short
    assert loading.runs_at(problem, quarter, 0.3, roomy)
    assert not loading.runs_at(problem, problems.PRESETS["unet3d"], 0.3, roomy)
    assert not loading.runs_at(problem, full, 0.3, 0)


def test_a_file_known_to_be_fast_is_not_timed_at_another_size_until_it_is_saved_again(tmp_path, monkeypatch):
    """A GPU that takes 100 ps an operation, then, after an edit of the file, 1 ps."""
    file, sizes, each, passed = tmp_path / "gemm_naive.py", [], [1e-10], [0.0]
    file.write_text("")
    task = messages.at(catalog.find("gemm_naive"), PRESETS["gemm-2048"], file)

    class Bench:
        def __init__(self, module, size, tile):
            self.size = size

        def load(self, *operands):
            sizes.append(self.size)

        def run(self):
            passed[0] += self.size.flops * each[0]

    monkeypatch.setattr(loading, "_slowest", {})
    monkeypatch.setattr(loading, "room", lambda: room(79))
    monkeypatch.setattr(loading, "check", SimpleNamespace(Bench=Bench))
    monkeypatch.setattr(loading, "time", SimpleNamespace(perf_counter=lambda: passed[0]))
    monkeypatch.setattr(loading.device, "gpu_count", lambda: 1)

    def sized(tile=None):
        sizes.clear()
        return loading.sized(messages.Size(**task), None, tile), len(sizes)

    assert sized() == (problems.Gemm(M=1024, N=1024, K=1024), 2)  # of 2.1 GFLOP; the whole would take 1.7 s
    each[0] = 1e-12
    os.utime(file, (1, 1))
    assert sized() == (PRESETS["gemm-2048"], 1)
    assert sized() == (PRESETS["gemm-2048"], 0)
    assert sized({"TILE": 2}) == (PRESETS["gemm-2048"], 1)
    os.utime(file, (2, 2))
    assert sized() == (PRESETS["gemm-2048"], 1)

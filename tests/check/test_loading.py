"""How large a problem a card takes: by its memory, and by the time of a launch, with cards made up."""

import pytest

from common.catalog import problems
from common.catalog.problems import PRESETS
from common.check import loading

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

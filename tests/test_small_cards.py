"""On a real GPU: what comes of the workbook where another process holds most of the card's memory."""

import played
import pytest
import texts
from processes import python
from sampling import one_of_each

from common.catalog import catalog, device, problems
from common.check import loading, run
from common.commands import console
from common.commands.console import RIGHT
from common.run import isolate
from common.timing import measuring

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

LAYER = problems.PRESETS["ece408-layer1"]


# gigabytes that are free, and processors
CARDS = one_of_each([(4, 2), (6, 4), (8, 4), (12, 4)], lambda _: "a card")


def look_anew():
    """End the process that owns the GPU, which keeps what it found out of it."""
    isolate.cool()
    run.inspect_device.cache_clear()


@pytest.fixture(params=CARDS, ids=lambda card: "{} GB, {} processors".format(*card))
def gigabytes(request):
    free, processors = request.param
    look_anew()
    with played.processors(processors), played.memory(free * 10**9):
        yield free
    look_anew()


def test_a_small_card_has_the_same_sizes_twice_and_times_a_step_and_the_library(gigabytes):
    found = []
    for _ in range(2):
        look_anew()
        found.append(run.inspect_device()[1])
    assert found[0] == found[1] > 0
    pairs = [(catalog.find(name), "ece408-layer1") for name in ("conv2d_naive", "conv2d_unroll_gemm")]
    shapes = set()
    for one in measuring.measure(pairs):
        assert one.status == "right", one
        shapes.add(one.problem)
    assert measuring.library("ece408-layer1").status in ("right", "crashed")  # without PyTorch there is none
    assert shapes == {loading.fitted(LAYER, found[0])}


def test_shapes_without_room_are_left_out_and_hold_nothing_back(gigabytes):
    outcomes = list(run.check_steps([catalog.find("gemm_naive")], False, seed=3))
    assert all(outcome.fine for outcome in outcomes), [outcome.reasons for outcome in outcomes]
    left = [outcome for outcome in outcomes if outcome.left_out]
    assert len(left) >= (2 if gigabytes < 10 else 0)
    assert all(max(map(len, map(str, outcome.problem.operands))) and outcome.needed_bytes > 10**9 for outcome in left)
    assert console.exit_code(outcomes, asked=False) == RIGHT


def test_a_slow_card_runs_a_step_at_a_size_whose_launch_is_short():
    """Seconds are ten times as long, the second time."""
    env = device.environment(False)
    whole, slow = map(int, python("-c", texts.of("")["slow"], env=env).stdout.split())
    assert whole >= 8  # 16 where a launch of all takes less than half a second, as on an H100
    assert slow <= 4

"""The keys of what ``--json`` prints: scripts read them by name, whatever type the program has for them."""

import json

import mutants
import pytest

from common.catalog import catalog, device, problems
from common.run.messages import Outcome
from common.timing import measuring, timing
from common.timing.ceilings import Ceilings

SHAPE = "M=5 N=7 K=3"
OF_A_CHECK = "depth elements_compared engine engines findings right seconds seed shape status step"
OF_A_FAULT = "array block code count kind line look_at met thread what"
OF_A_HOT_LOOP = (
    "as_single_loads floats_per_fma fma_per_shared_load groups instructions lines mix multiply_adds total useful "
    "what widths"
)
OF_A_CARD = (
    "architecture block dynamic_shared_bytes grid hot instructions kernel occupancy registers shared_bytes "
    "spill_bytes stack_bytes threads"
)
OF_A_TRACED_KERNEL = (
    "accesses block blocks branches faults file first_block fma fma_lines grid launches name notes per_fma "
    "pipeline printed prints totals under_way"
)
OF_AN_ACCESS = (
    "accesses array bits bytes_moved distinct efficiency ideal ideal_per_request lanes_per_address line moved op "
    "per_request requests sample space text"
)
OF_A_TIME = (
    "elements_compared findings first_launch_ms floor_ms gbs gflops percent_of_floor prepare_ms "
    "problem right seconds shape source status step timing workspace_bytes"
)


def keys(found):
    return " ".join(sorted(found))


@pytest.fixture
def printed(call):
    return lambda *words: json.loads(call(*words, "--json")[1])


def test_of_the_list(printed):
    found = "algorithm builds_on ladder lesson path precision predecessor requires step"
    assert {keys(step) for step in printed("list")} == {found}


def test_of_a_check(call):
    words = ("check", "gemm_naive", "--sim", "--shape", SHAPE, "--json")
    code, out, _ = call(*words)
    found = json.loads(out)
    assert (code, keys(found)) == (0, "device results right seed")
    assert [keys(one) for one in found["results"]] == [OF_A_CHECK]
    code, out, _ = call(*words, "--file", str(mutants.path("gemm_accumulates")))
    assert (code, json.loads(out)["right"]) == (1, False)
    (found,) = json.loads(out)["results"]
    assert keys(found) == " ".join(sorted([*OF_A_CHECK.split(), "faults"]))
    assert {keys(one) for one in found["findings"]} == {"kind message"}
    assert {keys(one) for one in found["faults"]} == {OF_A_FAULT}


def test_of_machine_code(printed):
    found = printed("inspect", "gemm_naive", "--cc", "9.0")
    assert keys(found) == "architecture results"
    (card,) = found["results"][0]["cards"]
    assert keys(card) == OF_A_CARD
    assert keys(card["hot"]) == OF_A_HOT_LOOP


def test_of_a_trace(printed):
    found = printed("trace", "gemm_naive", "gemm_shared_tile")
    assert keys(found) == "comparison steps"
    for one in found["steps"]:
        assert keys(one) == "kernels ladder shape step"
        assert {keys(kernel) for kernel in one["kernels"]} == {OF_A_TRACED_KERNEL}
        assert {keys(access) for kernel in one["kernels"] for access in kernel["accesses"]} == {OF_AN_ACCESS}


def test_of_times(printed, monkeypatch):
    step, problem = catalog.find("gemm_naive"), problems.preset("gemm-2048")
    right = {
        "status": "right", "shape": problem.shape(), "right": True, "elements_compared": 5, "findings": [],
        "timing": timing.summarise([2.0] * 10), "prepare_ms": None, "first_launch_ms": 9.0, "workspace_bytes": 0,
        "source": "s", "seconds": 1.0,
    }  # fmt: skip
    refused = {"status": "refused", "message": "no"}
    card = device.Gpu("NVIDIA Test 9", "9.0", 100, 2**36, 2**25, "1", "13.0")
    monkeypatch.setattr(device, "require_gpu", lambda what: None)
    monkeypatch.setattr(measuring, "measure_device", lambda: (card, Ceilings(copy_gbs=1000.0, fma_gflops=10_000.0)))
    other = catalog.find("gemm_shared_tile")
    outcomes = [
        Outcome(step=one, problem=problem, preset="gemm-2048", **result)
        for one, result in ((step, right), (other, refused))
    ]
    monkeypatch.setattr(measuring, "measure", lambda *_: iter(outcomes))
    found = printed("time", "gemm_naive")
    assert keys(found) == "ceilings gpu results slug"
    assert [keys(one) for one in found["results"]] == [OF_A_TIME, "message problem status step"]
    assert keys(found["gpu"]) == "compute_capability cuda driver l2_bytes memory_bytes multiprocessors name"
    assert keys(found["results"][0]["timing"]) == "median_error median_ms p20_ms p80_ms repeats"
    assert found["results"][0]["prepare_ms"] is None

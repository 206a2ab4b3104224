"""The counting rules: sectors and wavefronts of requests worked out by hand, and of patterns that a GPU counted."""

from pathlib import Path

import numpy as np
import pytest

from common.catalog import catalog, problems
from common.run import isolate
from common.run.messages import Launch
from common.timing import tools
from common.trace.cost import Cost, Ledger, sectors, served_together, wavefronts

PATTERNS = Path(__file__).parent / "gemm_shared_patterns.py"
LANES = np.arange(32)
ALL = np.ones((1, 32), np.bool_)


def row(values):
    return np.asarray(values, np.int64).reshape(1, 32)


def idle(*lanes):
    """All lanes but these."""
    active = ALL.copy()
    active[0, list(lanes)] = False
    return active


# --- global memory ---


@pytest.mark.parametrize(
    ("addresses", "width", "expected"),
    [
        (4 * LANES, 4, Cost(1, 4, 4, 32)),  # neighbours: 128 bytes
        (4 * LANES[::-1], 4, Cost(1, 4, 4, 32)),  # in any order
        (4 * LANES + 4, 4, Cost(1, 5, 4, 32)),  # from the middle of a sector on
        (4 * LANES + 32, 4, Cost(1, 4, 4, 32)),
        (0 * LANES + 40, 4, Cost(1, 1, 1, 1)),  # one word for all
        (8 * LANES, 4, Cost(1, 8, 4, 32)),  # every second word
        (4096 * LANES, 4, Cost(1, 32, 4, 32)),  # a row apart
        (16 * LANES, 16, Cost(1, 16, 16, 32)),  # 128 bits each: 512 bytes
        (8 * LANES, 8, Cost(1, 8, 8, 32)),
        (LANES // 16 * 400 + LANES % 16 * 4, 4, Cost(1, 5, 4, 32)),  # two pieces of 64 bytes, one not aligned
    ],
)
def test_sectors_of_a_request(addresses, width, expected):
    assert sectors(row(addresses), ALL, width) == expected


def test_idle_lanes_ask_for_nothing():
    assert sectors(row(4096 * LANES), idle(*range(2, 32)), 4) == Cost(1, 2, 1, 2)
    assert sectors(row(4 * LANES), idle(*range(32)), 4) == Cost(0, 0, 0, 0)
    # what stands in an idle lane is not looked at
    assert sectors(row(np.where(LANES == 3, 10**9, 4 * LANES)), idle(3), 4) == Cost(1, 4, 4, 31)


def test_a_copy_past_l1_is_served_by_quarters_of_a_warp():
    """Four rows of eight lanes, of which each begins in the middle of the one before: counted on an H200."""
    rows = LANES // 8 * 64 + LANES % 8 * 16
    assert sectors(row(rows), ALL, 16).moved == 10
    assert sectors(row(rows), ALL, 16, past_l1=True) == Cost(1, 16, 10, 20)
    assert sectors(row(rows), idle(*range(8), 8), 16, past_l1=True).moved == 12  # a quarter asks for nothing


def test_warps_are_counted_one_by_one():
    addresses = np.concatenate([row(4 * LANES), row(0 * LANES), row(4096 * LANES)])
    active = np.concatenate([ALL, ALL, idle(*range(32))])
    assert sectors(addresses, active, 4) == Cost(2, 5, 5, 33)


# --- shared memory ---


@pytest.mark.parametrize(
    ("words", "width", "expected"),
    [
        (LANES, 1, Cost(1, 1, 1, 32)),
        (0 * LANES, 1, Cost(1, 1, 1, 1)),  # a broadcast
        (LANES // 2, 1, Cost(1, 1, 1, 16)),
        (2 * LANES, 1, Cost(1, 2, 1, 32)),  # even banks, two words each
        (32 * LANES, 1, Cost(1, 32, 1, 32)),  # all in one bank
        (33 * LANES, 1, Cost(1, 1, 1, 32)),  # a padded row apart
        (34 * LANES, 1, Cost(1, 2, 1, 32)),
        (LANES // 16 * 20 + LANES % 16, 1, Cost(1, 2, 1, 32)),  # two rows of 16, 20 apart: banks 20 to 31, 0 to 3
        (2 * LANES, 2, Cost(1, 2, 2, 32)),  # 256 bytes: two passes
        (0 * LANES, 2, Cost(1, 1, 1, 1)),
        (LANES // 2 * 2, 2, Cost(1, 1, 1, 16)),  # pairs: both halves in one pass
        (64 * LANES, 2, Cost(1, 32, 2, 32)),
        (4 * LANES, 4, Cost(1, 4, 4, 32)),  # 512 bytes: four passes
        (0 * LANES, 4, Cost(1, 2, 2, 1)),  # halves of the warp never share a pass
        (LANES // 2 * 4, 4, Cost(1, 2, 2, 16)),
        ((LANES // 4 * 2 + LANES % 2) * 4, 4, Cost(1, 2, 2, 16)),  # lane i with i ^ 2
        (LANES % 8 * 4, 4, Cost(1, 4, 4, 8)),  # the quarters agree, but no neighbours do
        (LANES // 8 * 32, 4, Cost(1, 4, 2, 4)),  # gemm_wide_loads, tile of A: two rows in one half, same banks
        (LANES * 36, 4, Cost(1, 4, 4, 32)),  # rows padded by four words
        (LANES * 32, 4, Cost(1, 32, 4, 32)),
    ],
)
def test_wavefronts_of_a_request(words, width, expected):
    assert wavefronts(row(words), ALL, width) == expected


@pytest.mark.parametrize(
    ("words", "width", "write", "expected"),
    [
        (LANES, 1, False, 32),
        (2 * LANES, 2, False, 16),
        (LANES // 2 * 2, 2, False, 32),
        (4 * LANES, 4, False, 8),
        (LANES // 2 * 4, 4, False, 16),  # lane i with i ^ 1
        ((LANES // 4 * 2 + LANES % 2) * 4, 4, False, 16),  # and with i ^ 2
        (LANES // 2 * 4, 4, True, 8),  # writes do not pair up
    ],
)
def test_how_many_lanes_are_served_at_a_time(words, width, write, expected):
    assert served_together(row(words), ALL, width, write) == expected
    # without a conflict, a wavefront for each part
    assert wavefronts(row(words), ALL, width, write).ideal == 32 // expected


def test_idle_lanes_and_warps_take_no_wavefront():
    assert wavefronts(row(32 * LANES), idle(*range(3, 32)), 1) == Cost(1, 3, 1, 3)
    assert wavefronts(row(4 * LANES), idle(*range(16, 32)), 4) == Cost(1, 2, 2, 16)
    assert wavefronts(row(4 * LANES), idle(*range(8, 32)), 4) == Cost(1, 1, 1, 8)
    # each lane whose partner idles agrees with it
    assert wavefronts(row(4 * LANES), idle(*range(1, 32, 2)), 4) == Cost(1, 4, 2, 16)
    assert wavefronts(row(LANES), idle(*range(32)), 1) == Cost(0, 0, 0, 0)


def test_what_an_h200_counted_of_pairs():
    assert wavefronts(row(4 * LANES), idle(*({*range(32)} - {3, 9, 30})), 4) == Cost(1, 2, 2, 3)
    # writes do not pair up
    assert wavefronts(row(2 * LANES), idle(*({*range(32)} - {3, 9, 30})), 2, write=True) == Cost(1, 2, 2, 3)
    assert wavefronts(row(4 * LANES), idle(*({*range(32)} - {3, 9, 30})), 4, write=True) == Cost(1, 3, 3, 3)
    # one lane that disagrees, in either half, undoes the pairing of the whole warp
    broken = np.where(LANES == 5, 80, LANES // 2 * 4)
    assert wavefronts(row(broken), ALL, 4) == Cost(1, 4, 4, 17)
    # and so do halves that pair up in different ways
    mixed = np.where(LANES < 16, LANES // 2, LANES // 4 * 2 + LANES % 2) * 4
    assert wavefronts(row(mixed), ALL, 4) == Cost(1, 4, 4, 16)


def test_the_main_loops_of_gemm_register_blocked_and_gemm_tuned():
    # 16 threads in x, two in y: 12 wavefronts for each k, as counted on an H200 (lesson 04)
    a, b = row(LANES // 16 * 4), row(LANES % 16 * 4)
    assert [wavefronts(words, ALL, 4).moved for words in (a, b)] == [2, 4]
    thread_m, thread_n = (LANES // 16 * 2 + LANES % 2) * 4, LANES // 2 % 8 * 4
    assert [wavefronts(row(words), ALL, 4).moved for words in (thread_m, thread_n)] == [2, 2]


# --- the ledger's memory of costs ---


@pytest.mark.parametrize("space", ["global", "shared"])
def test_a_remembered_cost_is_that_of_the_request(space):
    ledger, generator = Ledger(), np.random.default_rng(0)
    for _ in range(300):
        width = int(generator.choice([1, 2, 4]))
        base = generator.integers(0, 50) * width
        kind = generator.integers(0, 4)
        places = [LANES, LANES // 2, 8 * LANES, generator.integers(0, 99, 32)][kind] * width + base
        active = generator.random(32) < 0.8
        found = ledger.cost(space, 4 * places, active, 4 * width)
        if space == "global":
            assert found == sectors(row(4 * places), active[None], 4 * width)
        else:
            assert found == wavefronts(row(places), active[None], width)


# --- on a GPU ---


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
def test_the_hardware_counts_these_wavefronts():
    try:
        command = tools.ncu(tools.COUNTED)
    except tools.ToolError as error:
        pytest.skip(str(error))
    module = catalog.load(PATTERNS, "gemm")
    task = Launch(path=str(PATTERNS), ladder="gemm", shape={"M": 4, "N": 8, "K": 1})
    results, output = isolate.watched([task], command, 300)
    assert [result.status for result in results] == ["right"], (results, output)
    counted = tools.parse(output, tools.COUNTED)
    assert len(counted) == len(module.PATTERNS)
    fill = module.SIZE // 32
    wrong = []
    for (verb, width, name, offsets), entry in zip(module.PATTERNS, counted, strict=True):
        expected = wavefronts(row(offsets), row(offsets) >= 0, width, verb == "write")
        key = "load" if verb == "read" else "store"
        found = entry[f"shared_{key}_wavefronts"] - (0 if verb == "read" else fill)
        if found != expected.moved:
            wrong.append((verb, width, name, found, expected.moved))
    assert wrong == []


def test_every_pattern_is_traced_as_the_rules_say():
    from common.trace import trace

    module = catalog.load(PATTERNS, "gemm")
    found = trace.run(module, problems.Gemm(M=4, N=8, K=1), every=True)
    assert found.faults == []
    fill = module.SIZE // 32
    for kernel, (verb, width) in zip(found.kernels, dict.fromkeys(p[:2] for p in module.PATTERNS), strict=True):
        own = [np.array(offsets) for v, w, _, offsets in module.PATTERNS if (v, w) == (verb, width)]
        expected = sum(wavefronts(row(o), row(o) >= 0, width, verb == "write").moved for o in own)
        totals = kernel.totals
        if verb == "read":
            assert totals["shared_load_wavefronts"] == expected
        else:
            assert totals["shared_store_wavefronts"] == expected + fill * len(own)

"""Hopper's asynchronous machine in the simulator: right kernels, and kernels wrong in one place each."""

from pathlib import Path

import numpy as np
import pytest

from common.book import catalog, problems, reference
from common.explain import faults
from common.measure import check, inputs
from common.microscope import simulator

simulator.install()
RIGHT = Path(__file__).parents[1] / "patterns" / "hgemm_hopper.py"
PROBLEM = problems.Hgemm(M=72, N=136, K=328)


def launched(path, problem=PROBLEM):
    bench = check.Bench(catalog.load(path, problem.ladder), problem)
    bench.load(*inputs.integers(problem, 0))
    bench.y.blank()
    bench.run()
    return bench.y.get()


def fault_of(path, problem=PROBLEM):
    """The fault that a launch ends with; None if it ends well."""
    try:
        launched(path, problem)
    except Exception as error:
        return faults.of_error(error, path)
    return None


def expected(problem=PROBLEM):
    return reference.expected(problem, *inputs.integers(problem, 0))


def numbered(text, start):
    """The number of the first line that starts with these words."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))


@pytest.mark.parametrize("direction", simulator.ORDERS)
@pytest.mark.parametrize("problem", [PROBLEM, problems.Hgemm(M=1, N=8, K=8)])
def test_a_right_kernel_is_right_in_every_order(direction, problem):
    with simulator.order(direction):
        np.testing.assert_array_equal(launched(RIGHT, problem), expected(problem))


FULL = "            barrier_wait(bars, slot, turn % 2)\n"
FREE = "                barrier_wait(bars, STAGES + slot, turn % 2 ^ 1)\n"
RELEASE = "            if thread == 128:\n                barrier_arrive(bars, STAGES + slot)\n"
WAIT = "            wgmma_wait(0)\n"
WGMMA = "wgmma_f16_rows("

LOAD_A = "tma_load2(tiles, slot * STAGE, a"
FIRST = "            for k in range(4):\n"
STORE = "    if thread == 128:\n        for"
ONE_SLOT = "slot, turn = k0 // BLOCK_K % STAGES, k0 // BLOCK_K // STAGES\n                b"
EXPECT = "                barrier_expect(bars, slot, 2 * STAGE)\n"
OUT = "    out = STAGES * STAGE\n"
FENCE = "            wgmma_fence()\n"

# What stands in place of what; the kind of the fault, and the start of the line it names, unless that depends.
WRONG = {
    "no wait for the bytes": ((FULL, ""), "copy-not-awaited", WGMMA),
    "waits for the wrong parity": ((FULL, FULL.replace("% 2", "% 2 ^ 1")), "copy-not-awaited", WGMMA),
    "waits at another slot": ((FULL, FULL.replace("slot,", "0,")), "copy-not-awaited", WGMMA),
    "no wait for a free slot": ((FREE, ""), "mbarrier", "barrier_expect("),
    "free slots of the wrong parity": ((FREE, FREE.replace(" ^ 1", "")), "deadlock", "barrier_wait(bars, STAGES"),
    "released before it is read": ((WAIT + RELEASE, RELEASE + WAIT), "race", LOAD_A),
    "never released": ((RELEASE, ""), "deadlock", "barrier_wait(bars, STAGES"),
    "released by all": ((RELEASE, RELEASE.replace("== 128", ">= 128")), "mbarrier", "barrier_arrive("),
    "released twice": ((RELEASE, RELEASE + RELEASE[RELEASE.index("\n") + 1 :]), "mbarrier", ""),
    "one slot for all": ((ONE_SLOT, "slot, turn = 0, k0 // BLOCK_K\n                b"), "deadlock",
                         "barrier_wait(bars, STAGES"),
    "too few bytes": ((EXPECT, EXPECT.replace("STAGE)", "STAGE - 8192)")), "mbarrier", "barrier_expect("),
    "too many bytes": ((EXPECT, EXPECT.replace("STAGE)", "STAGE + 16)")), "deadlock", "barrier_wait(bars, slot"),
    "arrives in vain": ((EXPECT, EXPECT.replace("expect", "arrive").replace(", 2 * STAGE", "") + EXPECT), "mbarrier",
                        "barrier_expect("),
    "no publication": (("        publish_barriers()\n", ""), "mbarrier", "barrier_wait(bars, STAGES"),
    "no barrier after it": (("    cuda.syncthreads()\n    out", "    out"), "mbarrier", ""),
    "no barrier made": (("            barrier_init(bars, slot, 1)\n", ""), "mbarrier", ""),
    "a barrier of two arrivals": (("barrier_init(bars, slot, 1)", "barrier_init(bars, slot, 2)"), "deadlock",
                                  "barrier_wait(bars, slot"),
    "stride of A": (("slot * STAGE, 0, 1024)", "slot * STAGE, 0, 512)"), "descriptor", WGMMA),
    "stride of B": (("2 * PANEL, 1024)", "2 * PANEL, 2048)"), "descriptor", WGMMA),
    "leading offset of B": (("2 * PANEL, 1024)", "PANEL, 1024)"), "descriptor", WGMMA),
    "tiles that nobody wrote": (("slot * STAGE + A_TILE, 2", "slot * STAGE + 3 * STAGE, 2"), "read-before-write",
                                WGMMA),
    "no fence of the sums": ((FENCE, ""), "wgmma-order", WGMMA),
    "sums changed after the fence": ((FENCE, FENCE + "            acc[0] += float32(1.0)\n"), "wgmma-order", WGMMA),
    "sums changed before the wait": ((WAIT, "            acc[0] = float32(0.0)\n" + WAIT), "wgmma-order", WGMMA),
    "no wait for the sums": ((WAIT, ""), "race", LOAD_A),
    "half a warpgroup": ((FIRST, FIRST.replace("4", "4 if thread < 192 else 3")), "warp-sync", WGMMA),
    "no fence of the tile": (("        fence_async()\n", ""), "proxy-fence", "tma_store2("),
    "no barrier before the store": (("    cuda.syncthreads()\n" + STORE, STORE), "proxy-fence", "tma_store2("),
    "no wait for the store": (("        tma_wait_read(0)\n", ""), "copy-not-awaited", "tma_store2("),
    "no group of stores": (("        tma_commit()\n", ""), "copy-not-awaited", "tma_store2("),
    "a misaligned tile": ((LOAD_A, LOAD_A.replace("STAGE", "STAGE + 8")), "misaligned", "tma_load2(tiles, slot"),
    "a tile outside": ((OUT, OUT.replace("\n", " + PANEL\n")), "outside", "tiles[at] ="),
    "more registers than there are": (("take_registers(200)", "take_registers(256)"), "deadlock", "take_registers("),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("direction", simulator.ORDERS)
def test_what_is_wrong_is_found_at_its_line(write, name, direction):
    changes, kind, start = WRONG[name]
    text = RIGHT.read_text(encoding="utf-8")
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    path = write("hgemm_own.py", text)
    with simulator.order(direction):
        found = fault_of(path)
    assert found
    assert found.kind == kind
    assert not start or found.line == numbered(text, start)


def test_tiles_that_are_free_may_be_used_again(write):
    text = RIGHT.read_text(encoding="utf-8").replace("    out = STAGES * STAGE\n", "    out = 0\n")
    np.testing.assert_array_equal(launched(write("hgemm_own.py", text)), expected())

"""Kernels of Hopper's asynchronous machine, as texts: right ones, and what makes them wrong in one place each."""

import functools
from pathlib import Path

import numpy as np
from small_kernels import BODIES

from common.catalog import inputs, problems, reference
from lessons.toolkit.maps import Maps

RIGHT = Path(__file__).parent / "hgemm_hopper.py"
PROBLEM = problems.Hgemm(M=72, N=136, K=328)
ONE_BLOCK = problems.Hgemm(M=40, N=120, K=328)  # enough for a mistake: all turns of the slots


@functools.cache
def expected(problem=PROBLEM):
    return reference.expected(problem, *inputs.integers(problem, 0))


def numbered(text, start):
    """The number of the first line that starts with these words."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))


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
    "other descriptors for half of it": (("slot * STAGE, 0, 1024)", "slot * STAGE + thread // 192 * 64, 0, 1024)"),
                                         "warp-sync", WGMMA),
    "written while a copy fills it": ((EXPECT, EXPECT.replace("                ", "                if slot:\n"
                                       "                    tiles[5] = to_half(float32(0.0))\n                ", 1)),
                                      "race", "tiles[5]"),
    "no fence of the tile": (("        fence_async()\n", ""), "proxy-fence", "tma_store2("),
    "no barrier before the store": (("    cuda.syncthreads()\n" + STORE, STORE), "proxy-fence", "tma_store2("),
    "no wait for the store": (("        tma_wait_read(0)\n", ""), "copy-not-awaited", "tma_store2("),
    "no group of stores": (("        tma_commit()\n", ""), "copy-not-awaited", "tma_store2("),
    "written before it is stored": (("        tma_commit()\n", "        tma_commit()\n        tiles[out + 5] = "
                                     "to_half(acc[0])\n"), "race", "tiles[out + 5]"),
    "a misaligned tile": ((LOAD_A, LOAD_A.replace("STAGE", "STAGE + 8")), "misaligned", "tma_load2(tiles, slot"),
    "a tile outside": ((OUT, OUT.replace("\n", " + PANEL\n")), "outside", "tiles[at] ="),
    "more registers than there are": (("take_registers(200)", "take_registers(256)"), "deadlock", "take_registers("),
}  # fmt: skip

HANDED = BODIES["handed"]

HEAD = BODIES["head"]

MULTIPLY = BODIES["multiply"]

COPY = BODIES["box"]

UNAWAITED = COPY[: COPY.index("        barrier_wait")]

IM2COL = BODIES["im2col"]

CLUSTER = BODIES["cluster"]
SYNC = "    cluster_sync()\n"


def cluster_arguments(turns=4):
    a = np.random.default_rng(2).integers(1, 99, (32, 64 * turns)).astype(np.float16)
    return a, Maps().tiled(a, (16, 64)), np.full((4, 32, 64 * turns), np.nan, np.float16), turns


LOAD = "            tma_load2_multicast("
GIVEN_BACK = "        if lane < 2:\n            barrier_arrive_at(bars, 1, lane)\n"
ROWS = "        for row in range(32):\n"
READ = "                out[cuda.blockIdx.x, row"
WRONG_CLUSTERS = {
    "one block alone": (("turn, 3)", "turn, 1)"), "deadlock", "barrier_wait(bars, 0"),
    "a block that is not there": (("turn, 3)", "turn, 5)"), "operand", LOAD),
    "no barrier of the cluster": ((SYNC + "    for", "    cuda.syncthreads()\n    for"), "mbarrier", LOAD),
    "barriers not published": (("        publish_barriers()\n", ""), "mbarrier", ""),
    "left before the others are done": (("lane)\n" + SYNC, "lane)\n"), "left-cluster", "barrier_arrive_at("),
    "not released": ((GIVEN_BACK, ""), "deadlock", "barrier_wait(bars, 1"),
    "released by the own block alone": (("bars, 1, lane)", "bars, 1, rank)"), "race", LOAD),
    "released for the own block alone": (("bars, 1, 2)", "bars, 1, 1)"), "race", LOAD),
    "released before all lanes have read": (("        cuda.syncwarp()\n", ""), "race", LOAD),
    "released before the lane itself has read": ((GIVEN_BACK, "", ROWS, GIVEN_BACK + ROWS), "race", LOAD),
    "a rank that is not there": (("bars, 1, lane)", "bars, 1, lane + 1)"), "operand", "barrier_arrive_at("),
    "read before it is there": (("        barrier_wait(bars, 0, turn % 2)\n", ""), "copy-not-awaited", READ),
    "read by lanes that have not waited": (("        barrier_wait(bars, 0", "        if lane == 0:\n"
                                            "            barrier_wait(bars, 0"), "copy-not-awaited", READ),
    "one lane stays away": ((SYNC + "    for", "    if lane != 7:\n    " + SYNC + "    for"), "divergent-barrier",
                            "cluster_sync()"),
}  # fmt: skip
SLAB = BODIES["slab"]
MET = "        cuda.syncwarp()\n"
FENCED = "        fence_async()\n"
WRONG_SLABS = {
    "fenced after the warp has met": ((FENCED + MET, MET + FENCED), "proxy-fence", "tma_store2("),
    "fenced by the lane that sends it": ((FENCED, FENCED.replace("f", "if lane == 0:\n            f", 1)),
                                         "proxy-fence", "tma_store2("),
    "written before the warp knows that it has left": ((MET + "        for", "        for"), "race", "tiles[i] ="),
    "another lane waits": (("if lane == 0:\n            tma_wait", "if lane == 1:\n            tma_wait"), "race",
                           "tiles[i] ="),
}  # fmt: skip


def changed_slab(name):
    changes, kind, start = WRONG_SLABS[name]
    assert changes[0] in SLAB
    return SLAB.replace(*changes), kind, start


REGISTERS = BODIES["registers"]

AT_END = BODIES["at_end"]

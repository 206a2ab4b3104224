"""Equal shares: wgrad_stream_k's tables have each iteration of each tile once; gemm_equal_shares crosses tiles."""

import functools
import importlib

import numpy as np
import pytest
from msgspec.structs import replace
from sampling import one_of_each

from common.catalog import catalog
from common.catalog.problems import Gemm
from common.check import check
from common.trace.trace import Tracer


@functools.cache
def planning():
    """The step's plan, imported by the tests that need it: writing the loops of steps out takes a second."""
    return importlib.import_module("lessons.08_training.helpers.stream_k_plan")


CARDS = [1, 20, 132]
# N, P, Q, K, C, and what the layer is for
LAYERS = [
    pytest.param((8, 3, 3, 132, 4), id="odd rows and columns, few patches, several tiles"),
    pytest.param((3, 7, 10, 68, 260), id="tiles that K and C do not fill, in both directions"),
    pytest.param((16, 33, 28, 64, 64), id="tiles of many blocks"),
]


def patches_of(N, P, Q, product):
    """The definition: the last four products need a second row of dy, every fourth a second column."""
    row, column = (number == planning().WINDOW - 1 for number in divmod(product, planning().WINDOW))
    return sum(p + row < P and q + column < Q for p in range(0, P, 2) for q in range(0, Q, 2)) * N


def iterations(layer, tile):
    """In the order of the row: the row of xs and dys, m0 and n0 of each iteration, and the tile it belongs to."""
    N, P, Q, K, C = layer
    stride = planning().padded_patches(N, P, Q)
    places = [(m0, n0) for n0 in range(0, C, tile["BLOCK_N"]) for m0 in range(0, K, tile["BLOCK_M"])]
    steps = [range(0, patches_of(N, P, Q, product), planning().BLOCK_K) for product in range(planning().PRODUCTS)]
    all_of_them = [
        (product * stride + patch, m0, n0, product * len(places) + place)
        for product in range(planning().PRODUCTS)
        for place, (m0, n0) in enumerate(places)
        for patch in steps[product]
    ]
    return np.array(all_of_them), len(places) * planning().PRODUCTS


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("sms", CARDS)
def test_the_row_of_iterations_is_cut_into_equal_shares(monkeypatch, sms, layer):
    monkeypatch.setattr(planning(), "multiprocessors", lambda: sms)
    chosen, work, first_segments = planning().plan.__wrapped__(*layer)
    wanted, tiles = iterations(layer, chosen)
    work = work.astype(np.int64)
    counts = (work[..., 4] > 0).sum(1)

    # a block's segments come first, and behind the longest list are two of none, as a block reads ahead
    assert counts.max() + 2 <= work.shape[1]
    segments = work[np.arange(work.shape[1]) < counts[:, None]]
    number, first, m0, n0, steps = segments.T
    assert (number == np.arange(len(segments))).all()

    # one after another they are the row, each within a tile
    turn = np.concatenate([np.arange(count) for count in steps])
    rows = np.repeat(first, steps) + turn * planning().BLOCK_K
    assert np.array_equal(np.column_stack([rows, np.repeat(m0, steps), np.repeat(n0, steps)]), wanted[:, :3])
    ends = np.cumsum(steps)
    tile = wanted[ends - steps, 3]
    assert (tile == wanted[ends - 1, 3]).all()
    assert first_segments.tolist() == np.searchsorted(tile, np.arange(tiles + 1)).tolist()

    # shares differ by one iteration at most, and there are no more blocks than places
    shares = work[..., 4].sum(1)
    assert shares.max() - shares.min() <= 1
    assert len(work) <= chosen["BLOCKS_PER_SM"] * sms


def test_the_rows_of_the_page_are_what_the_step_cuts():
    work, first_segments = planning().cut([(steps, 0, 0, 0) for steps in (8, 8, 8, 6, 6, 4)], 7)
    tile_of = np.searchsorted(first_segments, work[..., 0], "right") - 1
    tiles, places = (
        np.repeat(one, work[..., 4].ravel()) for one in (tile_of.ravel(), np.arange(7).repeat(work.shape[1]))
    )
    page = (catalog.LESSONS / "08_training" / "equal_shares.md").read_text(encoding="utf-8")
    assert f"tile   {''.join(map(str, tiles))}\nplace  {''.join(map(str, places))}\n" in page


IN_SHARES = [(shape, sms) for shape in ((300, 150, 40), (129, 300, 27), (260, 8, 90)) for sms in (1, 2, 5)]


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("shape", "sms"), one_of_each(IN_SHARES, lambda case: case[0]), ids=str)
def test_a_product_in_shares_that_cross_tiles_is_right(monkeypatch, shape, sms):
    """On 132 multiprocessors small shapes have a block for each step: no share would end within a tile."""
    module, tracer = catalog.load(catalog.find("gemm_equal_shares").path, "gemm"), Tracer()
    monkeypatch.setattr(module, "multiprocessors", lambda: sms)
    verdict = check.check_bench(check.Bench(module, Gemm(*shape), tracer=tracer), replace(check.RULES, repeats=1))
    assert verdict.elements_compared
    assert [finding.message for finding in verdict.findings] == []
    assert tracer.faults() == []

"""What the convolutions in registers share: every tile has a thread, and tiles are cut evenly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

from lessons.toolkit.tiles import ceil_div, divisor, even, largest_part, numbering
from lessons.toolkit.unroll import unroll

pytestmark = pytest.mark.usefixtures("traced")


def numbered(tiles, threads, images, blocks):
    """By thread, in order: the image and the tile that it is given."""
    locate = numbering(tiles, threads)

    @cuda.jit
    @unroll
    def kernel(found, images):
        i = cuda.blockIdx.x * threads + cuda.threadIdx.x
        n, number = locate(cuda.blockIdx.x, images)
        found[i, 0], found[i, 1] = n, number

    found = cuda.to_device(np.full((blocks * threads, 2), -1, np.int64))
    kernel[blocks, threads](found, images)
    return found.copy_to_host()


@settings(max_examples=15, deadline=None)
@given(tiles=st.integers(1, 12), threads=st.sampled_from([1, 2, 4, 6]), images=st.integers(1, 9))
def test_threads_are_numbered_through_the_tiles_of_all_images(tiles, threads, images):
    found = numbered(tiles, threads, images, ceil_div(images * tiles, threads)).tolist()
    wanted = [[n, number] for n in range(images) for number in range(tiles)]
    assert found[: len(wanted)] == wanted
    assert {n for n, _ in found[len(wanted) :]} <= {images - 1}  # the spare ones repeat the last image


@given(extent=st.integers(1, 500), most=st.integers(1, 64))
def test_a_tile_is_cut_evenly_and_divisors_are_the_largest(extent, most):
    tile = even(extent, most)
    assert 1 <= tile <= most
    assert ceil_div(extent, tile) == ceil_div(extent, most)  # as few tiles as the largest gives
    assert tile == 1 or ceil_div(extent, tile - 1) > ceil_div(extent, most)  # and no larger than needed
    part = divisor(extent, most)
    assert extent % part == 0
    assert all(extent % larger for larger in range(part + 1, min(extent, most) + 1))
    assert largest_part(extent, 1, lambda r, s: r <= most) == (part, 1)

"""What a launch may ask for: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

import pytest

from common.catalog import limits


@pytest.mark.parametrize(
    ("capability", "most"), [("7.5", 64), ("8.0", 163), ("8.6", 99), ("9.0", 227), ("12.0", 99), (None, 227)]
)
def test_shared_memory_in_kib_by_compute_capability(capability, most):
    limits.require_launch((1, 1, 1), (32, 1, 1), most * 1024, capability)
    limits.require_shared(1024, (most - 1) * 1024, capability)
    where = f" on compute capability {capability}" if capability else ""
    asked = f"the launch asks for {most * 1024 + 1} bytes of dynamic shared memory"
    with pytest.raises(limits.LaunchLimitError) as caught:
        limits.require_launch((1, 1, 1), (32, 1, 1), most * 1024 + 1, capability)
    assert str(caught.value) == f"{asked}: a block has at most {most * 1024}{where}"
    with pytest.raises(limits.LaunchLimitError, match="together"):
        limits.require_shared(1025, (most - 1) * 1024, capability)


def test_arrays_of_a_fixed_shape_have_48_kib_everywhere():
    with pytest.raises(limits.LaunchLimitError, match="arrays take 49153 bytes: a block has at most 49152"):
        limits.require_shared(49153, 0, None)


def test_the_largest_launches_are_taken():
    for grid, block in (((1, 1, 1), (1024, 1, 1)), ((2**31 - 1, 65535, 65535), (32, 32, 1)), ((1, 1, 1), (1, 1, 64))):
        limits.require_launch(grid, block)


@pytest.mark.parametrize(("grid", "block", "says"), [
    ((1, 1, 1), (32, 33, 1), "1056 threads: a block holds at most 1024"),
    ((1, 1, 1), (1, 1, 65), "z must be from 1 to 64"), ((1, 65536, 1), (1, 1, 1), "y must be from 1 to 65535"),
    ((0, 1, 1), (1, 1, 1), "x must be from 1 to 2147483647"),
])  # fmt: skip
def test_a_launch_beyond_a_limit_names_it(grid, block, says):
    with pytest.raises(limits.LaunchLimitError, match=says):
        limits.require_launch(grid, block)

"""Plans as their kernels take them, without a GPU: what is handed over, in which types."""

import ctypes

import pytest

from common.grading import ptx_run


def test_an_array_is_its_place_its_extents_and_its_strides():
    array = ["array", 1, 64, [3, 5], [40, 8], 8]
    assert ptx_run.arguments_of({"arguments": [array]}, [1000, 2000]) == [0, 0, 15, 8, 2064, 3, 5, 40, 8]
    assert ptx_run.arguments_of({"arguments": [["array", 0, 0, [], [], 4]]}, [1000]) == [0, 0, 1, 4, 1000]


@pytest.mark.parametrize(
    ("kind", "value", "made"),
    [
        ("int8", -128, ctypes.c_int8), ("int16", -(2**15), ctypes.c_int16), ("int32", -(2**31), ctypes.c_int32),
        ("int64", -(2**63), ctypes.c_int64), ("uint8", 255, ctypes.c_uint8), ("uint16", 2**16 - 1, ctypes.c_uint16),
        ("uint32", 2**32 - 1, ctypes.c_uint32), ("uint64", 2**64 - 1, ctypes.c_uint64),
        ("float32", 0.5, ctypes.c_float), ("float64", 0.1, ctypes.c_double),
    ],
)  # fmt: skip
def test_a_number_has_the_type_that_its_kernel_was_compiled_for(kind, value, made):
    (found,) = ptx_run.arguments_of({"arguments": [[kind, value]]}, [])
    assert (type(found), found.value) == (made, value)


def test_a_truth_value_is_one_and_arguments_keep_their_order():
    given = [["boolean", 1], ["boolean", 0], ["int32", 7], ["array", 0, 0, [2], [4], 4]]
    first, second, number, *array = ptx_run.arguments_of({"arguments": given}, [16])
    assert (first, second, number.value, array) == (True, False, 7, [0, 0, 2, 4, 16, 2, 4])
    assert type(first) is type(second) is bool

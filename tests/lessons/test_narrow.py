"""Under `narrow` integers have 32 bits and wrap around, for the compiler and for the tracer alike."""

import re

import numpy as np
import pytest
import texts
from numba import cuda, float32, int64, types, uint32

from common.machine_code import codegen
from lessons.toolkit.narrow import narrow
from lessons.toolkit.unroll import inlined, unroll, unrolled

pytestmark = pytest.mark.usefixtures("traced")
KERNEL = texts.of("lessons")["narrow_kernel"]
HEAD = texts.of("lessons")["narrow_head"]
MOST = 2**32 - 1
FIRST = "int64(0)", "0"
UNSIGNED = {
    "zero - 1": MOST, "(zero - 1) // 2": MOST // 2, "(zero - 1) % 10": MOST % 10, "two * LARGE": 0,
    "one + (2 - 3)": 0, "one + MINUS": -2, "one * MANY": 2**40, "~zero": MOST, "-one": MOST, "one << 31 << 1": 0,
    "(zero - one) >> 31": 1, "(zero - 1) & 15 | 16 ^ one": 31, "min(zero - 1, 5)": 5, "max(zero, one - 2)": MOST,
    "last - 3": MOST, "(last - 3) // LARGE": 1, "cuda.threadIdx.x - 1": MOST, "(0 if zero else 3) - 4": MOST,
    "(7 if zero > 1 else 0) - 4": MOST - 3, "minus_one(zero)": -1, "narrow_minus_one(zero)": MOST,
    "int64(zero) - 1": -1, "int64(zero - 1) + 1": 2**32, "uint64(one) << 40": 2**40, "x.shape[0] * LARGE * 2": 2**32,
    "float32(one) * 3 - 4": -1, "(LARGE - LARGE // 2 + one) // LARGE": 0,
}  # fmt: skip
SIGNED = {
    "zero - 1": -1, "(zero - 7) // 2": -4, "(zero - 7) % 4": 1, "one + MINUS": -2, "-one": -1, "~zero": -1,
    "one * 65536 * 65536": 0, "(one << 31) + zero": -(2**31), "(zero - 1) >> 4": -1, "min(one - 2, 5)": -1,
    "last - 3": -1, "cuda.blockIdx.x - 1": -1,
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "signed"), [(UNSIGNED, False), (SIGNED, True)], ids=["unsigned", "signed"])
def test_the_compiler_and_the_tracer_wrap_around_alike(wanted, signed, tmp_path):
    file = tmp_path / "narrow_kernel.py"
    stores = "".join(f"    y[{number}] = {expression}\n" for number, expression in enumerate(wanted))
    file.write_text(HEAD + KERNEL.format(signed=signed) + stores, encoding="utf-8")
    names = {"__name__": "narrow_kernel"}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    y, x = (cuda.to_device(np.zeros(size, np.int64)) for size in (len(wanted), 1))
    names["kernel"][1, 1](y, x)
    assert dict(zip(wanted, y.copy_to_host().tolist(), strict=True)) == wanted
    ptx = compiled(names["kernel"], types.int64[::1], types.int64[::1])
    stored = {
        int(at or 0) // 8: value for at, value in re.findall(r"st\.global\.u64\s+\[%\w+\+?(\d*)\], (%rd\d+)", ptx)
    }
    for number, (expression, value) in enumerate(wanted.items()):
        if "Idx" not in expression and "x.shape" not in expression:  # what the compiler works out it stores as it is
            assert re.search(rf"mov\.u64 \s*{stored[number]}, {value};", ptx), expression


def compiled(function, *arguments):
    kernel = function if hasattr(function, "py_func") else cuda.jit(function)
    launch = codegen.Launch("kernel", kernel, (1,), (1,), arguments or (types.int64[::1],))
    return codegen.ptx(launch, ["9.0"])["9.0"]


def test_a_compiled_loop_has_no_64_bit_arithmetic():
    def loop(y, n):
        at, left = 0, uint32(n)
        while left > 0:
            at = (at * 5 + cuda.threadIdx.x) // left ^ at + left
            left -= 1
        y[0] = at

    signature = types.int64[::1], types.int64
    texts = [compiled(function, *signature) for function in (loop, narrow(loop))]
    wide = re.compile(r"\b(add|sub|mul|mad|div|rem|xor|shl|shr)(\.\w+)?\.[sub]64\b")
    assert [bool(wide.search(text)) for text in texts] == [True, False]
    assert all("bra" in text for text in texts)


def test_a_range_that_begins_with_int64_counts_in_64_bits(tmp_path):
    file = tmp_path / "narrow_ranges.py"
    loops = [
        f"    for k{i} in range({first}, 2**33, 2**31):\n        y[{i}] = k{i} + 5\n" for i, first in enumerate(FIRST)
    ]
    file.write_text(HEAD + "@cuda.jit\n@narrow\ndef kernel(y):\n" + "".join(loops), encoding="utf-8")
    names = {"__name__": "narrow_ranges"}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    y = cuda.to_device(np.zeros(2, np.int64))
    names["kernel"][1, 1](y)
    assert y.copy_to_host().tolist() == [3 * 2**31 + 5, 2**31 + 5]
    ptx = compiled(names["kernel"])
    assert [f", {value};" in ptx for value in (3 * 2**31 + 5, 2**31 + 5)] == [True, True]


def test_it_stands_above_unroll_and_leaves_floats_and_names_of_its_own():
    SIZE, COUNT = 3, 2

    @inlined
    @narrow
    @unroll
    def add(x, acc, at):
        for i in unrolled(COUNT):
            acc[i] += x[at + i * SIZE] * float32(0.5)
        return at + COUNT

    @cuda.jit
    @narrow
    def kernel(x, y):
        acc = cuda.local.array(COUNT, float32)
        for i in range(COUNT):
            acc[i] = 0
        SIZE = float32(2.0)
        at = add(x, acc, cuda.threadIdx.x)
        y[cuda.threadIdx.x] = (acc[0] + acc[1]) * SIZE + at

    x, y = np.arange(8, dtype=np.float32), cuda.to_device(np.zeros(4, np.float32))
    kernel[1, 4](x, y)
    np.testing.assert_array_equal(y.copy_to_host(), [x[i] + x[i + 3] + i + 2 for i in range(4)])
    compiled(kernel, types.float32[::1], types.float32[::1])


def test_an_int64_that_the_author_wrote_stays():
    @narrow
    def kernel(y, n):
        i = int64(cuda.blockIdx.x) * 2**31 + n
        y[i] = i

    assert "add.s64" in compiled(kernel, types.int64[::1], types.int64)

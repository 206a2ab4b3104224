"""What a kernel may say means what it means in Python, thread by thread; numbers have Numba's types."""

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from small_kernels import BODIES, HEAD, file_of, sections, traced

from common.catalog import inputs
from common.catalog.problems import Gemm
from common.trace import values
from common.trace.state import TraceError

pytestmark = pytest.mark.usefixtures("traced")

# --- the language: what a kernel may say, against Python, thread by thread ---

LANGUAGE = dict(sections("language"))
HALF, PLAIN = BODIES["half"], BODIES["plain"]


def language(name, number=""):
    """The text of a kernel that a section is."""
    body = textwrap.indent(LANGUAGE[name], "    ")
    return f"\n\n@cuda.jit\ndef kernel{number}(a, b, c):\n    i = cuda.grid(1)\n{body}\n"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """By section, what Numba's own simulator makes of it, thread by thread, in a process of its own."""
    folder, (x, weight) = tmp_path_factory.mktemp("language"), inputs.integers(Gemm(M=4, N=32, K=8), 0)
    np.savez(folder / "given.npz", x=x, weight=weight)
    kernels = "".join(language(name, number) for number, name in enumerate(LANGUAGE))
    script = f"""{PLAIN}{HALF}{kernels}
given, found = np.load("given.npz"), []
for number in range({len(LANGUAGE)}):
    c = np.full((4, 32), np.nan, np.float32)
    globals()[f"kernel{{number}}"][2, 16](given["x"].copy(), given["weight"].copy(), c)
    found.append(c)
np.save("found.npy", found)
"""
    (folder / "simulated.py").write_text(script)
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    subprocess.run([sys.executable, "-W", "ignore", "simulated.py"], cwd=folder, env=environment, check=True)
    return dict(zip(LANGUAGE, np.load(folder / "found.npy"), strict=True))


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_language_means_what_it_means_thread_by_thread(write, simulated, name):
    text = HEAD + HALF + language(name) + "\n\ndef launch(a, b, c):\n    kernel[2, 16](a, b, c)\n"
    found = traced(write("gemm_own.py", text), Gemm(M=4, N=32, K=8))
    np.testing.assert_array_equal(found.output, simulated[name])


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("uint32(3) - uint32(5) > uint32(0)", True),  # two unsigned: computed in 64 bits, unsigned
        ("uint32(3) - 5 < 0", True),  # a literal is an int64
        ("uint32(uint32(3) - uint32(5))", 2**32 - 2),
        ("uint32(-1)", 2**32 - 1),
        ("int32(2**31)", -(2**31)),
        ("uint64(7) // uint64(2) - 4", -1),
        ("float32(16777216.0) + float32(1.0)", 16777216),  # a float32 sum
        ("float32(16777216.0) + 1", 16777217),  # with an int64 it is a float64
        ("float32(16777216.0) + 1.0", 16777217),
        ("-7 // 2", -4),
        ("-7 % 3", 2),
        ("np.float16(2049.0)", 2048),
    ],
)
def test_numbers_have_numba_s_types(kernel, expression, value):
    for i in ("", "+ 0 * cuda.threadIdx.x"):  # one value for all threads, and one per lane
        text = re.sub(r"\b(uint32|uint64|int32)\((-?\d[\d*]*)\)", rf"\1(\2 {i})", expression)
        found = kernel(f"c[0, cuda.threadIdx.x] = 1.0 if ({text}) == {value} else -1.0", block=8)
        assert (found.output[0, :8] == 1.0).all(), text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("try:\n    pass\nexcept ValueError:\n    pass", "line 12: a Try statement is not traced"),
        ("c[0, 0] = [j for j in range(3)][0]", r"line 12: \[j for j in range\(3\)\] is not traced"),
        ("cuda.libdevice.j0(1.0)", r"line \d+: libdevice\.j0 is not known to the tracer"),
        ("x = c[0, cuda.threadIdx.x : 9]", "line 12: c: a slice whose length differs between threads is not traced"),
        ("c[0, 0] = cuda.shfl_sync(-1, uint32(1), 0)", "shfl_sync takes int32, .* float64, and this is uint32"),
        ("x = c[0, 0, 0]", "line 12: c has 2 axes, not 3"),
        ('x = c["x"]', "line 12: c has no field 'x': its elements are float32"),
    ],
)
def test_what_is_not_traced_is_named(kernel, body, says):
    with pytest.raises(TraceError, match=says):
        kernel(body)


@pytest.mark.parametrize(("zero", "noted"), [("0.0", True), ("float32(0.0)", False)])
def test_sums_in_float64_are_noted(kernel, zero, noted):
    i = "i = cuda.threadIdx.x"
    (found,) = kernel(f"{i}\nacc = {zero}\nfor k in range(4):\n    acc += a[0, k] * b[k, i]\nc[0, i] = acc").kernels
    assert any("multiplies and adds in float64" in note for note in found.notes) == noted
    assert found.fma == 4 * 32


def test_what_a_launch_writes_on_the_host_is_read_by_its_kernel(write):
    text = file_of("c[0, cuda.threadIdx.x] = a[0, 0]").replace(
        "    kernel[1, 32]", "    a[0, 0] = 50\n    kernel[1, 32]"
    )
    found = traced(write("gemm_own.py", text), Gemm(M=4, N=32, K=8))
    assert (found.output[0] == 50).all()
    assert found.faults == []


@pytest.mark.parametrize(
    ("function", "kinds", "result"),
    [
        (values.mul, "i1 f4", "f4"), (values.mul, "i4 f4", "f8"), (values.add, "u4 i4", "i8"),
        (values.power, "f4 i8", "f4"), (values.truediv, "i4 i4", "f8"), (values.bit_and, "? ?", "?"),
        (values.shift_left, "u1 i8", "u8"), (values.maximum, "u8 i8", "f8"), (values.minimum, "i4 i4", "i4"),
    ],
)  # fmt: skip
def test_arithmetic_is_in_the_types_that_numba_gives_it(function, kinds, result):
    assert function(*(np.ones(3, kind) for kind in kinds.split())).dtype == np.dtype(result)


@pytest.mark.parametrize("number", [np.uint32, np.int32])
def test_narrow_integers_wrap_around_as_64_bits_that_are_cast_back(number):
    ends = np.iinfo(number)
    numbers = [number(one) for one in (0, 1, 2, 7, 31, 32, 40, ends.max, ends.max - 1, ends.min, ends.max // 2)]
    with np.errstate(all="ignore"):
        for function in values._AT_ONCE:
            narrow = values.narrowing(function, number)
            for a in numbers:
                for b in numbers[1:7]:
                    given = (a,) if function in (values.negative, values.invert) else (a, b)
                    as_arrays = [np.array([one]) for one in given]
                    wanted = values.cast(function(*as_arrays), np.dtype(number))
                    assert narrow(*given) == narrow(*as_arrays)[0] == wanted[0]
                    assert narrow(*as_arrays).dtype == wanted.dtype == number


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize(("written", "missing"), [("total", "part"), ("part", "total"), ("total part", "")])
def test_what_a_sum_of_products_adds_up_must_be_there(kernel, recording, written, missing):
    arrays = "total, part = cuda.local.array(1, float32), cuda.local.array(1, float32)"
    lines = [f"{name}[0] = float32(cuda.threadIdx.x)" for name in written.split()]
    body = "\n".join([arrays, *lines, "total[0] += part[0] * part[0]", "c[0, cuda.threadIdx.x] = total[0]"])
    found = kernel(body, recording=recording)
    if missing:
        assert any(fault.kind == "read-before-write" and f"{missing}[0]" in fault.what for fault in found.faults), (
            found.faults
        )
    else:
        assert found.faults == []
        assert found.output[0].tolist() == [t + t * t for t in range(32)]

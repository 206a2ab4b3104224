"""What a kernel may say means what it means in Python, thread by thread; numbers have Numba's types."""

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from small_kernels import HEAD, file_of, sections, traced

from common.catalog import inputs
from common.catalog.problems import Gemm
from common.trace.state import TraceError

pytestmark = pytest.mark.usefixtures("traced")

# --- the language: what a kernel may say, against Python, thread by thread ---

LANGUAGE = dict(
    sections(
        """
        # divergent if
        if i % 3 == 0:
            x = 1.0
        elif i % 3 == 1:
            x = 2.0
        else:
            x = 3.0
        c[0, i] = x

        # stale variable
        x = 5.0
        if i % 2:
            x = float32(i)
        c[0, i] = x

        # stale variable that is added to
        x = 5.0
        if i % 2:
            x = float32(i)
        x += 1.0
        c[0, i] = x

        # swap
        x, y = float32(i), float32(2 * i)
        if i > 9:
            x, y = y, x
        c[0, i] = x - 3 * y

        # varying while
        n = 0
        while n * n < i:
            n += 1
        c[0, i] = n

        # varying range
        t = 0
        for j in range(i, 40, 3):
            t += j
        c[0, i] = t

        # down
        t = 0
        for j in range(i, 3, -2):
            t = t * 2 + j
        c[0, i] = t

        # last loop value
        j = -1
        for j in range(i % 5):
            pass
        c[0, i] = j

        # break
        t = 0
        for j in range(20):
            if j * 2 > i:
                break
            t += j
        c[0, i] = t + 100 * j

        # continue
        t = 0
        for j in range(9):
            if (i + j) % 3 == 0:
                continue
            t += j
            t += 1
        c[0, i] = t

        # while break
        t = 0
        while True:
            t += 1
            if t > i % 7:
                break
            if t == 3:
                continue
            t += 1
        c[0, i] = t

        # nested
        t = 0
        for j in range(4):
            for k in range(j + i % 3):
                if k == 2:
                    break
                t += 10 * j + k
            if t > 30:
                break
        c[0, i] = t

        # return
        c[0, i] = 1
        if i > 20:
            return
        for j in range(5):
            if j == i:
                return
            c[0, i] = j
        c[0, i] = 50

        # select
        c[0, i] = a[0, i] if i < 8 else (b[0, i] if i % 2 else -1.0)

        # guard
        if i < 8 and a[0, i] > 0:
            c[0, i] = 1
        elif i >= 8 or a[1, i] < 0:
            c[0, i] = 2
        else:
            c[0, i] = 3

        # not
        c[0, i] = 1.0 if not (i < 5 or i > 9) else 0.0

        # chain
        c[0, i] = 1.0 if 4 <= i * 2 < 20 else 2.0

        # integers
        c[0, i] = (7 * i - 40) // 6 + (i - 9) % 4 + (i << 2) + (i >> 1)
        c[0, i] += (i & 6) + (i | 1) + (i ^ 3) + i**2

        # min max abs
        c[0, i] = min(i, 7) + max(3, i - 10, 1) + abs(i - 5)

        # local
        r = cuda.local.array(4, float32)
        for j in range(4):
            r[j] = j * i
        if i > 5:
            r[2] += 100
        c[0, i] = r[0] + r[1] + r[2] + r[i % 4]

        # local varying
        r = cuda.local.array(3, float32)
        for j in range(3):
            r[j] = 0
        r[i % 3] = i
        c[0, i] = r[0] + 10 * r[1] + 100 * r[2]

        # local rows
        r = cuda.local.array((2, 2), float32)
        for j in range(2):
            r[j, 0] = j
            r[j, 1] = i
        c[0, i] = r[0, 1] + r[1, 0]

        # atomic
        old = cuda.atomic.add(c, (0, i // 4), 1.0)
        cuda.atomic.max(c, (1, 0), float32(i))

        # function
        c[0, i] = half(i, 3)

        # math
        c[0, i] = math.floor(math.sqrt(float32(i * i))) + float32(math.pi)

        # uniform
        for j in range(3):
            if j == 1:
                continue
            if j == 2 and i < 4:
                break
            c[j, i] = j + 1

        # grid
        n = cuda.grid(1)
        c[0, n] = cuda.blockIdx.x * 100 + cuda.blockDim.x + cuda.gridDim.x + cuda.gridsize(1)

        # tuple
        shape = c.shape
        c[0, i] = shape[1] + len(c) + c.size + c.ndim

        # augmented
        c[0, i] = 1
        c[0, i] += i
        c[0, i] *= 2

        # slices
        row = c[1, 4:20:3]
        if i < len(row):
            row[i] = i
        c[0, i] = a[1:3][1, i % 8] + b[:, i][2] + c[2:].shape[0]

        # slices that begin elsewhere in each thread
        part = b[i % 3, i % 4 : i % 4 + 3]
        c[0, i] = part[0] + 10 * part[2] + len(part)

        # assigned slices
        r = cuda.local.array(4, float32)
        r[:] = 3.0
        r[1:3] = a[0, 2:4]
        c[0, i] = r[0] + r[1] * i + r[2] + r[3]

        # negative ends
        c[0, i] = a[0, -3:].shape[0] + a[0, -3:][1] + a[0, 6:2].shape[0]

        # enumerate, zip
        t = 0
        for j, k in enumerate(range(3)):
            t += j * 10 + k
        for j, k in zip((1, 2), (3, 4)):
            t += j * k * i
        c[0, i] = t

        # unpacked
        (x, y), z = (i, 2), 3
        x = y = x + z
        c[0, i] = x * 100 + y

        # compare and swap
        old = cuda.atomic.cas(c, (0, i), c[0, i], 5.0) if False else 0.0
        c[0, i] = old

        # atomics
        c[0, i] = i
        c[1, i] = 3.0
        cuda.atomic.exch(c, (0, i), 4.0)
        cuda.atomic.sub(c, (1, i), 1.0)
        cuda.atomic.min(c, (1, i), float32(i))

        # atomics that begin anew
        t = cuda.shared.array(32, uint32)
        t[i % 16] = i % 16
        cuda.atomic.inc(t, i % 16, uint32(9))
        t[16 + i % 16] = i % 16
        cuda.atomic.dec(t, 16 + i % 16, uint32(9))
        c[0, i] = t[i % 16] + 100 * t[16 + i % 16]

        # a product whose factor changes memory
        c[1, i] = 1.0
        r = cuda.local.array(1, float32)
        r[0] = 0.0
        for j in range(3):
            r[0] += cuda.atomic.add(c, (1, i), 1.0) * float32(2.0)
        c[0, i] = r[0]

        # strides
        c[0, i] = 1000 * c.strides[0] + c.strides[1]

        # bits
        c[0, i] = cuda.popc(i) + 100 * cuda.ffs(int32(i)) + cuda.selp(i > 3, 7, 8)

        # fused
        c[0, i] = cuda.fma(float32(i), float32(2.0), float32(1.0)) + cuda.cbrt(float32(8.0))

        # rounding
        c[0, i] = round(i / 4) + math.fabs(float32(i) - 9)
        c[1, round(i / 1)] = i

        # pow
        c[0, i] = pow(i, 2) + 2.0**3

        # whole numbers that are one for all threads, until they are not
        last, total = 7, 0
        for j in range(5):
            k = j if j % 2 == 0 else 4 - j
            if j * 7 > i:
                last = -k
                break
            total += k // 2 - -j % 3
        while last < 9:
            last += i % 2 + 1
        c[0, i] = total + 100 * last
        c[1, i] = k + 10 * half(j, 3) + last // (j + 1)

        # a row at a time
        t = 0.0
        for value in a[i % 4]:
            t += value
        c[0, i] = t
        """
    )
)
HALF = """
@cuda.jit(device=True)
def half(i, limit):
    if i < limit:
        return 1000
    for j in range(100):
        if 2 * j >= i:
            return j
    return -1
"""


PLAIN = """
import math
import sys
import numpy as np
from numba import cuda, float32, int32, uint32
"""


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
        ("x = c[0, 0, 0]", "line 12: c has 2 axes, not 3"),
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

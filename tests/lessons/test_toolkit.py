"""The toolkit: its page tells of every function, and what it tells is so."""

import os
import re
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from numba import cuda, types
from sampling import some, some_days

from common.catalog import catalog, device, inputs, problems
from common.machine_code import codegen
from common.trace import trace
from common.trace.intrinsics import INTRINSICS
from lessons.toolkit.compiler import PACKAGES
from lessons.toolkit.memory import store2_rounded

FOLDER = catalog.LESSONS / catalog.TOOLKIT
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
(KERNEL,) = re.findall(r"```python\n(from numba .*?)```", PAGE, re.DOTALL)


def intrinsics():
    """The functions of the toolkit that are made of an instruction: what Numba compiles by a definition of ours."""
    modules = [import_module(f"lessons.toolkit.{path.stem}") for path in sorted(FOLDER.glob("[a-z]*.py"))]
    return sorted({name for module in modules for name, one in vars(module).items() if hasattr(one, "_defn")})


@pytest.mark.parametrize("name", intrinsics())
def test_an_instruction_is_on_the_page_and_has_a_model(name):
    told = [re.escape(span).replace("…", r"\w+") for span in re.findall(r"`([\w…]+)`", PAGE)]
    assert any(re.fullmatch(pattern, name) for pattern in told)
    assert name in INTRINSICS


@pytest.mark.parametrize(
    ("compiler", "told"),
    [
        ("", "numba.cuda float32"),
        ("mlir", "numba_cuda_mlir"),
        ("clang", "COMPILER=clang: must be one of numba-cuda, mlir"),
    ],
)
def test_one_module_names_the_compiler_of_own_kernels(compiler, told):
    assert set(PACKAGES) == set(device.COMPILERS)  # as the harness has them
    program = "from lessons.toolkit.compiler import cuda, types; print(cuda.__name__, types.float32)"
    environment = {**os.environ, "COMPILER": compiler}
    done = subprocess.run([sys.executable, "-c", program], cwd=catalog.ROOT, env=environment, capture_output=True)
    assert told in (done.stdout + done.stderr).decode()  # the successor, or that it is not installed


def test_the_page_is_short():
    assert len(PAGE.replace(KERNEL, "").split()) <= 900
    assert len(KERNEL.splitlines()) <= 60


@pytest.mark.parametrize("shape", ["M=72 N=136 K=200", "M=1 N=8 K=8"])
def test_the_page_s_kernel_is_right(write, shape):
    problem = problems.parse_shape("hgemm", shape)
    found = trace.run(catalog.load(write("hgemm_mine.py", KERNEL), "hgemm"), problem, every=True)
    assert [kernel.faults for kernel in found.kernels] == [[]]
    a, b = inputs.integers(problem, 0)
    np.testing.assert_array_equal(found.output, (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16))


@some_days(5)
def test_the_page_s_kernel_compiles(write):
    module = catalog.load(write("hgemm_mine.py", KERNEL), "hgemm")
    (launch,) = codegen.distinct(codegen.launches(module, problems.FIRST["hgemm"]))
    assert "add, 1, 1, 0, 1;" in codegen.ptx(launch, ["9.0a"])["9.0a"]


@pytest.mark.parametrize("name", some([name for name in intrinsics() if re.match(r"wgmma_(f16|tf32)", name)], 6, 1))
def test_wgmma_of_each_type_adds_or_not(write, name):
    left = "frag, 0" if name.endswith("_registers") else "a"
    calls = "\n    ".join(f"hopper.{name}(acc, 0, {{}}, a, 64{add})" for add in ("", ", k > 0"))
    order = f"tiles, {left}" if left == "a" else f"{left}, tiles"
    kind = "float16" if "f16" in name else "float32"
    text = f"""
from numba import cuda, float32
from numba.types import float16
from lessons.toolkit import hopper

@cuda.jit
def kernel(c, k):
    tiles = cuda.shared.array(0, {kind}, alignment=1024)
    frag, acc = cuda.local.array(8, {kind}), cuda.local.array(32, float32)
    a = hopper.descriptor(tiles, 0, 0, 1024)
    {calls.format(order, order)}
    c[0, 0] = acc[0]

def launch(a, b, c):
    kernel[1, 128](c, 1)
"""
    module = catalog.load(write("gemm_mine.py", text), "gemm")
    (launch,) = codegen.distinct(codegen.launches(module, problems.FIRST["gemm"]))
    found = re.findall(r"wgmma.mma_async[^;]*?, (1|add), 1, 1", codegen.ptx(launch, ["9.0a"])["9.0a"])
    assert found == ["1", "add"]


@pytest.mark.parametrize(("capability", "pairs"), [((7, 5), False), ((8, 0), True)])
def test_two_values_are_rounded_by_one_instruction_where_there_is_one(capability, pairs):
    @cuda.jit(device=True)
    def stored(array, acc):
        store2_rounded(array, 0, acc, 0)

    signature = types.void(types.Array(types.float16, 1, "C"), types.Array(types.float32, 1, "C"))
    ptx, _ = cuda.compile(stored.py_func, signature, cc=capability, output="ptx", device=True, abi="numba")
    assert ("cvt.rn.f16x2.f32" in ptx) == pairs
    assert ptx.count("cvt.rn.f16.f32") == (0 if pairs else 2)

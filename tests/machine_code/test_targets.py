"""Code for one compute capability alone, and shared memory beyond 48 KiB: scratch kernels, compiled and captured."""

import json

import pytest
from processes import python

from common.catalog import catalog, device, problems
from common.check import compiling
from common.machine_code import codegen

HEADER = '''"""hgemm_scratch: an instruction that only one compute capability has.

Previous step: none
"""

from llvmlite import ir
from numba import cuda, float32, types
from numba.cuda.extending import intrinsic
from numba.types import float16

REQUIRES = "9.0a"  # wgmma, setmaxnreg
BYTES = 100_000


@intrinsic
def fewer_registers(context):
    def generate(context, builder, signature, arguments):
        text = "setmaxnreg.dec.sync.aligned.u32 40;"
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(kind, text, "~{memory}", side_effect=True), [])
        return context.get_dummy_value()

    return types.void(), generate


@cuda.jit(launch_bounds=(128, 1))
def product(a, b, c):
    tile = cuda.shared.array(0, float16)
    fewer_registers()
    M, N = c.shape
    m, n = cuda.blockIdx.x, cuda.threadIdx.x
    tile[n] = a[m, 0]
    cuda.syncthreads()
    if n < N:
        acc = float32(0.0)
        for k in range(a.shape[1]):
            acc += float32(a[m, k]) * float32(b[k, n])
        c[m, n] = float16(acc)


def launch(a, b, c):
    product[c.shape[0], 128, 0, BYTES](a, b, c)
'''
# Launches of kernels that declare clusters, on cards with and without them, and on a driver that wants to hear of
# clusters at the launch.
CLUSTERS = """
import json
from types import SimpleNamespace
from numba.cuda import dispatcher
from numba.cuda.cudadrv import driver
from common.catalog import limits
from common.machine_code import capture

def tell(attribute, value, handle, card):
    if deaf and "CLUSTER" in attribute.name:
        raise driver.CudaAPIError(1, "CUDA_ERROR_INVALID_VALUE")
    told.append([attribute.name.removeprefix("CU_FUNC_ATTRIBUTE_"), value])

def told_by(capability, launch_bounds, grid, size, ignored=False):
    global deaf
    told.clear()
    deaf = ignored
    card = SimpleNamespace(compute_capability=capability, id=0)
    function = SimpleNamespace(attrs=SimpleNamespace(shared=0), device=card, handle="kernel")
    library = SimpleNamespace(get_cufunc=lambda: function)
    kernel = SimpleNamespace(_codelibrary=library, launch_bounds=launch_bounds)
    try:
        made = dispatcher._Kernel.launch(kernel, (), grid, (32, 1, 1), 0, size)
    except limits.LaunchLimitError as error:
        return str(error)
    return [told[:], made]

deaf, told = False, []
driver.driver = SimpleNamespace(cuKernelSetAttribute=tell)
dispatcher.LaunchConfig = lambda **options: options
dispatcher._Kernel.launch = lambda self, args, grid, block, stream, shared: dispatcher.LaunchConfig(
    grid=grid, block=block, shmem_size=shared, is_cooperative=False
)
capture.opt_in()
print(json.dumps({
    "none": told_by((9, 0), (128, 1), (3, 1, 1), 0),
    "plain": told_by((9, 0), None, (3, 1, 1), 0),
    "pairs": told_by((9, 0), (128, 1, 2), (6, 1, 1), 0),
    "large": told_by((9, 0), (128, 1, 4), (8, 2, 1), 200_000),
    "at the launch": told_by((9, 0), (128, 1, 2), (6, 2, 1), 200_000, ignored=True),
    "odd": told_by((9, 0), (128, 1, 2), (5, 1, 1), 0),
    "sixteen": told_by((9, 0), (128, 1, 16), (16, 1, 1), 0),
    "old card": told_by((8, 9), (128, 1, 2), (6, 1, 1), 0),
    "48 KiB": told_by((9, 0), None, (1, 1, 1), 49152),
    "more": told_by((9, 0), None, (1, 1, 1), 49153),
    "too much": told_by((8, 6), None, (1, 1, 1), 102400),
}))
"""


@pytest.fixture
def scratch(write):
    """The scratch step's file."""
    return write("01_scratch/hgemm_scratch.py", HEADER)


def test_what_one_compute_capability_has_is_compiled_for_it_alone(scratch):
    (launch,) = codegen.launches(catalog.load(scratch, "hgemm"), problems.PRESETS["tiny-hgemm"])
    found = codegen.ptx(launch, ["9.0a", "9.0"])
    targets = {name: text.split(".target")[1].split()[0] for name, text in found.items()}
    assert targets == {"9.0a": "sm_90a", "9.0": "sm_90"}
    code = codegen.machine_code(launch, "9.0a", found["9.0a"])
    assert code.architecture == "9.0a"
    assert any(one.name.startswith("USETMAXREG") for one in code.listing.instructions)
    with pytest.raises(RuntimeError, match=r"(?s)ptxas failed.*sm_90"):
        codegen.machine_code(launch, "9.0", found["9.0"])
    # and what the launch asks for is captured with it
    assert launch.dynamic_shared_bytes == 100_000
    assert [*map(str, launch.signature.args)] == ["array(float16, 2d, C)"] * 3


def test_a_step_that_requires_it_is_compiled_for_nothing_else(scratch):
    step = catalog._header(scratch, "01_scratch", HEADER)
    assert step.requires == "9.0a"
    assert (
        catalog.targets(step.requires, codegen.ARCHITECTURES) == catalog.targets(step.requires, ["12.0"]) == ["9.0a"]
    )
    assert [name for name in ("8.0", "9.0", "9.0a", "10.0") if step.runs_on(name)] == ["9.0", "9.0a"]
    (outcome,) = compiling.compile_steps([step], codegen.ARCHITECTURES, True, preset="tiny-hgemm")
    assert outcome.status == "right", outcome.reasons
    (kernel,) = outcome.kernels
    assert (kernel["architecture"], kernel["float64"]) == ("9.0a", [])
    assert kernel["occupancy"]["blocks"] == 2  # 228 KiB hold 100,000 bytes twice
    ((card,),) = (one.cards for one in compiling.summaries([(step, "tiny-hgemm")], "9.0"))
    assert (card["architecture"], card["dynamic_shared_bytes"]) == ("9.0a", 100_000)


def test_kernels_that_declare_clusters_are_launched_in_clusters():
    found = json.loads(python("-c", CLUSTERS, env=device.environment(False)).stdout)

    def launch(grid, shared, **cluster):
        return {"grid": grid, "block": [32, 1, 1], "shmem_size": shared, **cluster}

    numba = {"is_cooperative": False}
    pairs = [["REQUIRED_CLUSTER_WIDTH", 2], ["REQUIRED_CLUSTER_HEIGHT", 1], ["REQUIRED_CLUSTER_DEPTH", 1]]
    fours = [["REQUIRED_CLUSTER_WIDTH", 4], *pairs[1:]]
    large = ["MAX_DYNAMIC_SHARED_SIZE_BYTES", 200_000]
    assert found == {
        "none": [[], launch([3, 1, 1], 0, **numba)],
        "plain": [[], launch([3, 1, 1], 0, **numba)],
        "pairs": [pairs, launch([6, 1, 1], 0, **numba)],
        "large": [[large, *fours], launch([8, 2, 1], 200_000, **numba)],
        # there the grid is counted in clusters
        "at the launch": [[large], launch([3, 2, 1], 200_000, cluster=[2, 1, 1], **numba)],
        "odd": "grid (5, 1, 1) in clusters of 2 blocks: x must be a multiple of 2",
        "sixteen": "a cluster of 16 blocks: must be of 1 to 8",
        "48 KiB": [[], launch([1, 1, 1], 49152, **numba)],
        "more": [[["MAX_DYNAMIC_SHARED_SIZE_BYTES", 49153]], launch([1, 1, 1], 49153, **numba)],
        "too much": "the launch asks for 102400 bytes of dynamic shared memory: "
        "a block has at most 101376 on compute capability 8.6",
        "old card": "a cluster of 2 blocks: compute capability 8.9 has no clusters, 9.0 and newer have",
    }

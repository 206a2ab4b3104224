"""Tensor maps as arguments of kernels: captured, compiled, planned, encoded anew; scratch steps, no GPU."""

import copy
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from common.catalog import catalog, device
from common.grade import ptx_plan
from common.jobs import run
from common.machine_code import tensormaps
from lessons import hopper

STEP = '''"""hgemm_scratch: the boxes of three arrays.

Previous step: none
"""

import numpy as np
from numba import cuda

from lessons.hopper import im2col_map, jit, tensor_map

REQUIRES = "9.0a"


@jit(128, 1, 2)
def product(a, b, c, from_a, from_b, windows):
    if cuda.threadIdx.x == 0:
        c[0, 0] = from_a.size + from_b.size + windows[0]


def prepare(b, problem):
    return b, cuda.to_device(np.zeros((1, 2, 8, 8, 64), np.float32))


def launch(a, prepared, c):
    b, x = prepared
    windows = im2col_map(x, (-1, -1, -1), (0, 0, 0), 32, 64, (1, 2, 2))
    half = a.reshape(a.size // 64, 64)
    product[2, 128](a, b, c, tensor_map(half, (32, 64)), tensor_map({array}, (64, 64)), windows)
'''
SHAPE = "M=16 N=64 K=64"

# What is captured without a driver, with what its PTX takes; then the plan, and its launch's arguments.
CAPTURED = """
import json, re, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from common.catalog import catalog, problems
from common.machine_code import codegen, tensormaps
from common.grade import audit, ptx_plan, ptx_run
from lessons import hopper

problem = problems.parse_shape("hgemm", sys.argv[2])
module = catalog.load(Path(sys.argv[1]), "hgemm")
(launch,) = codegen.launches(module, problem)
text = codegen.ptx(launch, ["9.0a"])["9.0a"]
recorder = ptx_plan.Recorder(module, "hgemm", audit.Audit(sys.argv[1]))
try:
    plan = recorder.record(problem, np.ones(problem.weight_shape, np.float16), "9.0a")
except ptx_plan.PlanError as error:
    print(json.dumps({"refused": str(error)}))
    sys.exit()
for buffer in plan["buffers"]:
    buffer["data"] = None
(sent,) = ptx_plan.checked(json.loads(json.dumps(plan)))["launch"]
told = []
hopper._encoded = lambda one, address: told.append([address, one.kind]) or np.zeros(128, np.uint8)
words = iter((0xA000, 0xB000, 0xC000))
hopper.cuda.to_device = lambda _: SimpleNamespace(__cuda_array_interface__={"data": (next(words), False)})
places = [0x1000 * (number + 1) for number in range(len(plan["buffers"]))]
maps = ptx_run.maps_of(sent, places)
arguments = ptx_run.arguments_of(sent, places, maps)
print(json.dumps({
    "types": list(map(str, launch.signature.args)), "parameters": len(re.findall(r"\\.param .u", text)),
    "cluster": sent["cluster"], "notes": list(recorder.audit.notes), "plan": plan,
    "maps": [one[1:] for one in sent["arguments"] if one[0] == "map"],
    "arguments": arguments, "told": told, "kept": len(maps),
}))
"""


def real(script, *words):
    """What a script prints in a process of its own, without a tracer."""
    done = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=catalog.ROOT, env=device.environment(False), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def scratch(tmp_path):
    """A function that writes the scratch step, its second map that of an array, and gives its path."""

    def write(array="b"):
        path = tmp_path / "01_scratch" / "hgemm_scratch.py"
        path.parent.mkdir()
        path.write_text(STEP.replace("{array}", array), encoding="utf-8")
        return path

    return write


def test_maps_are_bytes_to_a_kernel_and_boxes_of_the_plans_arrays(scratch):
    found = real(CAPTURED, str(scratch()), SHAPE)
    assert found["types"] == ["array(float16, 2d, C)"] * 3 + ["array(uint8, 1d, C)"] * 3
    assert (found["cluster"], found["notes"], found["kept"]) == (2, [], 3)
    corners = {"lower": [-1, -1, -1], "upper": [0, 0, 0], "channels": 32, "pixels": 64, "strides": [1, 2, 2]}
    x = {"kind": "im2col", "shape": [1, 2, 8, 8, 64], "dtype": "float32", "box": corners, "tf32": False}

    def tiled(rows, columns):
        return {
            "kind": "tiled", "shape": [16, 64], "dtype": "float16", "box": {"box": [rows, columns]}, "tf32": False,
        }  # fmt: skip

    assert found["maps"] == [[0, 0, tiled(32, 64)], [1, 0, {**tiled(64, 64), "shape": [64, 64]}], [3, 0, x]]
    # encoded for the runner's own arrays, and handed over as 128 bytes each
    assert found["told"] == [[0x1000, "tiled"], [0x2000, "tiled"], [0x4000, "im2col"]]
    maps = found["arguments"][-21:]
    assert [maps[n : n + 7] for n in (0, 7, 14)] == [
        [0, 0, 128, 1, place, 128, 1] for place in (0xA000, 0xB000, 0xC000)
    ]
    assert len(found["arguments"]) == found["parameters"]


def test_a_map_of_an_array_that_is_not_the_runs_is_refused(scratch):
    path = scratch("FOREIGN")
    words = "raw = np.zeros(8208, np.uint8)\nstart = -raw.ctypes.data % 16\n"
    words += "FOREIGN = raw[start : start + 8192].view(np.float16).reshape(64, 64)\n\n\n@jit"
    path.write_text(path.read_text(encoding="utf-8").replace("@jit", words, 1), encoding="utf-8")
    found = real(CAPTURED, str(path), SHAPE)
    assert found == {"refused": "a kernel is given an array that was not made by cuda.to_device or cuda.device_array"}


def test_a_step_with_maps_is_compiled_and_has_a_card(scratch):
    step = catalog._read(scratch(), "01_scratch")
    (outcome,) = run.compile_steps([step], ["9.0"], True, preset="hgemm-4096")
    assert outcome.status == "right", outcome.reasons
    assert [kernel["architecture"] for kernel in outcome.result["kernels"]] == ["9.0a"]
    ((card,),) = (one.result["cards"] for one in run.cards([(step, "hgemm-4096")], "9.0"))
    assert (card["kernel"], card["architecture"]) == ("product", "9.0a")


def test_a_map_in_the_hosts_memory_has_nothing_to_encode():
    raw = np.zeros(64 * 64 * 2 + 16, np.uint8)
    array = raw[-raw.ctypes.data % 16 :][: 64 * 64 * 2].view(np.float16).reshape(64, 64)
    found = hopper.tensor_map(array, (64, 64))
    assert tensormaps.is_map(found)
    assert not tensormaps.is_map(array)
    assert not any(map(tensormaps.is_map, (3, (8, 64), SimpleNamespace(kind="tiled"))))
    assert str(tensormaps.typed()) == "array(uint8, 1d, C)"
    assert tensormaps.typed() == hopper.TensorMap._numba_type_
    assert not hasattr(found, "__cuda_array_interface__")
    assert found.array is array


def test_a_map_in_the_gpus_memory_is_encoded_once_it_is_asked_for(monkeypatch):
    told = []
    monkeypatch.setattr(hopper, "_encoded", lambda one, address: told.append(address) or np.zeros(128, np.uint8))
    made = SimpleNamespace(__cuda_array_interface__={"data": (0x8000, False)})
    monkeypatch.setattr(hopper.cuda, "to_device", lambda _: made)
    where = {"data": (0x1000, False), "typestr": "<f2"}
    found = hopper.tensor_map(SimpleNamespace(shape=(64, 64), __cuda_array_interface__=where), (64, 64))
    assert not hasattr(found, "another_interface")
    assert (told, found.address, found.array) == ([], 0x1000, None)
    assert [found.__cuda_array_interface__["data"][0] for _ in range(2)] == [0x8000] * 2
    assert told == [0x1000]


def on_gpu(shape, kind="<f2", address=0x1000):
    """An array as a GPU has it, which nothing reads."""
    return SimpleNamespace(shape=shape, __cuda_array_interface__={"data": (address, False), "typestr": kind})


def windows(**changes):
    fields = {"lower": (0, 0, 0), "upper": (0, 0, 0), "channels": 64, "pixels": 8, "strides": (1, 1, 1), **changes}
    return hopper.im2col_map(on_gpu((1, 1, 2, 2, 64)), **fields)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: hopper.tensor_map(on_gpu((8, 64)), (0, 64)), "box rows is 0; allowed: 1 to 256"),
        (lambda: hopper.tensor_map(on_gpu((8, 64)), (257, 64)), "box rows is 257; allowed: 1 to 256"),
        (lambda: hopper.tensor_map(on_gpu((8, 64)), (8, 48)), "box columns is 48; allowed: 64, 32, 16"),
        (lambda: hopper.tensor_map(on_gpu((8, 64), "<f4"), (8, 64)), "box columns is 64; allowed: 32, 16, 8"),
        (lambda: windows(lower=(0, -17, 0)), "lower is (0, -17, 0); allowed: -16 to 15 each"),
        (lambda: windows(lower=(16, 0, 0)), "lower is (16, 0, 0); allowed: -16 to 15 each"),
        (lambda: windows(upper=(0, 0, -17)), "upper is (0, 0, -17); allowed: -16 to 15 each"),
        (lambda: windows(upper=(0, 16, 0)), "upper is (0, 16, 0); allowed: -16 to 15 each"),
        (lambda: windows(strides=(1, 0, 1)), "strides is (1, 0, 1); allowed: 1 to 8 each"),
        (lambda: windows(strides=(9, 1, 1)), "strides is (9, 1, 1); allowed: 1 to 8 each"),
        (lambda: windows(channels=24), "channels is 24; allowed: 64, 32, 16"),
        (lambda: windows(pixels=0), "pixels is 0; allowed: 1 to 1024"),
        (lambda: windows(pixels=1025), "pixels is 1025; allowed: 1 to 1024"),
        (lambda: hopper.tensor_map(on_gpu((8, 64), "<f8"), (8, 16)), "dtype is float64; allowed: float16, float32"),
        (lambda: hopper.tensor_map(on_gpu((2, 8, 64)), (8, 64)), "shape is (2, 8, 64); allowed: 2 positive extents"),
        (lambda: hopper.tensor_map(on_gpu((0, 64)), (8, 64)), "shape is (0, 64); allowed: 2 positive extents"),
        (lambda: hopper.tensor_map(on_gpu((8, 64), address=0x1008), (8, 64)), "address is 4104; allowed: a multiple"),
        (lambda: hopper.tensor_map(on_gpu((8, 12)), (8, 64)), "bytes of a row is 24; allowed: a multiple of 16"),
    ],
)
def test_what_a_map_cannot_describe_is_refused_by_its_name(make, says):
    with pytest.raises(ValueError) as refused:
        make()
    assert str(refused.value).startswith(says)


def test_a_map_describes_what_its_limits_allow():
    for fields in (
        {"lower": (-16, 15, 0), "upper": (0, -16, 15), "strides": (8, 1, 8)}, {"pixels": 1}, {"pixels": 1024},
        {"channels": 16},
    ):  # fmt: skip
        found = windows(**fields)
        assert {name: getattr(found, name) for name in fields} == fields
    assert [hopper.tensor_map(on_gpu((8, 64)), (rows, 16)).box for rows in (1, 256)] == [(1, 16), (256, 16)]


@pytest.mark.parametrize(
    ("arrays", "can"),
    [
        ([on_gpu((8, 64))], True), ([on_gpu((8, 12))], False), ([on_gpu((8, 12), "<f4")], True),
        ([on_gpu((8, 64), address=0x1008)], False), ([on_gpu((8, 64)), on_gpu((3, 5, 12))], False),
        ([on_gpu((8, 64)), on_gpu((3, 5, 8))], True), ([on_gpu((8, 12), address=0x1008)], False),
    ],
)  # fmt: skip
def test_arrays_of_rows_of_16_bytes_can_be_mapped(arrays, can):
    assert hopper.mappable(*arrays) is can


def test_the_youngest_maps_are_kept(monkeypatch):
    monkeypatch.setattr(hopper, "_maps", type(hopper._maps)())
    first, *others = (on_gpu((8, 64), address=0x1000 * number) for number in range(1, hopper.MAPS + 2))
    kept = hopper.tensor_map(first, (8, 64))
    assert hopper.tensor_map(on_gpu((8, 64)), (8, 64)) is kept  # by place and shape, whichever array tells them
    for other in (hopper.tensor_map(first, (4, 64)), hopper.tensor_map(on_gpu((8, 64), "<f4"), (8, 32))):
        assert other is not kept
    hopper._maps.clear()
    made = [hopper.tensor_map(array, (8, 64)) for array in (first, *others[:-1])]
    assert len(hopper._maps) == hopper.MAPS
    assert hopper.tensor_map(first, (8, 64)) is made[0]  # now the youngest
    hopper.tensor_map(others[-1], (8, 64))
    assert len(hopper._maps) == hopper.MAPS
    assert hopper.tensor_map(first, (8, 64)) is made[0]
    assert hopper.tensor_map(others[0], (8, 64)) is not made[1]
    array = np.zeros((8, 64), np.float16)  # of the host's, whose place another array may take
    assert hopper.tensor_map(array, (8, 64)) is not hopper.tensor_map(array, (8, 64))


TILED = {"kind": "tiled", "shape": [8, 64], "dtype": "float16", "box": {"box": [8, 64]}, "tf32": False}
IM2COL = {
    "kind": "im2col", "shape": [1, 1, 2, 2, 8], "dtype": "float32", "tf32": True,
    "box": {"lower": [-1, -1, -1], "upper": [0, 0, 0], "channels": 8, "pixels": 4, "strides": [1, 1, 1]},
}  # fmt: skip


def plan(described, place=0, offset=0, size=1024):
    launch = {
        "kernel": "a" * 64, "name": "k", "grid": [2, 1, 1], "block": [128, 1, 1], "cluster": 2, "shared": 0,
        "arguments": [["map", place, offset, described]],
    }  # fmt: skip
    return {"buffers": [{"role": "y", "bytes": size, "data": None}], "prepare": [], "launch": [launch]}


@pytest.mark.parametrize("described", [TILED, IM2COL], ids=["tiled", "im2col"])
def test_a_proper_map_is_taken(described):
    assert ptx_plan.checked(plan(described))["launch"]


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (plan(TILED, place=1), "must lie in one of the plan's buffers"),
        (plan(TILED, offset=-16), "must lie in one of the plan's buffers"),
        (plan(TILED, offset=16), "reaches beyond its buffer: [8, 64] of float16 do not fit 1008 bytes"),
        (plan({**IM2COL, "shape": [9, 1, 2, 2, 8]}), "reaches beyond its buffer"),
        (plan({**TILED, "kind": "gather"}), "be one of tiled, im2col"),
        (plan({**TILED, "address": 4096}), "a map must have kind, shape, dtype, box, tf32"),
        (plan(None), "a map must have"),
        (plan({**TILED, "shape": [8, 0]}), "2 positive extents"),
        (plan({**TILED, "shape": [8]}), "2 positive extents"),
        (plan({**IM2COL, "shape": [8, 8]}), "5 positive extents"),
        (plan({**TILED, "dtype": "float64"}), "float16 or float32"),
        (plan({**TILED, "box": [8, 64]}), "the box of a map must have box"),
        (plan({**TILED, "box": {"box": [8, 64], "swizzle": 0}}), "the box of a map must have box"),
        (plan({**TILED, "box": {"box": [8, 64.0]}}), "of whole numbers"),
        (plan({**TILED, "tf32": 1}), "the box of a map must have box"),
        (plan({**TILED, "box": 8}), "the box of a map must have box"),
        (plan({**TILED, "shape": (8, 64)}), "2 positive extents"),  # JSON has lists
        (plan({**IM2COL, "box": {**IM2COL["box"], "pixels": "4"}}), "of whole numbers"),
        (plan({**IM2COL, "box": {**IM2COL["box"], "lower": [-1, -1]}}), "of whole numbers"),
    ],
)
def test_a_spoilt_map_is_refused(spoilt, said):
    with pytest.raises(ptx_plan.PlanError) as caught:
        ptx_plan.checked(copy.deepcopy(spoilt))
    assert said in str(caught.value)

"""Plans as their kernels take them, without a GPU: what is handed over, in which types."""

import ctypes
import json
from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver
from numba import cuda
from numba.cuda.cudadrv import driver as real_driver

from common.grade import ptx_run
from common.grade.messages import PtxRun
from common.machine_code import tensormaps
from lessons import hopper


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


# --- tensor maps ---


class Driver:
    """Stands in for what encodes tensor maps: keeps what it is given, and gives words that tell which map it was."""

    def __init__(self, monkeypatch):
        self.given, self.uploaded, self.version, self.error = [], [], 13000, driver.CUresult.CUDA_SUCCESS
        monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", lambda *told: self._encode("tiled", told))
        monkeypatch.setattr(driver, "cuTensorMapEncodeIm2col", lambda *told: self._encode("im2col", told))
        monkeypatch.setattr(driver, "cuDriverGetVersion", lambda: (driver.CUresult.CUDA_SUCCESS, self.version))
        monkeypatch.setattr(hopper.cuda, "to_device", self._upload)
        monkeypatch.setattr(hopper, "_maps", type(hopper._maps)())

    def _encode(self, name, told):
        self.given.append((name, *map(plain, told)))
        return self.error, SimpleNamespace(opaque=[(1 << 64) - len(self.given)] * 16)

    def _upload(self, words):
        self.uploaded.append(words)
        place = 0xA000 + 0x1000 * len(self.uploaded)
        return SimpleNamespace(__cuda_array_interface__={"data": (place, False)}, nbytes=words.nbytes)


def plain(value):
    """Whole numbers of C's types, and the driver's names, as Python's own."""
    if isinstance(value, list):
        return [(type(one).__name__, int(one)) for one in value]
    return value.name.rpartition("_")[2] if hasattr(value, "name") else value


def c(bits, *values):
    return [(f"cuuint{bits}_t" if bits else "int", value) for value in values]


@pytest.fixture
def stub(monkeypatch):
    return Driver(monkeypatch)


def given_array(shape, kind, address=0x100):
    """An array as the submission's process has it: no memory lies behind it."""
    where = {"data": (address, False), "typestr": np.dtype(kind).str}
    return SimpleNamespace(shape=shape, dtype=np.dtype(kind), __cuda_array_interface__=where)


FORM = ("NONE", "256B", "NONE")
CORNERS = ((-1, -2, -3), (4, 5, 6), 8, 96, (1, 2, 3))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: hopper.tensor_map(given_array((10, 64), "<f2"), (8, 64)),
            ("tiled", "FLOAT16", 2, 0x5040, c(64, 64, 10), c(64, 128), c(32, 64, 8), c(32, 1, 1), "128B"),
        ),
        (
            lambda: hopper.tensor_map(given_array((300, 12), "<f4"), (256, 16)),
            ("tiled", "FLOAT32", 2, 0x5040, c(64, 12, 300), c(64, 48), c(32, 16, 256), c(32, 1, 1), "64B"),
        ),
        (
            lambda: hopper.tensor_map(given_array((300, 12), "<f4"), (1, 8), tf32=True),
            ("tiled", "TFLOAT32", 2, 0x5040, c(64, 12, 300), c(64, 48), c(32, 8, 1), c(32, 1, 1), "32B"),
        ),
        (
            lambda: hopper.im2col_map(given_array((2, 3, 5, 7, 16), "<f2"), *CORNERS[:2], 16, 96, (1, 2, 3)),
            ("im2col", "FLOAT16", 5, 0x5040, c(64, 16, 7, 5, 3, 2), c(64, 32, 224, 1120, 3360),
             c(0, -3, -2, -1), c(0, 6, 5, 4), 16, 96, c(32, 1, 3, 2, 1, 1), "32B"),
        ),
        (
            lambda: hopper.im2col_map(given_array((2, 3, 5, 7, 8), "<f4"), *CORNERS),
            ("im2col", "FLOAT32", 5, 0x5040, c(64, 8, 7, 5, 3, 2), c(64, 32, 224, 1120, 3360),
             c(0, -3, -2, -1), c(0, 6, 5, 4), 8, 96, c(32, 1, 3, 2, 1, 1), "32B"),
        ),
        (
            lambda: hopper.im2col_map(given_array((2, 3, 5, 7, 36), "<f4"), *CORNERS[:2], 32, 1024, (8, 1, 4), True),
            ("im2col", "TFLOAT32", 5, 0x5040, c(64, 36, 7, 5, 3, 2), c(64, 144, 1008, 5040, 15120),
             c(0, -3, -2, -1), c(0, 6, 5, 4), 32, 1024, c(32, 1, 4, 1, 8, 1), "128B"),
        ),
    ],
)  # fmt: skip
def test_a_map_is_encoded_for_the_runner_s_array_as_it_was_captured(stub, make, told):
    captured = make()
    sent = json.loads(json.dumps(["map", 1, 0x40, tensormaps.fields(captured)]))
    assert tensormaps.wrong(sent[3], 1 << 20) is None
    (found,) = ptx_run.maps_of({"arguments": [sent]}, [0x1000, 0x5000])
    assert stub.given == []  # until a launch asks for it
    arguments = ptx_run.arguments_of({"arguments": [sent]}, [0x1000, 0x5000], [found])
    name, *array, swizzle = told
    # no interleaving, and the swizzle; rows are taken to L2 by 256 bytes; zeros lie around
    assert stub.given == [(name, *array, FORM[0], swizzle, *FORM[1:])]
    assert arguments == [0, 0, 128, 1, 0xB000, 128, 1]
    assert (stub.uploaded[0].dtype, stub.uploaded[0].shape) == (np.uint8, (128,))
    assert (found.box, found.tf32, found.swizzle) == (captured.box, captured.tf32, captured.swizzle)


def test_maps_and_other_arguments_keep_their_order(stub):
    first, second = (
        tensormaps.fields(hopper.tensor_map(given_array((8, columns), "<f2"), (8, columns))) for columns in (16, 32)
    )
    entry = {"arguments": [["map", 1, 0, first], ["int32", 7], ["array", 0, 8, [2], [4], 4], ["map", 0, 16, second]]}
    maps = ptx_run.maps_of(entry, [0x100, 0x200])
    assert [one.address for one in maps] == [0x200, 0x110]
    found = ptx_run.arguments_of(entry, [0x100, 0x200], maps)
    number, *array = found[7:15]
    assert (found[:7], found[15:]) == ([0, 0, 128, 1, 0xB000, 128, 1], [0, 0, 128, 1, 0xC000, 128, 1])
    assert (number.value, array) == (7, [0, 0, 2, 4, 0x108, 2, 4])
    assert [(told[3], told[7]) for told in stub.given] == [(0x200, c(32, 1, 1)), (0x110, c(32, 1, 1))]


BIT = 1 << 21


@pytest.mark.parametrize(
    ("kind", "pixels", "version", "cleared"),
    [
        ("im2col", 1023, 13010, True), ("im2col", 1023, 13020, False), ("im2col", 1024, 13010, False),
        ("im2col", 1, 12080, True), ("tiled", 1, 13010, False),
    ],
)  # fmt: skip
def test_a_small_map_of_windows_is_put_right_where_the_driver_is_old(stub, kind, pixels, version, cleared):
    stub.version = version
    if kind == "im2col":  # 1024 pixels of 128 bytes are the first that such drivers describe as they should
        array = given_array((1, 1, 1, pixels, 32), "<f4")
        one = hopper.im2col_map(array, (0, 0, 0), (0, 0, 0), 32, 8, (1, 1, 1))
    else:
        one = hopper.tensor_map(given_array((pixels, 32), "<f4"), (1, 32))
    assert one.__cuda_array_interface__["data"][0] == 0xB000
    full = (1 << 64) - 1
    assert stub.uploaded[0].view(np.uint64).tolist() == [full, full - BIT * cleared, *[full] * 14]


def test_a_map_that_the_driver_refuses_is_named(stub):
    stub.error = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    one = hopper.tensor_map(given_array((8, 64), "<f2", 0x700), (8, 64))
    with pytest.raises(ValueError, match=r"the driver refuses a map of \(8, 64\), .*: CUDA_ERROR_INVALID_VALUE$"):
        one.__cuda_array_interface__  # noqa: B018 - it is encoded when it is asked for
    assert stub.uploaded == []


# --- where dynamic shared memory begins ---


class Context:
    """Stands in for the GPU's: a module is the code that it was made of."""

    device = SimpleNamespace(compute_capability=(9, 0))

    def __init__(self, static):
        self.attrs = SimpleNamespace(shared=static)

    def create_module_image(self, code):
        return SimpleNamespace(get_function=lambda name: SimpleNamespace(attrs=self.attrs, code=code, name=name))


@pytest.mark.parametrize(
    ("static", "aligned", "by"),
    [(32, 1024, "driver"), (1024, 1024, "linker"), (0, 1024, "linker"), (8, 4, "linker"), (8, 16, "driver")],
)
@pytest.mark.parametrize("registers", [0, 64])
def test_code_whose_dynamic_shared_memory_lies_wrongly_is_not_run(
    tmp_path, monkeypatch, static, aligned, by, registers
):
    """CUDA 13.0's linker passes over its alignment."""
    body = f".extern .shared .align {aligned} .b8 tiles[];\n.visible .entry k(\n)\n.maxntid 288, 1, 1\n{{\nret;\n}}\n"
    (tmp_path / "d.ptx").write_text(f"// max_registers {registers}\n{body}")
    made = SimpleNamespace(from_ptx=lambda text: ("driver", text.decode()))
    monkeypatch.setattr(real_driver, "ObjectCode", made, raising=False)
    monkeypatch.setattr(cuda, "current_context", lambda: Context(static))
    monkeypatch.setattr(ptx_run, "link", lambda text, cc: (("linker", text), "k"))
    found = ptx_run.Kernels(tmp_path)._function("d")
    assert (found.code[0], found.name) == (by, "k")
    limit = f".maxnreg {registers}\n" if registers and by == "driver" else ""
    assert found.code[1].endswith(f")\n.maxntid 288, 1, 1\n{limit}{{\nret;\n}}\n")


def test_plans_run_in_the_process_that_owns_the_gpu():
    assert PtxRun.gpu

"""Tensor maps as arguments of kernels: compiled, and encoded where they are asked for; no GPU."""

from types import SimpleNamespace

import numba
import numpy as np
import pytest
import texts
from sampling import some_days

from common.catalog import catalog
from common.check import run
from lessons.toolkit import maps
from lessons.toolkit.memory import aligned

STEP = texts.of("lessons")["maps"]
SHAPE = "M=16 N=64 K=64"


@pytest.fixture
def scratch(tmp_path):
    """A function that writes the scratch step, its second map that of an array, and gives its path."""

    def write(array="b"):
        path = tmp_path / "01_scratch" / "hgemm_scratch.py"
        path.parent.mkdir()
        path.write_text(STEP.replace("{array}", array), encoding="utf-8")
        return path

    return write


@some_days(3)
def test_a_step_with_maps_is_compiled_and_has_a_card(scratch):
    step = catalog._header(scratch())
    (outcome,) = run.compile_steps([step], ["9.0"], True)
    assert outcome.status == "right", outcome.reasons
    assert [kernel.architecture for kernel in outcome.kernels] == ["9.0a"]
    ((card,),) = (one.cards for one in run.summaries([(step, "hgemm-4096")], "9.0"))
    assert (card.kernel, card.architecture) == ("product", "9.0a")


def test_a_map_in_the_hosts_memory_has_nothing_to_encode():
    raw = np.zeros(64 * 64 * 2 + 16, np.uint8)
    array = raw[-raw.ctypes.data % 16 :][: 64 * 64 * 2].view(np.float16).reshape(64, 64)
    found = maps.Maps().tiled(array, (64, 64))
    assert str(numba.typeof(found)) == "array(uint8, 1d, C)"
    assert not hasattr(found, "__cuda_array_interface__")
    assert found.array is array


def test_a_map_in_the_gpus_memory_is_encoded_once_it_is_asked_for(monkeypatch):
    told = []
    monkeypatch.setattr(maps, "_encoded", lambda one, address: told.append(address) or np.zeros(128, np.uint8))
    made = SimpleNamespace(__cuda_array_interface__={"data": (0x8000, False)})
    monkeypatch.setattr(maps.cuda, "to_device", lambda _: made)
    where = {"data": (0x1000, False), "typestr": "<f2"}
    found = maps.Maps().tiled(SimpleNamespace(shape=(64, 64), __cuda_array_interface__=where), (64, 64))
    assert not hasattr(found, "another_interface")
    assert (told, found.address, found.array) == ([], 0x1000, None)
    assert [found.__cuda_array_interface__["data"][0] for _ in range(2)] == [0x8000] * 2
    assert told == [0x1000]


def on_gpu(shape, kind="<f2", address=0x1000):
    """An array as a GPU has it, which nothing reads."""
    return SimpleNamespace(shape=shape, __cuda_array_interface__={"data": (address, False), "typestr": kind})


def windows(**changes):
    fields = {"lower": (0, 0, 0), "upper": (0, 0, 0), "channels": 64, "pixels": 8, "strides": (1, 1, 1), **changes}
    return maps.Maps().im2col(on_gpu((1, 1, 2, 2, 64)), **fields)


@pytest.mark.parametrize(("make", "says"), [
    (lambda: maps.Maps().tiled(on_gpu((8, 64)), (257, 64)), "box rows is 257; allowed: 1 to 256"),
    (lambda: maps.Maps().tiled(on_gpu((8, 64)), (8, 48)), "box columns is 48; allowed: 64, 32, 16"),
    (lambda: windows(lower=(0, -17, 0)), "lower is (0, -17, 0); allowed: -16 to 15 each"),
    (lambda: maps.Maps().tiled(on_gpu((8, 64), "<f8"), (8, 16)), "dtype is float64; allowed: float16, float32"),
    (lambda: maps.Maps().tiled(on_gpu((2, 8, 64)), (8, 64)), "shape is (2, 8, 64); allowed: 2 positive extents"),
    (lambda: maps.Maps().tiled(on_gpu((8, 64), address=0x1008), (8, 64)), "address is 4104; allowed: a multiple"),
    (lambda: maps.Maps().tiled(on_gpu((8, 12)), (8, 64)), "bytes of a row is 24; allowed: a multiple of 16"),
])  # fmt: skip
def test_what_a_map_cannot_describe_is_refused_by_its_name(make, says):
    with pytest.raises(ValueError) as refused:
        make()
    assert str(refused.value).startswith(says)


def test_whoever_makes_maps_keeps_them(monkeypatch):
    mine, array = maps.Maps(), on_gpu((8, 64))
    first = mine.tiled(array, (8, 64))
    many = [mine.tiled(on_gpu((8, 64), address=0x1000 * number), (8, 64)) for number in range(2, 200)]
    assert mine.tiled(on_gpu((8, 64)), (8, 64)) is first  # by place and shape, whichever array tells them
    assert len({id(one) for one in (first, *many)}) == 199
    for other in (
        mine.tiled(array, (4, 64)),
        mine.tiled(on_gpu((8, 64), "<f4"), (8, 32)),
        maps.Maps().tiled(array, (8, 64)),
    ):
        assert other is not first
    monkeypatch.setattr(maps, "asked", lambda name, usual: 1)  # another device
    assert mine.tiled(array, (8, 64)) is not first
    mine.clear()
    monkeypatch.undo()
    assert mine.tiled(array, (8, 64)) is not first
    array = np.zeros((8, 64), np.float16)  # of the host's, whose place another array may take
    assert mine.tiled(array, (8, 64)) is not mine.tiled(array, (8, 64))


def test_arrays_of_rows_of_16_bytes_can_be_mapped():
    assert aligned(on_gpu((8, 64)), on_gpu((3, 5, 8)))
    assert not aligned(on_gpu((8, 64)), on_gpu((3, 5, 12)))
    assert not aligned(on_gpu((8, 64), address=0x1008))

"""Kernels that measure tensor cores, compiled: do they multiply, and do nothing else? And which rate bounds what."""

import pytest
from msgspec import structs
from numba import types
from sampling import one_of_each

from common.catalog import problems
from common.machine_code import codegen
from common.timing import ceilings

MMA = one_of_each(["8.0", "8.6", "8.9", "9.0", "10.0", "12.0"], lambda _: "a card's")
TEXTS = {
    ("mma", "f16"): "HMMA.16816.F32", ("mma", "tf32"): "HMMA.1688.F32.TF32", ("wgmma", "f16"): "HGMMA.64x256x16.F32",
    ("wgmma", "tf32"): "HGMMA.64x256x8.F32.TF32", ("mma", "s8"): "IMMA.16832.S8.S8",
    ("wgmma", "s8"): "IGMMA.64x256x32.S8.S8", ("wgmma", "e4m3"): "QGMMA.64x256x32.F32.E4M3.E4M3",
}  # fmt: skip
ALL = [tuple(name.split("_")) for name in ceilings.DEPTHS]


def test_each_kind_has_the_instructions_that_it_names():
    assert set(ALL) == TEXTS.keys()


@pytest.mark.parametrize(("name", "kind"), one_of_each(ALL, lambda _: "a kernel"), ids=str)
def test_the_machine_code_multiplies_on_tensor_cores(name, kind):
    words, sums = (types.Array(one, 1, "C") for one in (types.uint32, types.float32))
    kernel, threads = ceilings.kernel(f"{name}_{kind}"), ceilings.TENSOR_THREADS
    signature = types.void(words, types.int64, sums)
    launch = codegen.Launch(name, kernel, (1, 1, 1), (threads, 1, 1), signature)
    for architecture, text in codegen.ptx(launch, MMA if name == "mma" else ["9.0a"]).items():
        code, listing = codegen.machine_code(launch, architecture, text)
        multiplied = [one.text for one in listing.instructions if "MMA" in one.name]
        assert code.stack_bytes == code.spill_bytes == 0
        assert code.registers <= 65536 // (ceilings.BLOCKS_PER_MULTIPROCESSOR[name] * threads)
        assert all(text.startswith(TEXTS[name, kind]) for text in multiplied), multiplied[:3]
        # a whole number of rounds: the loop is written out a few times
        assert len(multiplied) % (ceilings.WGMMA_STEPS if name == "wgmma" else 8) == 0 < len(multiplied)


@pytest.mark.parametrize(("capability", "has"), [
    ("7.5", ()), ("8.0", ("mma",)), ("9.0", ("mma", "wgmma")), ("12.0", ("mma",)),
])  # fmt: skip
def test_only_what_the_card_has_is_measured(capability, has):
    assert tuple(dict.fromkeys(name.split("_")[0] for name in ceilings.products(capability))) == has


MEASURED = ceilings.Ceilings(
    copy_gbs=4000.0, fma_gflops=60e3,
    tensor_gflops={
        "mma_f16": 600e3, "wgmma_f16": 800e3, "mma_tf32": 300e3, "wgmma_tf32": 400e3, "mma_s8": 1200e3,
        "wgmma_s8": 1600e3, "wgmma_e4m3": 1500e3,
    },
)  # fmt: skip
MMA_ALONE = {name: rate for name, rate in MEASURED.tensor_gflops.items() if name.startswith("mma")}
AMPERE = structs.replace(MEASURED, tensor_gflops=MMA_ALONE)


def test_the_rate_that_bounds_a_step_is_that_of_its_precision():
    gemm, half = problems.PRESETS["gemm-4096"], problems.PRESETS["hgemm-4096"]
    assert [ceilings.peak(MEASURED, gemm, one) for one in ("fp32", "tf32")] == [60e3, 400e3]
    assert [ceilings.peak(card, half) for card in (MEASURED, AMPERE)] == [800e3, 600e3]
    assert ceilings.peak(MEASURED, problems.PRESETS["igemm-4096"]) == 1600e3
    # three products for one
    assert ceilings.peak(AMPERE, gemm, "tf32x3") == pytest.approx(100e3)
    assert ceilings.peak(ceilings.Ceilings(copy_gbs=300.0, fma_gflops=8e3), half) is None
    assert (ceilings.complete(MEASURED, "9.0"), ceilings.complete(AMPERE, "9.0")) == (True, False)
    assert ceilings.complete(AMPERE, "8.0")

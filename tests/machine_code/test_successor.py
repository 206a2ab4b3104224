"""The successor's compiler: its record covers the steps, its page shows them, and a missing package is said."""

import json
import math

import pytest

from common.catalog import catalog
from common.machine_code import successor
from common.records import records
from common.report import kinds

INSTALLED = successor.find_spec("numba_cuda_mlir") is not None


@pytest.fixture(scope="module")
def record():
    return successor.load(records.RESULTS)


def test_the_record_has_every_step_that_any_card_runs(record):
    assert set(record.steps) == {step.name for step in catalog.steps() if not step.requires}
    for name, one in record.steps.items():
        assert bool(one.kernels) != bool(one.reason), name


def test_the_table_shows_what_compiles_and_names_the_rest(record):
    table = kinds.compilers(records.load_code())
    shown = {row[0].strip("`") for row in table.rows}
    assert shown == {name for name, one in record.steps.items() if one.kernels}
    assert all(f"`{name}`" in table.note for name in set(record.steps) - shown)


@pytest.mark.skipif(INSTALLED, reason="numba-cuda-mlir is installed")
def test_without_the_package_it_says_how_to_get_it():
    with pytest.raises(successor.CompilerError, match=r"pip install 'numba-cuda-mlir\[cu13\]'"):
        successor.compiled(catalog.find("gemm_naive"), "gemm-4096")


@pytest.mark.skipif(not INSTALLED, reason="needs numba-cuda-mlir: pip install 'numba-cuda-mlir[cu13]'")
def test_a_step_compiles_and_a_helper_in_llvm_does_not():
    step = catalog.find("gemm_shared_tile")
    (kernel,) = successor.compiled(step, "gemm-4096")
    assert (kernel["kernel"], math.prod(kernel["block"])) == ("gemm_shared_tile", 1024)
    assert kernel["hot"]["multiply_adds"] == 32
    with pytest.raises(successor.CompilerError, match=r"helper imports numba\.core"):
        successor.compiled(catalog.find("gemm_wide_loads"), "gemm-4096")


def test_a_record_that_is_none_is_refused(tmp_path):
    (tmp_path / successor.FILE).parent.mkdir()
    (tmp_path / successor.FILE).write_text(json.dumps({"compiler": "x", "steps": {"a": {}}}))
    with pytest.raises(ValueError, match="missing required field `preset`"):
        successor.load(tmp_path)

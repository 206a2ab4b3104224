"""The notebook for hosted runtimes: its code cells run in order, on a machine without a GPU and without network."""

import json
import os
from pathlib import Path

import pytest
from processes import python
from sampling import some_days

from common.catalog import catalog, device

NOTEBOOK = catalog.LESSONS / "01_naive" / "start" / "hosted.ipynb"

_ASKED = """
import subprocess, sys
real = subprocess.run
def asked(words, **how):
    if "pip" not in words:
        return real(words, **how)
    print("ASKED", words[-1])
subprocess.run = asked
"""


def _cells(kind):
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == kind]


def _source(cell):
    return "".join(cell["source"])


def _run(code, folder, path=""):
    """Run cells as one program, as a notebook's kernel does; ``path`` stands before the programs of this machine."""
    env = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    return python("-c", code, cwd=folder, env=env).stdout


def test_it_is_a_notebook_without_outputs():
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["metadata"]["kernelspec"]["language"]) == (4, "python")
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in _cells("code"))


@pytest.mark.skipif(device.gpu_count() > 0, reason="on a GPU the lesson is timed: this is the way without one")
@some_days(2)
def test_its_cells_run_in_order_without_a_gpu():
    ran = _run("\n\n".join(map(_source, _cells("code"))), NOTEBOOK.parent)
    steps = "gemm_naive", "gemm_shared_tile", "gemm_wide_loads"
    for said in ("all packages are here", "no GPU", "3 blocks of 4", "photograph.png", "sectors", *steps):
        assert said in ran, said


@pytest.mark.parametrize(
    ("driver", "extra"), [("CUDA Version: 12.8", "cu12"), ("CUDA Version: 13.0", "cu13"), ("", "cu13")]
)
def test_what_is_missing_is_installed_for_the_driver(tmp_path, driver, extra):
    """With a package that is not there, pip is asked for the packages of the driver's CUDA."""
    if driver:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '{driver}'\n")
        program.chmod(0o755)
    code = _ASKED + _source(_cells("code")[1]).replace('"matplotlib"', '"no_such_package"')
    ran = _run(code, tmp_path, str(tmp_path))
    assert ran.splitlines() == [f"ASKED .[{extra}]", "installed now: no_such_package"]


def test_modules_it_asks_for_are_those_of_the_project():
    """A package that the project needs and the notebook does not look for would be missed at its first import."""
    text = Path(catalog.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = text.split("dependencies = [")[1].split("\n]")[0]
    found = {line.split('"')[1].split(">")[0] for line in names.splitlines() if line.strip().startswith('"')}
    for name in (found - {"tomli"}) | {"numba_cuda"}:
        assert f'"{name}"' in _source(_cells("code")[1]), name

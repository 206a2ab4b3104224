"""Packages that are found by PYTHONPATH alone, as on a cluster, are found by every process."""

import os
import subprocess
import sys
import sysconfig

from common.book import catalog


def test_children_find_what_pythonpath_names(tmp_path):
    # a Python with no packages of its own: those of this one come by PYTHONPATH
    places = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*os.environ.get("PYTHONPATH", "").split(os.pathsep), *places]),
    }
    words = [sys.executable, "-S", "-m", "common", "check", "gemm_naive", "--sim", "--shape", "M=2 N=2 K=2"]
    done = subprocess.run(words, cwd=catalog.ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_packages_of_the_same_names_are_not_taken_for_the_workbooks(tmp_path):
    for name in ("common", "lessons"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('somebody else's')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    words = [sys.executable, "-m", "common", "check", "gemm_naive", "--sim", "--shape", "M=2 N=2 K=2"]
    done = subprocess.run(words, cwd=catalog.ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr

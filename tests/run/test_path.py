"""Children import the workbook's packages from the checkout, whatever PYTHONPATH names."""

import os

from processes import python


def test_packages_of_the_same_names_are_not_taken_for_the_workbooks(tmp_path):
    for name in ("common", "lessons"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('somebody else's')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    python("-m", "common", "check", "gemm_naive", "--sim", "--shape", "M=2 N=2 K=2", env=env)

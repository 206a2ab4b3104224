"""A first epilogue; where no GPU is, it is traced, as lesson 01's first kernels are."""

from importlib import import_module

import_module("lessons.01_naive.start")  # before Numba is imported
import_module("common.check.tasks").ready()

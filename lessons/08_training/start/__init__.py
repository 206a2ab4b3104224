"""A first epilogue; where no GPU is, it is traced."""

import os

from common.catalog import device

os.environ.update(device.PLAIN)  # before Numba is imported

from common.check import tasks

tasks.ready()
if device.gpu_count() == 0:
    from common.trace.trace import Tracer

    Tracer().stay()

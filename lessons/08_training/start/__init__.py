"""A first epilogue; where no GPU is, it runs in the workbook's simulator."""

import os

from common.book import device

os.environ.update(device.environment(simulator=device.gpu_count() == 0))  # before Numba is imported

from common.jobs import tasks

tasks.ready()

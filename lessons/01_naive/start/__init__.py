"""The first kernel of the book; where no GPU is, it runs in Numba's CUDA simulator."""

import os

from common.book import device

os.environ.update(device.environment(simulator=device.gpu_count() == 0))  # before Numba is imported

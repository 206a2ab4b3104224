"""Exercise 07.3, find the bug: a wait that never ends.

One thread asks for tiles, two warpgroups multiply, 64 rows each. It used to have one warpgroup, and a BLOCK_M of 64.
Now the grader says which wait never ends, and what is still to come. Nothing is wrong with the threads' code, in
helpers/one_producer.py. Change one line. K and N are multiples of 8.
Grade: python -m common grade 07.3
"""

import importlib

from lessons.toolkit.maps import Maps
from lessons.toolkit.memory import aligned

pipeline = importlib.import_module("lessons.07_hopper.helpers.one_producer")

REQUIRES = "9.0a"
BLOCK_M, BLOCK_N, BLOCK_K = 128, 64, pipeline.BLOCK_K
STAGES = 2
STAGE_BYTES = 2 * (BLOCK_M + BLOCK_N) * BLOCK_K  # that are announced for a stage
MAPS = Maps()
produce = pipeline.asking(BLOCK_M, BLOCK_N, STAGES, STAGE_BYTES)
kernel, THREADS, SHARED_BYTES = pipeline.specialise(BLOCK_M, BLOCK_N, STAGES, produce)


def launch(a, b, c):
    M, N = c.shape
    a_map, b_map = MAPS.tiled(a, (64, 64)), MAPS.tiled(b, (64, 64))
    blocks = -(-M // BLOCK_M) * -(-N // BLOCK_N)
    kernel[blocks, THREADS, 0, SHARED_BYTES](a_map, b_map, c, a.shape[1], aligned(c, to=4))

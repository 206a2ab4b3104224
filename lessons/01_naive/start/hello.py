"""A first kernel: one thread for each element of two arrays. Run it, change it, run it again.

Run: python -m lessons.01_naive.start.hello
"""

import numpy as np
from numba import cuda

ELEMENTS = 10
THREADS = 4  # in a block


@cuda.jit
def hello(block, thread):
    i = cuda.grid(1)
    if i < block.size:
        block[i] = cuda.blockIdx.x
        thread[i] = cuda.threadIdx.x


def main():
    block = cuda.to_device(np.zeros(ELEMENTS, np.int32))
    thread = cuda.to_device(np.zeros(ELEMENTS, np.int32))
    blocks = -(-ELEMENTS // THREADS)  # ELEMENTS / THREADS, rounded up
    hello[blocks, THREADS](block, thread)
    print(f"{blocks} blocks of {THREADS} threads")
    rows = {"element": range(ELEMENTS), "block": block.copy_to_host(), "thread": thread.copy_to_host()}
    for name, values in rows.items():
        print(f"{name:>8}", *(f"{int(value):3}" for value in values))


if __name__ == "__main__":
    main()

"""How much shared memory the card that runs has: steps take the largest of their tiles that fits it."""

from numba import cuda
from numba.cuda.cudadrv.error import CudaSupportError

# Bytes that a multiprocessor of compute capability 9.0 has, and that the driver keeps for each block (CUDA C++
# Programming Guide, "Technical Specifications per Compute Capability"): the answer where there is no card to ask
SHARED, RESERVED = 228 * 1024, 1024
UNIT = 256  # bytes; in units of this many, or in smaller ones, blocks get shared memory


def shared_bytes(blocks=1):
    """Bytes that a block may have where so many `blocks` are to share a multiprocessor."""
    whole = asked("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", SHARED)
    return whole // blocks // UNIT * UNIT - asked("RESERVED_SHARED_MEMORY_PER_BLOCK", RESERVED)


def largest(tiles, takes, blocks=1):
    """The first of `tiles`, from large to small, of which so many `blocks` fit; if none does, the last."""
    return next((tile for tile in tiles if takes(tile) <= shared_bytes(blocks)), tiles[-1])


def asked(name, usual):
    """An attribute of the card; `usual` where there is none, and where code is compiled for another machine."""
    try:
        return getattr(cuda.get_current_device(), name, usual)
    except CudaSupportError:
        return usual

"""Two blocks that share what they both read: a cluster, whose tiles of C lie below each other and need the same B.

Each block asks for half of B's tile, for it to arrive in both (multicast). No block may end while the other one still
sends to it.
"""

from lessons.toolkit import hopper
from lessons.toolkit.pasted import pasted

CLUSTER = 2  # blocks, below each other
ALL = (1 << CLUSTER) - 1  # of them


@pasted
def release(emptied, stage, thread):
    """The first two of the threads that call tell both blocks that a stage is empty."""
    if thread < CLUSTER:
        hopper.barrier_arrive_at(emptied, stage, thread)

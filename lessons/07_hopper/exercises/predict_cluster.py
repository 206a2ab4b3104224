"""Exercise 07.7, predict: four blocks in a square.

Clusters have four blocks, two by two: block r has row r // 2 and column r % 2 of C's tiles, 192 x 128 each. The
blocks of a row share a tile of A, those of a column a tile of B. Each block asks for half of either, for both that
need it. A stage has 64 k, float16; a block has three consumers. Replace each None by a number or by arithmetic.
Counts must be exact, other figures to 1%.
Grade: python -m common grade 07.7
"""

MASK_OF_A = None  # with which block 2 asks for its half of A
MASK_OF_B = None  # with which block 1 asks for its half of B
EXPECTED = None  # bytes that a block announces for a stage
ASKED = None  # bytes of it that a block asks L2 for
WRITERS = None  # blocks that write to a block's stage, itself included
ARRIVALS = None  # for which emptied is made: a block writes when the consumers of all whom it writes to are done
PER_CLOCK = None  # bytes it asks L2 for, for each clock of its matrix unit, which does 2,048 multiply-adds
PER_CLOCK_ALONE = None  # the same without clusters

# four blocks below each other instead: all share a tile of B, and each asks for a quarter of it
PER_CLOCK_OF_COLUMN = None  # bytes it asks L2 for, for each clock then
ARRIVALS_OF_COLUMN = None  # for which emptied is made then

"""Exercise 07.8, predict: what a thread holds of A.

A kernel like hgemm_register_operand multiplies float32 values as TF32. Its instructions are m64n256k8, its tiles of
A 192 x 32, their rows swizzled as before; three consumers have 64 rows each; there are no clusters. The matrix units
of a multiprocessor do 1,024 such multiply-adds per clock together, and shared memory delivers 128 bytes. A float32
value fills a register. Replace each None by a number or by arithmetic; all must be exact.
Grade: python -m common grade 07.8
"""

FETCH = None  # clocks that shared memory takes to deliver A of one instruction
MULTIPLY = None  # clocks that one instruction multiplies
SET = None  # registers of a thread that hold A of one stage
HELD = None  # registers of a thread for two such sets and its sums
ARRIVALS = None  # for which emptied is made
LOADS = None  # ldmatrix4 of a warp for one stage: each brings four matrices, 8 rows of 16 bytes
WAVEFRONTS = None  # of shared memory, 128 bytes each, for those of all warps
PIECE = None  # of row 13 of the tile in shared memory, where k 20 to 23 lie: its number in the row
LANE = None  # of the first warp: its address is that piece's; lanes 0 to 15 give left halves, 16 to 31 right ones

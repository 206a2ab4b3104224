"""Exercise 09.4, predict: half the bytes, twice the k.

igemm_wgmma computes 128 x 256 of C at a time, 128 k in each stage; hgemm_specialised has 64 k of float16. Replace
each None by a whole number. All must be exact.
Grade: python -m common grade 09.4
"""

STAGE_BYTES = None  # of a stage of igemm_wgmma: a tile of A and a tile of B
INSTRUCTIONS = None  # wgmma of 64 x 256 x 32 that each of the two consumers starts for a stage
CLOCKS = None  # that the matrix unit needs for a stage, at 4,096 multiply-adds of int8 a clock
SHARED = None  # bytes of shared memory that the two consumers' instructions read for a stage
LARGEST = None  # the largest magnitude that a product of two int8 may have
TERMS = None  # how many such products an int32 sum holds for certain: the largest K
EXACT = None  # and a float32 sum, which holds whole numbers up to 2 ** 24

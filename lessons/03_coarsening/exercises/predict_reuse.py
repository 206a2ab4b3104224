"""Exercise 03.3, predict: what other tiles of a thread would save.

Replace each None by a number or by arithmetic. Counts must be exact, other figures to 1%, what was measured to a
third. A multiprocessor has 65,536 registers, which a thread gets in steps of 8, and holds 64 warps.
Grade: python -m common grade 03.3
"""

# gemm_coarsened with TILE = 32 and WPT = 4
BARRIERS = None  # that a thread waits at on gemm-4096
# values read from shared memory for each multiply-add, if a thread had two columns of four rows, in place of one
TWO_COLUMNS = None
# with one column again, the least WPT that TILE = 32 allows, for at most 1.1 values for each multiply-add
LEAST_WPT = None

# a thread with 4 rows of 4 neighbouring columns: wide loads take four k of a row of A, or four columns of a row of B
WIDE_LOADS = None  # instructions for each multiply-add
WIDE_VALUES = None  # floats for each multiply-add

# warps that fit a multiprocessor, in blocks of 128 threads
WARPS_81 = None  # 81 registers for each thread
WARPS_64 = None  # 64 registers for each thread

# conv2d with 5 x 5 taps, where a thread owns 4 pixels below each other in 2 maps: pixels and taps that it reads for
# each multiply-add, if it reads each once for each channel
CONV_READS = None

# the time of gemm_wide_loads for M = N = K = 2048 in ms, as the H200 of the page took it: measured
WIDE_2048_MS = None

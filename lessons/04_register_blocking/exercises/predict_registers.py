"""Exercise 04.3, predict: registers, reads and warps of other tiles.

Replace each None by a number or by arithmetic. Counts must be exact, other figures to 1%. A multiprocessor has
65,536 registers, a quarter for each of its four schedulers, 233,472 bytes of shared memory (each block takes 1,024
more than it asks for), and room for 64 warps.
Grade: python -m common grade 04.3
"""

# a thread's tile of 12 x 6 elements of C: the registers of its sums and of both fragments together
REGISTERS = None

# a thread's tile with six columns: the fewest rows for which it reads at most 0.22 floats from shared memory for each
# multiply-add
ROWS_OF_SIX = None

# the widest tile whose sums and fragments fit 100 registers, if it has two rows, and if it is a square
COLUMNS_OF_TWO_ROWS = None
SIDE_OF_A_SQUARE = None

# warps that fit a multiprocessor
WARPS_A = None  # blocks of 128 threads, 145 registers each
WARPS_B = None  # blocks of 256 threads, 145 registers each
WARPS_C = None  # blocks of 128 threads, 125 registers each, and 58,000 bytes of shared memory

# a block tile of 96 x 64, in threads of 8 x 6: warps in a block, and values of A and B staged for each multiply-add
WARPS = None
STAGED = None

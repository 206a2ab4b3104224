"""Exercise 04.3, predict: banks, registers and warps.

Replace each None by a number or by arithmetic. Counts must be exact, other figures to 1%, measured ones to a third.
Grade: python -m common grade 04.3
"""

# turns that shared memory takes when lane l of a warp reads float l * stride, for a stride of
TURNS_32 = 32
TURNS_33 = 1
TURNS_34 = 2
TURNS_48 = 16

# gemm_register_blocked, 8 x 8 elements of C per thread: instructions that read shared memory, for each multiply-add
SHARED_LOADS = (8 + 8) / 4 / (8 * 8)

# warps that fit a multiprocessor: 119 registers in each of 256 threads, and 229 in each of 128
WARPS_BLOCKED = 65536 // (120 * 256) * 256 // 32
WARPS_TUNED = 65536 // (232 * 128) * 128 // 32

# gemm_tuned on gemm-2048, blocks of 128 x 128 elements
BLOCKS = (2048 // 128) ** 2

# time of gemm_naive over that of gemm_tuned on gemm-4096, from the instructions that both take
SPEED_UP = 36 / 1.1

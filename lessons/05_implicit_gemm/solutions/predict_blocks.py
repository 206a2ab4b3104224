"""Exercise 05.4, predict: how much of the tiles counts?

Blocks of 64 x 64 outputs, BLOCK_K = 32, over the matrices of a layer. Replace each None by a number or by
arithmetic. Counts must be exact, other figures to 1%.
Grade: python -m common grade 05.4
"""

# c3d-conv3a, stride 1 and padding 1 throughout, but with a stride of 2 along h and w
GEMM_M = 16 * 8 * 14 * 14
GEMM_K = 27 * 128
BLOCKS = 392 * 4
TIMES_X = 27 / 4  # elements of A for each element of x

# resnet50-stem
STEM_BLOCKS = 64 * 112 * 112 // 64
STEM_ROUNDS = 5  # of the loop over k0 in a block
STEM_USEFUL_PERCENT = 100 * 147 / 160  # multiply-adds that count

# a layer with 100 filters of 1 x 1 and 40 channels, and 1,000 outputs
THIN_USEFUL_PERCENT = 100 * (1000 * 100 * 40) / (1024 * 128 * 64)

# resnet50-1x1: its least traffic in MB, x and the filters read once, y written once
LEAST_MB = 4 * (64 * 256 * 56 * 56 + 64 * 256 + 64 * 64 * 56 * 56) / 1e6

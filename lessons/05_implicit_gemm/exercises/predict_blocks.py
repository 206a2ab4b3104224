"""Exercise 05.4, predict: how much of the tiles counts?

Blocks of 64 x 64 outputs, BLOCK_K = 32, over the matrices of a layer. Replace each None by a number or by
arithmetic. Counts must be exact, other figures to 1%.
Grade: python -m common grade 05.4
"""

# c3d-conv3a, stride 1 and padding 1 throughout, but with a stride of 2 along h and w
GEMM_M = None
GEMM_K = None
BLOCKS = None
TIMES_X = None  # elements of A for each element of x

# resnet50-stem
STEM_BLOCKS = None
STEM_ROUNDS = None  # of the loop over k0 in a block
STEM_USEFUL_PERCENT = None  # multiply-adds that count

# a layer with 100 filters of 1 x 1 and 40 channels, and 1,000 outputs
THIN_USEFUL_PERCENT = None

# resnet50-1x1: its least traffic in MB, x and the filters read once, y written once
LEAST_MB = None

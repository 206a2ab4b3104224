"""Exercise 05.2, predict: how much of the tiles counts?

Blocks of 64 x 64 outputs, BLOCK_K = 32, over the matrices of a layer. Replace each None by a number or by
arithmetic. Counts must be exact, other figures to 1%.
Grade: python -m common grade 05.2
"""

# 16 videos of 8 x 28 x 28 pixels, 128 channels, 256 filters of 3 x 5 x 5; the padding is 1 on all sides, the stride 2
# along h and w, and 1 along d
GEMM_M = None
GEMM_K = None
BLOCKS = None
TIMES_X = None  # elements of A for each element of x
PADDED_PERCENT = None  # elements of A that are padding

# resnet50-stem: 64 images, 112 x 112 output pixels each, 3 channels, 64 filters of 7 x 7
STEM_BLOCKS = None
STEM_ROUNDS = None  # of the loop over k0 in a block
STEM_USEFUL_PERCENT = None  # multiply-adds in the GEMM_M x GEMM_N x GEMM_K product, padding zeros included

# a layer with 100 filters of 1 x 1 and 40 channels, and 1,000 output pixels in all
THIN_USEFUL_PERCENT = None

# resnet50-1x1: 64 images of 56 x 56 pixels, 256 channels, 64 filters of 1 x 1. Its least traffic in MB, x and the
# filters read once, y written once
LEAST_MB = None

# and with a stride of 2 along h and w: what must be read and written at least
STRIDED_MB = None

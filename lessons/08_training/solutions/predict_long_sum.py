"""Exercise 08.7, predict: a small matrix of long sums.

The gradient of the filter of wgrad-resnet50-conv3: N=64 C=128 H=W=28 K=128 R=S=3, padding 1, stride 1. A block
computes 64 x 64 elements. The GPU has 132 multiprocessors, and two such blocks fit each. Replace each None by a
number.
Grade: python -m common grade 08.7
"""

# the product
GEMM_M = 128
GEMM_N = 9 * 128
GEMM_K = 64 * 28 * 28

# blocks without a split; percent of the 264 places that they take
BLOCKS = 2 * 18
PLACES_PERCENT = 100 * 36 / 264

# the largest number of parts for which all blocks run at once; products in the longest part, where no part is more
# than one longer than another
PARTS = 264 // 36
LONGEST_PART = -(-50176 // 7)

# what that many partial results take, in MB (a float is 4 bytes, a MB a million); and x, for comparison
PARTIAL_MB = 7 * 128 * 1152 * 4 / 1e6
X_MB = 64 * 28 * 28 * 128 * 4 / 1e6

# c3d-conv3a has GEMM_M = 256 and GEMM_N = 27 * 128: its blocks without a split
BLOCKS_OF_C3D = 4 * 54

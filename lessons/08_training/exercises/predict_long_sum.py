"""Exercise 08.7, predict: a small matrix of long sums.

The gradient of the filter of wgrad-resnet50-conv3: N=64 C=128 H=W=28 K=128 R=S=3, padding 1, stride 1. A block
computes 64 x 64 elements. The GPU has 132 multiprocessors, and two such blocks fit each. Replace each None by a
number.
Grade: python -m common grade 08.7
"""

# the product
GEMM_M = None
GEMM_N = None
GEMM_K = None

# blocks without a split; percent of the 264 places that they take
BLOCKS = None
PLACES_PERCENT = None

# the largest number of parts for which all blocks run at once; products in the longest part, where no part is more
# than one longer than another
PARTS = None
LONGEST_PART = None

# what that many partial results take, in MB (a float is 4 bytes, a MB a million); and x, for comparison
PARTIAL_MB = None
X_MB = None

# c3d-conv3a has GEMM_M = 256 and GEMM_N = 27 * 128: its blocks without a split
BLOCKS_OF_C3D = None

"""Exercise 08.5, predict: who owns which part of dfilt.

The gradient of the filter of a layer with N=32 C=48 H=W=27 K=80 R=S=5, a stride of 2 and a padding of 2. A block
computes a tile of dfilt as a matrix, 8 products of each sum at a time. A tile that reaches beyond the matrix takes as
long as any other. The GPU has 132 multiprocessors, and three blocks fit each. Replace each None by a number or by
arithmetic. Whole numbers must be exact, other figures to 1%.
Grade: python -m common grade 08.5
"""

# the product
GEMM_M = None
GEMM_N = None
GEMM_K = None

# tiles of 64 x 64, no split: blocks, and percent of their multiply-adds that are for elements of dfilt
BLOCKS = None
USEFUL_PERCENT = None

# tiles of 64 x 64 again, but the columns of a block are channels of one tap only
BLOCKS_OF_ONE_TAP = None

# the BLOCKS tiles above (columns of any tap): the largest number of parts for which all run at once; products
# in the longest part and in the last, where parts are a whole number of eights and all but the last equally long
PARTS = None
LONGEST_PART = None
LAST_PART = None

# with that many parts: how many blocks copy one element of dy; what all partial results take, in MB (a million bytes)
COPIES_OF_DY = None
PARTIAL_MB = None

# one part more: count two waves, each as long as the longest part. How many times as long as the one wave before do
# they take? To 0.1%
TIMES_AS_LONG = None

"""Exercise 08.7, predict: who owns which part of dfilt.

The gradient of the filter of a layer with N=32 C=48 H=W=27 K=80 R=S=5, a stride of 2 and a padding of 2. A block
computes a tile of dfilt as a matrix, 8 products of each sum at a time. A tile that reaches beyond the matrix takes as
long as any other. The GPU has 132 multiprocessors, and three blocks fit each. Replace each None by a number or by
arithmetic. Whole numbers must be exact, other figures to 1%.
Grade: python -m common grade 08.7
"""

# the product
GEMM_M = 80
GEMM_N = 25 * 48
GEMM_K = 32 * 14 * 14

# tiles of 64 x 64, no split: blocks, and percent of their multiply-adds that are for elements of dfilt
BLOCKS = 2 * 19
USEFUL_PERCENT = 100 * 80 * 1200 / (38 * 64 * 64)

# the same with tiles of 32 rows x 128 columns
BLOCKS_OF_32 = 3 * 10
USEFUL_PERCENT_OF_32 = 100 * 80 * 1200 / (30 * 32 * 128)

# tiles of 64 x 64 again, but the columns of a block are channels of one tap only
BLOCKS_OF_ONE_TAP = 2 * 25

# the largest number of parts for which all blocks of 64 x 64 run at once; products in the longest part and in the
# last, where parts are a whole number of eights and all but the last equally long
PARTS = 396 // 38
LONGEST_PART = 8 * 79
LAST_PART = 8 * (784 - 9 * 79)

# with that many parts: how many blocks copy one element of dy; what all partial results take, in MB (a million bytes)
COPIES_OF_DY = 19
PARTIAL_MB = 10 * 80 * 1200 * 4 / 1e6

# one part more: how many times as long do the blocks take then, if each takes as long as its longest part, and the
# second wave begins when the first has ended? To 0.1%
TIMES_AS_LONG = 2 * 72 / 79

# a dense layer of 32 outputs and 256 inputs, as a convolution of one tap on one pixel, with a batch of N = 64: blocks
# of 64 x 64 without a split, and with as many parts as there are eights
DENSE_BLOCKS = 4
DENSE_BLOCKS_SPLIT = 4 * 8

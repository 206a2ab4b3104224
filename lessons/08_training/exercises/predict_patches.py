"""Exercise 08.11, predict: sixteen products in numbers.

All filters here have a stride of 1. Replace each None by a number or by arithmetic. Whole numbers must be exact,
other figures to 1%.
Grade: python -m common grade 08.11
"""

# a patch of 4 x 4 elements and a filter of 3 x 3: the products, and by which factor these are fewer than the
# definition's multiplications
PRODUCTS_OF_4_AND_3 = None
FACTOR_OF_4_AND_3 = None

# patches of 2 x 2 for a dx of 7 x 7 elements, a filter of 3 x 3: how many, and by which factor are the
# multiplications still fewer than the definition's
PATCHES_OF_7 = None
FACTOR_OF_7 = None

# dgrad-resnet50-conv5: 64 images of 7 x 7, 512 channels and 512 filters. A block has 16 patches and 64 channels; each
# of 132 multiprocessors has two places for blocks. How many blocks; how many after one another at one place, at most;
# and how many rounds of 8 filters does a block multiply?
BLOCKS_OF_CONV5 = None
AFTER_ONE_ANOTHER = None
ROUNDS_OF_CONV5 = None

# shared memory of a block, in bytes: for two rounds of 8 filters each, sixteen tiles of 16 patches and sixteen of 64
# channels, float32, each 8 filters deep; and for each filter 20 floats, which keep stores apart
SHARED_BYTES = None

# dy has integers from -4 to 4: the largest that one of the 16 sums of a window can be, after rows and columns
LARGEST_SUM = None

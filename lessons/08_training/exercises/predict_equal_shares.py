"""Exercise 08.14, predict: equal shares.

wgrad_stream_k, as in section 2 of equal_shares.md: tiles of 128 x 128, 8 patches an iteration, 264 places. The
layer: 32 images with 9 x 9 outputs, 256 channels and 256 filters. Replace each None by a number or by arithmetic.
Whole numbers must be exact, other figures to 1%.
Grade: python -m common grade 08.14
"""

# the iterations of a tile of product 0, which has all patches, and of product 15
WHOLE = None
CORNER = None

# the iterations in the row: all tiles of product 0 first, then those of product 1, and so on
ROW = None

# the iterations of the longest share
LONGEST = None

# with one block for each tile, all run at once. How many times as long does the longest of these run as the longest
# share? Only iterations count
TIMES_SHORTER = None

# block b begins at iteration b * ROW // 264: where does block 200 begin, and in which product?
BEGINS_AT = None
PRODUCT = None

# the most segments that there can be
MOST_SEGMENTS = None

"""Exercise 05.5, predict: blocks, and what tiling a matrix that does not exist is worth.

Replace each None by a number or by arithmetic. Counts must be exact, measured figures to a third.
Grade: python -m common grade 05.5
"""

# conv3d_coordinates of exercise 05.1, tiles of 16 x 16
BLOCKS_CONV3A = None  # on c3d-conv3a
BLOCKS_RESNET = None  # on resnet50-conv3
GEMM_K = None  # products in a sum, on c3d-conv3a

# time of conv3d_direct over that of conv3d_direct_tiled on c3d-conv3a. The counters of lesson 02 say what share of
# the issue slots both used, 26 and 56 percent, and for how many instructions per multiply-add, 34.8 and 11.9
SPEED_UP = None

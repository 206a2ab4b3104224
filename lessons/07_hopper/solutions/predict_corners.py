"""Exercise 07.10, predict: where the walk begins and ends.

Images of 1 x 14 x 20 (D, H, W), filters of 1 x 5 x 3, stride 2 along h and 3 along w, padding 2 and 1, dilation 1
and 2. Base pixels are walked along w, then h, then n. Replace each None by a whole number. All must be exact.
Grade: python -m common grade 07.10
"""

LOWER_H = 0 - 2  # of the tensor map
UPPER_H = 2 - 4 * 1  # of the tensor map
UPPER_W = 1 - 2 * 2  # of the tensor map
BASES_H = 7  # base pixels along h
BASES_W = 6  # base pixels along w
BASE_H = 10 - 2  # h of the base pixel that row 32 of the matrix of windows begins with
BASE_W = 2 * 3 - 1  # and its w
IMAGE = 1  # which image row 45 belongs to, the first being 0
OFFSET_S = 2 * 2  # what is passed as s for the last tap of a row
PIXEL_W = 3 * 3 - 1 + 4  # w of the pixel that this tap brings to row 45
ZEROS = 6 + 6  # of the first image's rows that are zero at tap r = 0, s = 0
ZEROS_OF_LAST = 6  # the same at the last tap, r = 4, s = 2

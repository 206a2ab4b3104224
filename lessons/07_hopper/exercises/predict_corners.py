"""Exercise 07.9, predict: where the walk begins and ends.

Images of 1 x 13 x 20 (D, H, W), filters of 1 x 5 x 3, stride 2 along h and 3 along w, padding 2 and 1, dilation 1
and 3. Base pixels are walked along w, then h, then n. Replace each None by a whole number. All must be exact.
Grade: python -m common grade 07.9
"""

LOWER_H = None  # of the tensor map
UPPER_H = None  # of the tensor map
UPPER_W = None  # of the tensor map
BASES_H = None  # base pixels along h
BASES_W = None  # base pixels along w
BASE_H = None  # h of the base pixel that row 32 of the matrix of windows begins with
BASE_W = None  # and its w
IMAGE = None  # which image row 45 belongs to, the first being 0
OFFSET_S = None  # what is passed as s for the last tap of a row
PIXEL_W = None  # w of the pixel that this tap brings to row 45
ZEROS = None  # of the first image's rows that are zero at tap r = 0, s = 0
ZEROS_OF_LAST = None  # the same in the last row of taps, at r = 4, s = 1

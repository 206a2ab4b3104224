"""Exercise 08.4, predict: which taps an element of dx meets.

All layers here are two-dimensional (D = T = 1), and as large as need be: do not count the edges. Replace each None by
a number or by arithmetic. Whole numbers must be exact, other figures to 1%.
Grade: python -m common grade 08.4
"""

# a filter of 3 x 3 with a stride of 2 and no padding: how many taps meet the element at
# (h, w) = (4, 4)
TAPS_AT_4_4 = None
# (h, w) = (5, 4)
TAPS_AT_5_4 = None
# (h, w) = (5, 5)
TAPS_AT_5_5 = None

# an element in row h = 4 meets two rows of the filter: the first and the last. Which row p of dy for each?
P_OF_FIRST = None
P_OF_LAST = None

# a filter of 5 x 5 with a stride of 3 along h and of 2 along w: taps that meet an element, on average; percent of the
# multiply-adds that a kernel does for nothing which goes through all 25 for each element
TAPS_ON_AVERAGE = None
FOR_NOTHING_PERCENT = None

# a filter of 7 x 7 with a stride of 2 and a padding of 3: the most and the fewest taps that an element meets
MOST_OF_7 = None
FEWEST_OF_7 = None

# a filter of 1 x 1 with a stride of 3: percent of the elements of dx that are zero, whatever dy is
ZERO_PERCENT_OF_1 = None

# a filter of 3 x 3 with a stride of 2, a dilation of 2 and a padding of 2: the most taps, and percent that are zero
MOST_DILATED = None
ZERO_PERCENT_DILATED = None

# and with a dilation of 3 and a padding of 3
MOST_DILATED_3 = None
ZERO_PERCENT_DILATED_3 = None

# a filter of 3 x 3 with a stride of 3: the most taps
MOST_OF_STRIDE_3 = None

"""Exercise 06.1, predict: which lane holds what.

mma.m16n8k16 multiplies A (16 x 16) by B (16 x 8). A lane holds eight values of A, a_frag[0] to a_frag[7], four of B
and four sums. Replace each None by a whole number. All must be exact.
Grade: python -m common grade 06.1
"""

LANE_OF_A = None  # which lane holds A's element in row 11, column 2
PLACE_OF_A = None  # and which of its eight values it is, from 0 on
LANE_OF_FAR_A = None  # which lane holds A's element in row 4, column 15
PLACE_OF_FAR_A = None  # and which of its eight values it is
LANE_OF_B = None  # which lane holds B's element in row 12, column 6
PLACE_OF_B = None  # and which of its four values it is
LANE_OF_C = None  # which lane holds the sum in row 13, column 5
PLACE_OF_C = None  # and which of its four sums it is
ROW_OF_C = None  # in which row lane 18's third sum lies, acc[2]
COLUMN_OF_C = None  # and in which column
LANES = None  # how many different lanes hold the row of A and the column of B that acc[2] of lane 18 sums

# Put two such C side by side (16 x 16) and use them, in float16, as the next A. At which place of lane 18's a_frag
# does acc[2] of the right-hand C stand?
PLACE_AS_A = None

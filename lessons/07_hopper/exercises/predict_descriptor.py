"""Exercise 07.1, predict: what a descriptor says.

Tiles lie in rows of 128 bytes with the 128-byte swizzle. A: rows along k, 64 float16 each, from byte 40,960 on. B:
rows along n, panels of 64 columns, each 32 rows high. Fields and what is added count units of 16 bytes; places are
bytes from the tile's beginning. Replace each None by a whole number. All must be exact.
Grade: python -m common grade 07.1
"""

ADDRESS = None  # the address field of A's descriptor
LOWER_ROWS = None  # what is added to it for rows 64 to 127 of the same tile
LEADING = None  # the leading field of B's descriptor
NEXT_STAGE = None  # added for the next stage: A 128 x 64 (m x k), B 2 of 32 k x 256 n
PLACE_OF_A = None  # where row 13, k = 40 lies in the tile of A
PLACE_OF_B = None  # where k = 21, n = 100 lies in the tile of B
ROW_OF_BYTE = None  # which row of A byte 520 belongs to
K_OF_BYTE = None  # and which k
NEXT_PANEL = None  # what is added to B's descriptor for columns 64 to 127
NEXT_K = None  # and to A's, for k from 48 on
MOVED_PLACE = None  # where row 13, k = 40 lies in a tile that begins 512 bytes behind a boundary of 1,024

"""Exercise 07.1, predict: what a descriptor says.

Tiles lie in rows of 128 bytes with the 128-byte swizzle. A: rows along k, 64 float16 each, from byte 40,960 on. B:
rows along n, panels of 64 columns, each 32 rows high. Fields and what is added count units of 16 bytes; places are
bytes from the tile's beginning. Replace each None by a whole number. All must be exact.
Grade: python -m common grade 07.1
"""

ADDRESS = 40960 // 16  # the address field of A's descriptor
LOWER_ROWS = 64 * 128 // 16  # what is added to it for rows 64 to 127 of the same tile
LEADING = 32 * 128 // 16  # the leading field of B's descriptor
NEXT_STAGE = (128 * 64 + 2 * 32 * 256) * 2 // 16  # what is added for the next stage: A 128 x 64, B twice 32 x 256
PLACE_OF_A = 13 * 128 + (5 - 5) * 16  # where row 13, k = 40 lies in the tile of A
PLACE_OF_B = 4096 + 21 * 128 + 1 * 16 + 4 * 2  # where k = 21, n = 100 lies in the tile of B
ROW_OF_BYTE = 520 // 128  # which row of A byte 520 belongs to
K_OF_BYTE = 4 * 8 + 4  # and which k
NEXT_PANEL = 256  # what is added to B's descriptor for columns 64 to 127
NEXT_K = 6  # and to A's, for k from 48 on
MOVED_PLACE = 1728  # where row 13, k = 40 lies in a tile that begins 512 bytes behind a boundary of 1,024

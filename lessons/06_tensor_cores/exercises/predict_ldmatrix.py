"""Exercise 06.2, predict: wavefronts of ldmatrix.

A tile of float16 lies in shared memory, so many bytes from one row to the next. ldmatrix4 reads 16 x 16 of it: lane l
names the 16 bytes from column l // 16 * 8 of row l % 16 on. Replace each None by the wavefronts that it takes for the
whole warp. All must be exact.
Grade: python -m common grade 06.2
"""

STRIDE_192 = None  # 96 columns
STRIDE_64 = None  # 32 columns
STRIDE_80 = None  # 32 columns and 8 unused
STRIDE_96 = None  # 48 columns
STRIDE_144 = None  # 64 columns and 8 unused
STRIDE_160 = None  # 64 columns and 16 unused
STRIDE_112 = None  # 56 columns
STRIDE_320 = None  # 128 columns and 32 unused

# 64 columns, eight pieces of 16 bytes in a row, and piece c of a row lies at
XOR_OF_4 = None  # c XOR (row % 4)
TURNED_BY_2 = None  # (c + 2 * row) % 8
TURNED_BY_3 = None  # (c + 3 * row) % 8

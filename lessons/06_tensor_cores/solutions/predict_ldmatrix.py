"""Exercise 06.3, predict: wavefronts of ldmatrix.

A tile of float16 lies in shared memory, so many bytes from one row to the next. ldmatrix4 reads 16 x 16 of it: lane l
names the 16 bytes from column l // 16 * 8 of row l % 16 on. Replace each None by the wavefronts that it takes for the
whole warp. All must be exact.
Grade: python -m common grade 06.3
"""

STRIDE_192 = 16  # 96 columns
STRIDE_64 = 16  # 32 columns
STRIDE_80 = 4  # 32 columns and 8 unused
STRIDE_96 = 8  # 48 columns
STRIDE_144 = 4  # 64 columns and 8 unused
STRIDE_160 = 8  # 64 columns and 16 unused
STRIDE_112 = 4  # 56 columns
STRIDE_320 = 16  # 128 columns and 32 unused

# 64 columns, eight pieces of 16 bytes in a row, and piece c of a row lies at
XOR_OF_4 = 8  # c XOR (row % 4)
TURNED_BY_2 = 8  # (c + 2 * row) % 8
TURNED_BY_3 = 4  # (c + 3 * row) % 8

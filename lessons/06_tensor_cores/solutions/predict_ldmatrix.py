"""Exercise 06.3, predict: wavefronts of ldmatrix.

A tile of float16 lies in shared memory, so many bytes from one row to the next. ldmatrix4 reads 16 x 16 of it: lane l
names the 16 bytes from column l // 16 * 8 of row l % 16 on. Replace each None by the wavefronts that it takes for the
whole warp. All must be exact.
Grade: python -m common grade 06.3
"""

STRIDE_128 = 32  # 64 columns
STRIDE_64 = 16  # 32 columns
STRIDE_80 = 4  # 32 columns and 8 unused
STRIDE_96 = 8  # 48 columns
STRIDE_144 = 4  # 64 columns and 8 unused
STRIDE_256 = 32  # 128 columns
STRIDE_160 = 8  # 64 columns and 16 unused
STRIDE_112 = 4  # 56 columns
STRIDE_320 = 16  # 128 columns and 32 unused
XOR_OF_4 = 8  # 64 columns, and piece c of a row lies at c XOR (row % 4)

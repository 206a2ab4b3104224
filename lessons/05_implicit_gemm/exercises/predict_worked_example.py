"""Exercise 05.2, predict: the worked example, by hand.

An input of 4 x 4 pixels with 3 channels, x[1, 4, 4, 3] in NHWC, and 4 filters of 2 x 2, filt[4, 2, 2, 3] in KRSC;
stride 1, no padding, so 3 x 3 outputs. Replace each None by a whole number.
Grade: python -m common grade 05.2
"""

# the matrix product y[GEMM_M, GEMM_N] = A[GEMM_M, GEMM_K] @ B[GEMM_K, GEMM_N]
GEMM_M = None
GEMM_N = None
GEMM_K = None

# row gemm_m = 7: the output pixel (p, q)
P_OF_7 = None
Q_OF_7 = None

# column gemm_k = 10: the tap (r, s) and the channel c
R_OF_10 = None
S_OF_10 = None
C_OF_10 = None

# element (7, 10) of A: the input pixel (h, w), and its place in x as it lies in memory
H_OF_7_10 = None
W_OF_7_10 = None
PLACE_OF_7_10 = None

# and back: the row of output pixel (1, 2), the column of tap (1, 0) and channel 2
ROW_OF_1_2 = None
COLUMN_OF_1_0_2 = None

"""Exercise 05.1, predict: another worked example, by hand.

Two images of 5 x 6 pixels with 3 channels, x[2, 5, 6, 3] in NHWC, and 4 filters of 3 x 2, filt[4, 3, 2, 3] in KRSC.
The stride is 2 along h and 1 along w, the padding 1 along h and 0 along w. Replace each None by a whole number.
Grade: python -m common grade 05.1
"""

# the outputs of an image: P rows of Q
P = (5 + 2 - 3) // 2 + 1
Q = 6 - 2 + 1

# the matrix product y[GEMM_M, GEMM_N] = A[GEMM_M, GEMM_K] @ B[GEMM_K, GEMM_N]
GEMM_M = 2 * P * Q
GEMM_K = 3 * 2 * 3

# row gemm_m = 22: the image n, and the output pixel (p, q) in it
N_OF_22 = 22 // (P * Q)
P_OF_22 = 22 // Q % P
Q_OF_22 = 22 % Q

# column gemm_k = 14: the tap (r, s) and the channel c
R_OF_14 = 14 // (2 * 3)
S_OF_14 = 14 // 3 % 2
C_OF_14 = 14 % 3

# element (22, 14) of A: the input pixel (h, w), and the element's place in x as it lies in memory
H_OF_22_14 = P_OF_22 * 2 - 1 + R_OF_14
W_OF_22_14 = Q_OF_22 + S_OF_14
PLACE_OF_22_14 = ((N_OF_22 * 5 + H_OF_22_14) * 6 + W_OF_22_14) * 3 + C_OF_14

# how many elements of row 0 are padding
ZEROS_OF_0 = 2 * 3

# how many elements of all of A are padding
ZEROS_OF_A = 2 * 2 * 5 * 6

# in how many rows of A an element of the pixel (h, w) = (3, 2) of image 0 stands
ROWS_OF_PIXEL = 2 * 2

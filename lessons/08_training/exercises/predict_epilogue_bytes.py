"""Exercise 08.7, predict: what an epilogue saves.

The output of a layer is y[48, 1, 56, 56, 64] in float32; its sums have 9 * 64 products each. What follows the
convolution is done by kernels of its own, or within the convolution, while the sums are in registers. Count what is
read and written in megabytes (millions of bytes), the bias of 64 floats left out. Replace each None by a number
or by arithmetic. Whole numbers must be exact, other figures to 1%.
Grade: python -m common grade 08.7
"""

# y, written once
Y_MB = None

# bias and ReLU were two kernels, one after the other: what is saved if both go into the convolution
BIAS_THEN_RELU_MB = None

# y + residual, both as large as y: what the kernel of its own reads and writes, and what is saved if it is fused
RESIDUAL_MB = None
RESIDUAL_SAVED_MB = None

# y is wanted in float16, which a kernel of its own made of it: what the convolution writes if it does that itself,
# and what is saved in all
HALF_WRITTEN_MB = None
HALF_SAVED_MB = None

# the sums of y's columns are wanted and y is not: what is saved
COLUMNS_ALONE_SAVED_MB = None

# a bias in a kernel of its own, at 4 TB/s; the convolution at 60 TFLOP/s, two FLOP for a multiply-add. Both in ms,
# and the GEMM_K at which they would take equally long
BIAS_MS = None
CONVOLUTION_MS = None
EVEN_GEMM_K = None

"""Exercise 08.1, predict: the chain rule by hand.

Replace each None by a number or by arithmetic. Whole numbers must be exact, other figures to 1%. d_a stands for the
derivative of the loss by a: how much the loss grows for each unit that a grows.
Grade: python -m common grade 08.1
"""

# v = w * x + b, y = max(v, 0), loss = (y - 5)**2 / 2, with x = 3, w = 2, b = -4. The loss by y: d_y = y - 5
D_Y = 2 - 5
D_V = -3
D_W = -3 * 3
D_B = -3
D_X = -3 * 2

# the weight w after one step down with a rate of 0.1
NEW_W = 2 - 0.1 * -9

# the same with b = -8
D_Y_BELOW = 0 - 5
D_W_BELOW = 0

# x goes two ways: y1 = 2 * x, y2 = x * x, with x = 3, d_y1 = 4 and d_y2 = -1
D_X_TWO_WAYS = 2 * 4 + 2 * 3 * -1

# a residual: y = x + max(w * x, 0), with w = -2, x = 3 and d_y = 4
D_X_RESIDUAL = 4

# windows two apart: y[p] = sum over r of x[2 * p + r] * filt[r], with x = [1, 2, 0, 3, 4, 5], filt = [2, -1, 1] and
# dy = [1, 2]
DX_1 = 1 * -1
DX_2 = 1 * 1 + 2 * 2
DX_5 = 0
DFILT_0 = 1 * 1 + 2 * 0
DFILT_2 = 1 * 0 + 2 * 4

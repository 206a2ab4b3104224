"""Exercise 08.1, predict: the chain rule by hand.

Replace each None by a number or by arithmetic. Whole numbers must be exact, other figures to 1%. d_a stands for the
derivative of the loss by a: how much the loss grows for each unit that a grows.
Grade: python -m common grade 08.1
"""

# v = w * x + b, y = max(v, 0), loss = (y - 5)**2 / 2, with x = 3, w = 2, b = -4. The loss by y: d_y = y - 5
D_Y = None
D_V = None
D_W = None
D_B = None
D_X = None

# the weight w after one step down with a rate of 0.1
NEW_W = None

# the same with b = -8
D_Y_BELOW = None
D_W_BELOW = None

# x goes two ways: y1 = 2 * x, y2 = x * x, with x = 3, d_y1 = 4 and d_y2 = -1
D_X_TWO_WAYS = None

# a residual: y = x + max(w * x, 0), with w = -2, x = 3 and d_y = 4
D_X_RESIDUAL = None

# windows two apart: y[p] = sum over r of x[2 * p + r] * filt[r], with x = [1, 2, 0, 3, 4, 5], filt = [2, -1, 1] and
# dy = [1, 2]
DX_1 = None
DX_2 = None
DX_5 = None
DFILT_0 = None
DFILT_2 = None

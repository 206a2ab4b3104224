"""Exercise 08.1, predict: the chain rule by hand.

Replace each None by a number. d_a stands for the derivative of the loss by a: how much the loss grows for each unit
that a grows.
Grade: python -m common grade 08.1
"""

# v = w * x + b, y = max(v, 0), loss = (y - 5)**2 / 2, with x = 3, w = 2, b = -4: d_y = y - 5
D_Y = 2 - 5
D_V = -3
D_W = -3 * 3
D_B = -3
D_X = -3 * 2

# the weight after one step of gradient descent with rate 0.1, without momentum
NEW_W = 2 - 0.1 * -9

# the same with b = -8
D_Y_BELOW = 0 - 5
D_W_BELOW = 0

# x goes two ways: y1 = 2 * x, y2 = 5 * x, and d_y1 = 3, d_y2 = -1
D_X_TWO_WAYS = 2 * 3 + 5 * -1

# a convolution: y[p] = sum over r of x[p + r] * filt[r], with x = [1, 2, 0, 3], filt = [2, -1, 1] and dy = [1, 2]
DX_0 = 1 * 2
DX_1 = 1 * -1 + 2 * 2
DX_2 = 1 * 1 + 2 * -1
DX_3 = 2 * 1
DFILT_0 = 1 * 1 + 2 * 2
DFILT_2 = 0 * 1 + 3 * 2

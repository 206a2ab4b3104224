"""Exercise 08.7, predict: the network in numbers.

The network of the page, but on images of 36 x 36 pixels: convolution of 7 x 7 with padding 3 to 4 channels, ReLU,
max-pooling of 2 x 2; convolution of 7 x 7 with padding 4 to 16 channels, ReLU, max-pooling of 4 x 4; a dense layer of
32 outputs, ReLU; one of 10 outputs. Each layer has a bias for each of its output channels. Replace each None by a
number or by arithmetic. Whole numbers must be exact, other figures to 1%.
Grade: python -m common grade 08.7
"""

# the height of the second convolution's input and of its output; what the first dense layer reads of a digit
SECOND_IN = None
SECOND_OUT = None
FEATURES = None

# weights and biases of the four layers together
PARAMETERS = None

# multiply-adds of one digit on the way forward: the first convolution, the second, both dense layers
MULTIPLY_ADDS_1 = None
MULTIPLY_ADDS_2 = None
MULTIPLY_ADDS_DENSE = None

# a network that knows nothing gives each of ten classes a probability of 1 / 10: the loss -ln(1 / 10), and what
# softmax with cross-entropy gives back for the logit of the right class, and for another; for one digit
FIRST_LOSS = None
D_LOGIT_RIGHT = None
D_LOGIT_OTHER = None
D_LOGIT_RIGHT_OF_32 = None  # the right class again, in a batch of 32: its loss is the mean of its digits' losses

# velocity = 0.9 * velocity + gradient, from 0 on, with a gradient that is always 1: after 2 steps, after very many
VELOCITY_2 = None
VELOCITY_AT_LAST = None

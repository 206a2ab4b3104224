"""unknown: a function of the toolkit that the tracer has no model of"""

from numba.cuda.experimental import nothing_of_the_kind  # fault

print(nothing_of_the_kind)

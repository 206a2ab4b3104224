"""Exercise 09.3, predict: what 14 bits hold of a long sum.

By the rule of the page: an instruction brings 32 products and the sum so far to the exponent of the largest, and cuts
off what 14 bits do not hold. K is 40,000. Replace each None by a number. All must be exact.
Grade: python -m common grade 09.3
"""

ONES = None  # what each element of C is, by fp8gemm_wgmma, where A and B are all 1
HALVES = None  # the same where they are all 0.5
ONES_PROMOTED = None  # by fp8gemm_promoted, where A and B are all 1
LARGEST_K = None  # the largest K for which fp8gemm_wgmma gives K where A and B are all 1
PARTS = None  # sums of a thread of fp8gemm_promoted that the unit holds at a time
ADDITIONS = None  # additions by which a thread promotes parts, for K = 4,096

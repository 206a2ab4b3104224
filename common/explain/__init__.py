"""What went wrong, in words.

Module by module:

    faults        errors and findings, each with its line and what to look at
    diagnose      what wrong values say: where they belong, which terms are missing
    letters       an expression in the place of an index letter
    hypotheses    mistakes that wrong values are compared with
    terms         which products an output element sums, in index letters
"""

"""What went wrong, in words.

Module by module:

    faults        a fault: its line, a sentence, and what to look at
    errors        what Python, Numba or the driver raised, as a fault
    source        where in a file something stands
    diagnose      what wrong values say: where they belong, which terms are missing
    letters       an expression in the place of an index letter
    omissions     terms that are missing, or counted twice
    hypotheses    mistakes that wrong values are compared with
    terms         which products an output element sums, in index letters
"""

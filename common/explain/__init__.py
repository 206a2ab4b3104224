"""What went wrong, in words.

Module by module:

    faults        a fault: its line, a sentence, and what to look at; what Python, Numba or the driver raised, as one
    diagnose      what wrong values say: where they belong, which terms are missing, regions of the output
"""

"""What went wrong, in words.

Module by module:

    faults        errors and findings, each with its line and what to look at
    diagnose      what wrong values say: where they belong, which terms are missing
    suspects      the mistakes that they are compared with
    probe         launches that single out one term
    terms         which products an output element sums, in index letters
"""

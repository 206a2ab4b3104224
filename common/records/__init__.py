"""What was measured, on which GPU, with which code.

Module by module:

    records       one JSON file for each GPU, one for machine code
    entries       what those files hold, a type for each entry
    recording     outcomes of tasks into records
    current       which rows of a record are as new as their code
"""

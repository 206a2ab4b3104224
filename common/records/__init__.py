"""What was measured, on which GPU, with which code.

Module by module:

    records       one JSON file for each GPU, one for machine code; outcomes of tasks into them; what still holds
"""

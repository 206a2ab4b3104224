"""The words of the command line, and how it goes along.

Module by module:

    arguments     each option once, with a value of its kind
    flow          the lines that are said as work is done
    selftime      the main job itself, timed
"""

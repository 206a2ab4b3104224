"""The edit loop: save, and hear what came of it.

Module by module:
    loop          an edited step, stage by stage, and in sentences for the terminal; and when a file is saved
    history       every source that was run, and its verdict
"""

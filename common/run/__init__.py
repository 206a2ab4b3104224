"""Tasks in child processes: no kernel takes the harness down, and one process owns the GPU.

Module by module:

    isolate       starts and ends child processes, and hands them tasks; the one that owns the GPU
    child         what a child process does: tasks, one by one; which stage of its work it is at, and for how long
    messages      what a child process can be asked, and what it answers
"""

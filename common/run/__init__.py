"""Tasks in child processes: no kernel takes the harness down, and one process owns the GPU.

Module by module:

    isolate       starts child processes, hands them tasks, and ends those that are late
    child         what a child process does: tasks, one by one
    limits        what a child may take: memory, file sizes, time
    overdue       which of a task's stages takes too long, and what may be said of it
    preload       imported once by the process that children are forked from
    messages      what all tasks and results have
"""

"""Tasks in child processes: no kernel takes the harness down, and one process owns the GPU.

Module by module:

    isolate       hands tasks to child processes; the one that owns the GPU
    process       starts, follows and ends a child process
    child         what a child process does: tasks, one by one
    limits        what a child may take: memory, file sizes, and time, by stage
    messages      what a child process can be asked
    results       what it answers: one result from a check to the terminal and to JSON
    preload       imported once by the process that children are forked from
"""

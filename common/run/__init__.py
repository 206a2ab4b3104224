"""Tasks in child processes: no kernel takes the harness down, and one process owns the GPU.

Module by module:

    isolate       hands tasks to child processes; the one that owns the GPU
    process       starts, follows and ends a child process
    child         what a child process does: tasks, one by one
    stages        which stage of its work a process is at, and what it may take: memory, time by stage
    messages      what a child process can be asked, and what it answers
"""

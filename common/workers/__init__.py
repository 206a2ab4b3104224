"""Child processes, and all that ends with them. What they do is the business of the layers above.

Module by module:

    isolate       runs tasks in child processes, with a time limit for each
    forkserver    forks processes from one that has Numba imported
    keeper        ends all that a child process has started
    child         reads tasks, does them, answers
    overdue       which stage of a task takes too long, and what may be said of it
    messages      what all tasks and results have, and how they are written and read
    relay         one GPU for many processes, each alone, the next ones getting ready
"""

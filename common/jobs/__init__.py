"""What is asked of child processes, and what came of it.

Module by module:

    run           each command's tasks, and what comes of them
    messages      what a child process can be asked, and answers
    tasks         what a child process does, task by task
    unchanged     the verdicts and compilations of steps that have not changed
"""

"""The commands: arguments, progress, printing. Nothing below prints.

Module by module:

    arguments     options that several commands share; which steps, presets and shapes were named
    console       what is said: lines, complaints, progress
    verdicts      outcomes on the terminal, and exit codes
    steps         list, check, time, diff
    bench         bench: what a record lacks is measured
    parts         what a record holds beside times
    profiling     profile, sanitize, sweep, trace --agree
    inspecting    inspect, trace
    edits         history, restore, reset, ship
    exercising    grade, hint
    pictures      charts, photo, book
    everything    all
    lessons       a lesson: run, watched, explained
"""

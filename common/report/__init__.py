"""All that is drawn and written from records.

Module by module:

    figures       their numbers, each with its unit and as it is shown
    pages         tables and figures inside Markdown pages
    tables        tables for the terminal
    cardtables    cards of kernels for the terminal
    charts        records to figures
    layers        one step across layers, beside the library
    drawing       what is drawn, by several processes, and only if it changed
    training      records of training: how a network learned, and how fast
    trainingcharts  those as charts
    photo         the photograph and its feature maps
    agreement     the tracer's counts beside the hardware's
    tracefigures  pictures of traces
    tracewords    a trace in sentences; whether it explains a failed check
    traces        every step's trace, as the book shows it
    messages      what a child process can be asked to draw
    tasks         what a child process draws
"""

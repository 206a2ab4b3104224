"""All that is drawn and written from records.

Numbers come first: ``figures`` takes them from a record. A table is data, made by ``kinds`` for pages and by
``tables`` for commands; ``table`` shows it, in a page or on a terminal. A lesson's own tables,
charts and pictures lie in its folder ``figures``: ``kinds.py``, ``charts.py`` and ``draw.py``.

Module by module:

    figures       single numbers, each as it is shown
    speeds        cells of a preset's rows; one step on each layer; each step beside the one it grew from
    table         a table, as Markdown and on a terminal
    kinds         the tables that pages name
    pages         tables and figures inside Markdown pages
    tables        tables that commands print, of what kernels became too
    canvas        the look of every picture, and its files
    cells         what pictures of cells, spans and words are made of
    charts        charts of records
    agreement     the tracer's counts beside the hardware's; the tracer beside the simulator
    traces        a trace in tables and sentences; every step's, as the book shows it
    tasks         what is drawn, by several processes, and only if it changed
"""

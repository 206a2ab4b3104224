"""All that is drawn and written from records: numbers first (``figures``), then tables of them, and charts.

A lesson's own tables, charts and pictures lie in its folder ``figures``: ``kinds.py``, ``charts.py``, ``draw.py``.

    figures       single numbers, each as it is shown; how libraries compute; what each step's idea was worth
    table         a table, as Markdown and on a terminal
    kinds         the tables that pages name
    tables        tables that commands print; the tracer's counts beside the hardware's
    canvas        the look of every picture, its files, and what pictures of cells are made of
    charts        charts of records
    traces        a trace in tables and sentences; every step's, as the book shows it
    pages         tables and figures inside Markdown pages; what is drawn anew, by several processes
"""

"""All that is drawn and written from records: numbers first (``figures``), then tables of them, and charts.

A lesson's own tables, charts and pictures lie in its folder ``figures``: ``kinds.py``, ``charts.py``, ``draw.py``.

    figures       single numbers, each as it is shown; how libraries compute; what each step's idea was worth
    table         a table, as Markdown and on a terminal
    tables        the tables that pages name, and those of times and verdicts that commands print
    canvas        the look of every picture, and its files
    cells         what pictures of cells, spans and words are made of
    charts        charts of records
    traces        kernels as traced, counted by the hardware and compiled; every step's trace, as the book shows it
    pages         tables and figures inside Markdown pages; what is drawn anew, by several processes
    book          what the book is built from; the build with Sphinx, steps as links; a trace as a page
"""

"""The book as a site, and a trace as a page.

Sphinx is brought by ``book`` and ``extension`` alone:

    sources       what the book is built from
    extension     steps and terms become links
    book          the build
    links         does every link lead somewhere
    texts         the glossary's words; the pages' words, for the search
    story         a ladder from its first step to its last
    charts        what the charts are drawn from
    explorer      one trace, one page
    costs         what a trace costs, in sentences
    explorations  the microscope pages of all steps
"""

from pathlib import Path

STATIC = Path(__file__).parent / "static"

"""The book as a site, and a trace as a page.

Sphinx is brought by ``book`` and ``extension`` alone:

    sources       what the book is built from
    extension     steps and terms become links
    book          the build, and does every link lead somewhere
    scripts       what charts are drawn from, and what the search shows
    story         a ladder from its first step to its last
    explorer      one trace, one page; and the book's such pages
    costs         what a trace costs, in sentences
"""

from pathlib import Path

STATIC = Path(__file__).parent / "static"

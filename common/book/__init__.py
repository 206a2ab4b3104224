"""The book as a site, and a trace as a page.

Sphinx is brought by ``book`` alone:

    book          the build with Sphinx, steps and terms as links
    explorer      one trace, one page; and the book's such pages
    costs         what a trace costs, in sentences
    sources       what the book is built from
"""

from pathlib import Path

STATIC = Path(__file__).parent / "static"

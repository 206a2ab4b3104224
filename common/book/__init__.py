"""The book as a site, and a trace as a page. Sphinx is brought by ``book`` alone.

Module by module:

    book          what the book is built from; the build with Sphinx, steps as links
    explorer      a trace as a page, and what it costs, in sentences; the book's such pages
"""

from pathlib import Path

STATIC = Path(__file__).parent / "static"

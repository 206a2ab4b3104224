"""The book as a site, and a trace as a page.

Module by module:

    book          what the book is built from; the build with Sphinx, steps as links; a trace as a page
"""

"""Draws pictures as SVG text, for the command line, the web pages and the documentation. Does no I/O."""

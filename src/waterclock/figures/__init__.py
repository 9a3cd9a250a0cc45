"""Pictures as SVG text, the same in the command line, the pages and the documentation. Pure."""

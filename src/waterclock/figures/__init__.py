"""Pictures as SVG text, pure: the same picture in the command line, the page and the documentation."""

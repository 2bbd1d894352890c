"""Measurements of selfdraft against itself and its peers; see README.md."""

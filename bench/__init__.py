"""Measures a mesh against the limit of this machine: `python -m bench`, or `make bench`. Never part of the tests."""

"""What the author of a Python adapter imports.

It decides what is legal at the adapter's edge (the lifecycle of a run, the classes of errors, cancellation, deadlines)
and serves one adapter in either placement, so that an author writes only provider mechanics. It imports no service and
no adapter.
"""

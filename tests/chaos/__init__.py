"""Chaos: a whole mesh of real processes, real clients and subscribers, and one fault after the other at chosen moments of runs.

`make chaos N=1000` runs it (`__main__`). `plan` decides from a seed which fault meets which moment, `tower` sees from the stores when a run
is in that moment, `faults` injects, `clients` and `subscribers` keep the mesh busy, `judge` says what the stores and everything that was
answered or sent broke of the invariants.
"""

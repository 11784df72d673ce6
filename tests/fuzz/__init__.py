"""Fuzzing of what strangers hand in: descriptors, drafts, decisions, events, statuses, evidence (I19, I22, I25, I35).

`pytest tests/fuzz` plays a few hundred fixed examples of each target; `python -m tests.fuzz --seconds 600` plays as many random ones as fit, and says
how many, what became of them, and how much memory it took.
"""

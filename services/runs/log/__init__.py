"""The durable event log of runs."""

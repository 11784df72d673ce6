"""Decides what may run: which harnesses are allowed, with which profiles and limits, and which agents exist.

It owns harness descriptors, operator profiles, certification evidence, and agents with their immutable versions, speaks
`harness.catalog.v1`, and calls adapters only to fetch descriptors and to have drafts evaluated. It knows no conversation
and no run.
"""

"""The reference harness: deterministic, free and offline, with no model behind it.

Its message decides what it does, which makes it the ground for tests, conformance and benchmarks, and the example that
authors of adapters copy. It imports only `adapters.sdk` and the generated contracts.
"""

"""Adapters: each makes one agent SDK or provider speak the contracts of this project.

An adapter stands on `adapters.sdk` and the generated contracts alone. It keeps nothing durable, holds no credential of a
service, and knows nothing of the services behind the contracts or of other adapters.
"""

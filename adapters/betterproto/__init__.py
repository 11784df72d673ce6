"""The reference harness once more, on betterproto2 and grpclib: written from the contracts alone, nothing shared with `adapters.sdk`.

It shows that the contracts say enough for a second implementation, and it is the shape to copy for an author who wants
dataclasses and pure Python instead of grpcio. Start it with `python -m adapters.betterproto`.
"""

"""The REST and SSE face of the public gRPC services: a translation from the descriptors of the contracts, without state or rule."""

"""The gRPC edge of the catalog: one servicer a file, each translates, calls, translates back."""

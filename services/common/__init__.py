"""What two or more services need: errors, settings, process and server start-up, interceptors, channels, ids, tokens."""

"""The whole mesh through `harness up`, seen from outside: HTTP, SSE, kill -9."""

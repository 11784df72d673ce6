"""The commands, one module a noun. What is slow to import is imported where it is used, so that `harness --help` is quick."""

"""What tests of several parts share: real processes, started and ended by pid."""

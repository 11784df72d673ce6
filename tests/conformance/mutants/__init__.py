"""One mutant for each numbered rule of the adapter contract: an adapter that breaks that rule, to be caught by the case named for it."""

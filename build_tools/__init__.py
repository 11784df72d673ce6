"""What `make` runs to turn `proto/` into Python and to hold the architecture: never imported by the product."""

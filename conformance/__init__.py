"""Certifies adapters and workers in any language: it plays the control plane over the contracts and knows no adapter (design 0004)."""

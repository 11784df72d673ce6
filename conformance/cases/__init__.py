"""The cases, one module a section. Importing this package registers all of them."""

import importlib

from conformance.cases.registry import CASES, Case, case

for _section in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12):
    importlib.import_module(f"conformance.cases.section_{_section:02d}")

__all__ = ["CASES", "Case", "case"]

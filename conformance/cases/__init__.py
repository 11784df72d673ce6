"""The cases, one module a section. Importing this package registers all of them."""

import importlib

from conformance.cases.registry import CASES, Case, case

for _section in range(1, 13):
    importlib.import_module(f"conformance.cases.section_{_section:02d}")

__all__ = ["CASES", "Case", "case"]

"""An import-linter contract on what modules import themselves, written for the edges of a service.

The contracts that come with import-linter name their modules one by one. Here the rule is "every module but these", so
that a module added tomorrow is held by it too. Only direct imports count: a domain module may call the store, which
may import a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.helpers import module_expressions_to_modules
from importlinter.domain.imports import ModuleExpression


class DirectImportsContract(Contract):
    """`modules`, and all below them, do not themselves import any of `forbidden_modules`, nor a generated module whose
    name ends with one of `forbidden_generated`.

    `except_modules`, and all below them, are exempt. All take `*` for one name; an expression that matches nothing is
    allowed, since a layout has modules that do not exist yet.
    """

    type_name = "direct"

    modules = fields.SetField(subfield=fields.ModuleExpressionField())
    except_modules = fields.SetField(subfield=fields.ModuleExpressionField(), required=False)
    forbidden_modules = fields.SetField(subfield=fields.ModuleExpressionField())
    forbidden_generated = fields.SetField(subfield=fields.StringField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        exempt = _with_descendants(graph, self._expressions("except_modules"))
        forbidden = _with_descendants(graph, self._expressions("forbidden_modules"))
        endings = tuple(str(ending) for ending in self._values("forbidden_generated"))
        found: list[str] = []
        for module in sorted(_with_descendants(graph, self._expressions("modules")) - exempt):
            found += self._broken_by(module, graph, forbidden, endings)
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in cast("list[str]", check.metadata["found"]):
            output.print_error(f"- {line}", bold=False)
        output.new_line()
        output.print_error(
            "Move the call to an edge of the service (its servicer, store or client), or, for a new edge, name it in "
            "except_modules of this contract in pyproject.toml.",
            bold=False,
        )

    def _broken_by(
        self, module: str, graph: ImportGraph, forbidden: set[str], endings: tuple[str, ...]
    ) -> Iterator[str]:
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if imported in forbidden:
                lines = [
                    detail["line_number"] for detail in graph.get_import_details(importer=module, imported=imported)
                ]
                yield f"{module} imports {imported} (line {', '.join(str(line) for line in lines)})"
        # The graph knows a generated module only as part of one external package.
        if endings and "harness" in graph.find_modules_directly_imported_by(module):
            for number, line in enumerate(_source(module).splitlines(), start=1):
                words = line.replace(",", " ").replace("(", " ").replace(")", " ").split()
                if any(word.endswith(endings) for word in words):
                    yield f"{module} imports a gRPC stub (line {number})"

    def _values(self, name: str) -> Iterable[Any]:
        return cast("Iterable[Any] | None", getattr(self, name)) or ()

    def _expressions(self, name: str) -> list[ModuleExpression]:
        return list(self._values(name))


def _with_descendants(graph: ImportGraph, expressions: list[ModuleExpression]) -> set[str]:
    found: set[str] = set()
    for module in module_expressions_to_modules(graph, expressions):
        if module.name in graph.modules:
            found.add(module.name)
            if not graph.is_module_squashed(module.name):
                found |= graph.find_descendants(module.name)
    return found


def _source(module: str) -> str:
    path = Path(*module.split("."))
    package = path / "__init__.py"
    return (package if package.exists() else path.with_suffix(".py")).read_text()

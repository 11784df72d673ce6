"""Writes the generated pages of docs/reference: `python -m build_tools.reference`, or `make docs`.

They come from the contracts, the settings classes and the table of errors, so that no page says what the code does not.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from build_tools.reference_contracts import contracts_page
from build_tools.reference_events import events_page
from build_tools.reference_services import errors_page, settings_page
from services.gateway.reference import reference as rest_page

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "contracts.md": contracts_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "rest.md": rest_page,
    "settings.md": settings_page,
}


def main() -> int:
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"docs: wrote {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

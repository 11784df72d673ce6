"""The Markdown files of the project and what stands in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
IGNORED = {".venv", "build", "gen", "node_modules"}
_FENCE = re.compile(r"^(```+)([^\n]*)\n(.*?)^\1", re.MULTILINE | re.DOTALL)
_PUNCTUATION = re.compile(r"[^\w\- ]")


def pages() -> list[Path]:
    """Every Markdown file that belongs to the project."""
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part in IGNORED or part.startswith(".") for part in path.relative_to(ROOT).parts[:-1])
    )


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return [body for _, kind, body in _FENCE.findall(page.read_text("utf-8")) if kind.strip() == language]


def prose(page: Path) -> str:
    """The page without its fenced blocks and code spans."""
    return re.sub(r"`[^`\n]+`", "code", _FENCE.sub("", page.read_text("utf-8")))


def anchors(page: Path) -> set[str]:
    """What `#…` can point to, as forges make it of headings."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    headings = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    return {_PUNCTUATION.sub("", heading.strip().lower()).replace(" ", "-") for heading in headings}

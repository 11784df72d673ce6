"""The system prompt of one turn: variables filled in, the client's context appended (REST API, Upstream quirk kept)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MAX_PROMPT_BYTES: Final = 4_194_304
"""Bound of a rendered prompt as UTF-8, that of the runtime contract."""
_VARIABLE: Final = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]{0,63})\}\}")
"""As the catalog checks a template when it is saved: no blanks within the braces."""


class PromptTooLarge(Exception):
    """The rendered prompt passes its bound (I35). `size` and `limit` are bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the rendered system prompt has {size} bytes, at most {MAX_PROMPT_BYTES} are passed on")
        self.size = size
        self.limit = MAX_PROMPT_BYTES


def compile_prompt(template: str, variables: Mapping[str, str], context: str) -> str:
    """The prompt with every `{{name}}` replaced once and the context in its block, for this turn only.

    A value is inserted as it is: braces in it are text and are not looked at again. A name without a value stays as written; a
    blueprint that was saved has none. Errors: `PromptTooLarge`.
    """
    rendered = _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), template)
    if context:
        rendered = f"{rendered}\n\n<client-system-context>\n{context}\n</client-system-context>"
    size = len(rendered.encode("utf-8"))
    if size > MAX_PROMPT_BYTES:
        raise PromptTooLarge(size)
    return rendered

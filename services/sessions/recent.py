"""What a binding was when this process last wrote it, so that the next change of it needs no read before its compare-and-set."""

from collections import OrderedDict
from typing import Final

from services.sessions.binding import BindingDocument

MAX_BINDINGS: Final = 4096
MAX_REFERENCES: Final = 64
"""A document that names more runs and parts is not kept: it costs more room than its read costs time."""

Known = tuple[str, BindingDocument]


class RecentBindings:
    """Bindings by id, each with its conversation's key, the longest unchanged forgotten first (I35).

    Another process may have changed a binding since: what is taken from here decides nothing but what to write if a compare-and-set on its
    revision succeeds. A refusal, or that there is nothing to write, only a read can say.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Known] = OrderedDict()

    def take(self, binding_id: str) -> Known | None:
        """The conversation's key and the document, known no more until it is kept again: a write may come to an unknown end."""
        return self._known.pop(binding_id, None)

    def keep(self, key: str, document: BindingDocument) -> None:
        """The document is what the store holds now, its revision included."""
        head = document["head"]
        if len(document["waiting"]) + (0 if head is None else len(head["part_refs"])) > MAX_REFERENCES:
            return
        self._known[document["binding_id"]] = (key, document)
        if len(self._known) > MAX_BINDINGS:
            self._known.popitem(last=False)

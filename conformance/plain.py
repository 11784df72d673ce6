"""What a target says, made safe to print and to write into a report: a report is read on terminals, and as XML."""

import re

# Control characters (C0, DEL, C1), line and paragraph separators, what turns the direction of text, and what XML cannot hold.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def plain_text(text: str) -> str:
    """The text as one line of harmless characters; each other one becomes U+FFFD, each end of a line a space."""
    return _UNSAFE.sub("\ufffd", text.replace("\r\n", " ").replace("\n", " "))

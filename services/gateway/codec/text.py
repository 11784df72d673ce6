"""JSON text as Python values, keeping what the parser would hide: repeated keys, NaN, numbers of absurd length."""

import json
from typing import Any, NamedTuple

from services.common.errors import FieldIssue, invalid_request

MAX_NUMBER_CHARACTERS = 64


class NotANumber(NamedTuple):
    """Stands where the text had something like NaN, or a number nobody can mean; refused by the decoder, which knows the path."""

    code: str
    message: str


class RepeatedKeys(dict[str, Any]):
    """An object of whose keys some came more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        seen: set[str] = set()
        self.repeated = sorted({key for key, _ in pairs if key in seen or seen.add(key)})


def parse_json(body: bytes) -> Any:
    """The value of a JSON text. Raises `invalid_request` for what is no JSON, not UTF-8, or nested beyond any sense."""
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=_fraction,
        )
    except UnicodeDecodeError as error:
        raise _malformed("invalid_utf8", f"The body is not valid UTF-8 at byte {error.start}.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _malformed("malformed_json", f"The body is not valid JSON at {where}: {error.msg}.") from None
    except RecursionError:
        raise _malformed("too_deep", "The body is nested too deeply.") from None


def _malformed(code: str, message: str) -> Exception:
    return invalid_request([FieldIssue("", code, message)], "The request body cannot be read.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    return result if len(result) == len(pairs) else RepeatedKeys(pairs)


def _constant(text: str) -> NotANumber:
    return NotANumber("not_finite", f"{text} is not a JSON number.")


def _integer(text: str) -> int | NotANumber:
    return int(text) if len(text) <= MAX_NUMBER_CHARACTERS else _too_long()


def _fraction(text: str) -> float | NotANumber:
    return float(text) if len(text) <= MAX_NUMBER_CHARACTERS else _too_long()


def _too_long() -> NotANumber:
    return NotANumber("out_of_range", f"A number has at most {MAX_NUMBER_CHARACTERS} characters.")

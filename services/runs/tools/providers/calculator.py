"""Arithmetic on decimal numbers: a parser of its own for a language of seven operators, bounded in every direction (I35). Pure.

sum     = product (("+" | "-") product)*
product = sign (("*" | "/" | "//" | "%") sign)*
sign    = ("+" | "-") sign | power
power   = atom ("**" sign)?
atom    = number | "(" sum ")"
"""

from __future__ import annotations

import decimal
import re
from decimal import Decimal
from typing import Final

MAX_CHARACTERS: Final = 1_000
MAX_DEPTH: Final = 50
"""Parentheses, signs and powers inside one another."""
MAX_EXPONENT: Final = 10_000
DIGITS: Final = 50
"""Significant digits of every result."""
_CONTEXT: Final = decimal.Context(
    prec=DIGITS,
    rounding=decimal.ROUND_HALF_EVEN,
    Emin=-MAX_EXPONENT,
    Emax=MAX_EXPONENT,
    traps=[decimal.DivisionByZero, decimal.InvalidOperation, decimal.Overflow],
)
_TOKEN: Final = re.compile(
    r"\s*(?:(\d{1,60}(?:\.\d{0,60})?(?:[eE][+-]?\d{1,4})?|\.\d{1,60})|(\*\*|//|[-+*/%()]))", re.ASCII
)


class NotArithmetic(ValueError):
    """An expression that has no value; the text says why, and is safe to tell."""


def value_of(expression: str) -> str:
    """The value, as a decimal number of at most 50 digits. Errors: `NotArithmetic`."""
    if len(expression) > MAX_CHARACTERS:
        raise NotArithmetic(f"The expression has more than {MAX_CHARACTERS} characters.")
    with decimal.localcontext(_CONTEXT):
        try:
            parser = _Parser(_tokens(expression))
            value = parser.whole()
            return _written(value)
        except decimal.DivisionByZero:
            raise NotArithmetic("Division by zero.") from None
        except decimal.Overflow:
            raise NotArithmetic(f"The value passes 10**{MAX_EXPONENT}.") from None
        except decimal.InvalidOperation:
            raise NotArithmetic(f"The expression has no value of {DIGITS} digits.") from None


def _tokens(expression: str) -> list[str]:
    found: list[str] = []
    at, text = 0, expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotArithmetic(f"Expected a number or one of + - * / // % ** ( ) at character {at + 1}.")
        found.append(match[1] or match[2])
        at = match.end()
    return found


def _written(value: Decimal) -> str:
    if value == 0:
        return "0"
    value = value.normalize()
    return f"{value:f}" if -DIGITS <= value.adjusted() < DIGITS else str(value)


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Decimal:
        value = self._sum()
        if self._at < len(self._tokens):
            raise NotArithmetic(f"Did not expect {self._tokens[self._at]} there.")
        return value

    def _sum(self) -> Decimal:
        value = self._product()
        while operator := self._one_of("+", "-"):
            other = self._product()
            value = value + other if operator == "+" else value - other
        return value

    def _product(self) -> Decimal:
        value = self._sign()
        while operator := self._one_of("*", "/", "//", "%"):
            other = self._sign()
            match operator:
                case "*":
                    value = value * other
                case "/":
                    value = value / other
                case "//":
                    value = _floored(value, other)[0]
                case _:
                    value = _floored(value, other)[1]
        return value

    def _sign(self) -> Decimal:
        operator = self._one_of("+", "-")
        if not operator:
            return self._power()
        self._enter()
        value = self._sign()
        self._depth -= 1
        return value if operator == "+" else -value

    def _power(self) -> Decimal:
        base = self._atom()
        if not self._one_of("**"):
            return base
        self._enter()
        exponent = self._sign()
        self._depth -= 1
        if abs(exponent) > MAX_EXPONENT:
            raise NotArithmetic(f"An exponent may be {MAX_EXPONENT} at most.")
        if base == 0 and exponent < 0:
            raise NotArithmetic("Division by zero.")
        return Decimal(1) if exponent == 0 and base != 0 else base**exponent

    def _atom(self) -> Decimal:
        if self._one_of("("):
            self._enter()
            value = self._sum()
            self._depth -= 1
            if not self._one_of(")"):
                raise NotArithmetic("A parenthesis is not closed.")
            return value
        if self._at == len(self._tokens):
            raise NotArithmetic("The expression ends too early.")
        token = self._tokens[self._at]
        if token[0] not in "0123456789.":
            raise NotArithmetic(f"Did not expect {token} there.")
        self._at += 1
        return +Decimal(token)  # rounded to the digits of the context

    def _one_of(self, *operators: str) -> str:
        if self._at < len(self._tokens) and self._tokens[self._at] in operators:
            self._at += 1
            return self._tokens[self._at - 1]
        return ""

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotArithmetic(f"Nested more than {MAX_DEPTH} deep.")


def _floored(value: Decimal, other: Decimal) -> tuple[Decimal, Decimal]:
    """Quotient rounded down, and the remainder, which has the sign of the divisor."""
    quotient, remainder = divmod(value, other)
    if remainder and (remainder < 0) != (other < 0):
        return quotient - 1, remainder + other
    return quotient, remainder

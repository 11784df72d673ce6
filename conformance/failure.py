"""Why a case did not pass, and why a certification could not begin."""


class Broken(Exception):
    """The target broke the rule of the case; the text says what was seen and what should have been."""


class Refused(Broken):
    """A call that had to succeed was refused, in whatever form."""


class CannotExpressError(Exception):
    """The driver has no words for a step of the scenario: the case says nothing of the target."""


class NotApplicableError(Exception):
    """The rule has nothing to look at in this target; the text says why."""


class TargetError(Exception):
    """The certification cannot begin. `hint` says what to do; `unreachable`: nobody answers there."""

    def __init__(self, message: str, hint: str = "", *, unreachable: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.unreachable = unreachable


def expect(condition: bool, message: str) -> None:
    """Raises Broken unless the condition holds."""
    if not condition:
        raise Broken(message)

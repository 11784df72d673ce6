"""A driver of an author may have defects. They say nothing of the target, so they fail none of its rules."""

from collections.abc import Callable
from typing import Any

from conformance.drivers.driver import Driver
from conformance.failure import Broken, CannotExpressError
from conformance.scenario import Steps


class Guarded(Driver):
    """Passes everything on to `driver`; what it raises, but for what drivers may raise, becomes CannotExpressError, and so does an answer of another type."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.name = driver.name

    def profile_settings(self, canary: str) -> dict[str, Any]:
        """As the driver."""
        return self._asked("profile_settings", dict, lambda: self._driver.profile_settings(canary))

    def options(self) -> dict[str, Any]:
        """As the driver."""
        return self._asked("options", dict, self._driver.options)

    def model_address(self) -> str:
        """As the driver."""
        return self._asked("model_address", str, self._driver.model_address)

    def skills(self) -> dict[str, str]:
        """As the driver."""
        return self._asked("skills", dict, self._driver.skills)

    def blocked_skill(self) -> str:
        """As the driver."""
        return self._asked("blocked_skill", str, self._driver.blocked_skill)

    def message(self, *turns: Steps) -> str:
        """As the driver."""
        return self._asked("message", str, lambda: self._driver.message(*turns))

    def talk(self, said: str) -> str:
        """As the driver."""
        return self._asked("talk", str, lambda: self._driver.talk(said))

    def burst(self, count: int, size: int) -> str:
        """As the driver."""
        return self._asked("burst", str, lambda: self._driver.burst(count, size))

    def decision_in(self, text: str) -> dict[str, Any]:
        """As the driver."""
        return self._asked("decision_in", dict, lambda: self._driver.decision_in(text))

    def _asked(self, method: str, kind: type, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except (Broken, CannotExpressError):
            raise
        except Exception as error:
            told = f"The scenario driver failed in {method}: {type(error).__name__}: {error}"
            raise CannotExpressError(told[:300]) from error
        if not isinstance(answer, kind):
            raise CannotExpressError(
                f"The scenario driver's {method} gave {type(answer).__name__}, not {kind.__name__}."
            )
        return answer

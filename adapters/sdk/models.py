"""Which of a provider's models a blueprint means (agents, Model): the profile says what is behind each alias, and nobody else knows."""

from collections.abc import Mapping
from typing import Protocol

from adapters.sdk.errors import ConfigurationError
from harness.common.v1 import blueprint_pb2


class ModelProfile(Protocol):
    """The part of an adapter's profile that is about models."""

    @property
    def model(self) -> str:
        """The provider's id where the blueprint leaves the choice to the operator; empty: to the provider."""
        ...

    @property
    def models(self) -> Mapping[str, str]:
        """Ids by the aliases an author may pick."""
        ...


def model_of(model: blueprint_pb2.ModelSpec, profile: ModelProfile) -> str:
    """The provider's id of the model a blueprint selects; empty: the provider's own choice. Raises ConfigurationError for an alias without one."""
    if model.policy != blueprint_pb2.MODEL_POLICY_ALIAS:
        return profile.model
    chosen = profile.models.get(model.alias)
    if chosen is None:
        raise ConfigurationError(
            f"model.alias: the profile has no model {model.alias!r}: choose another, or add it to the profile's models.",
            code="model_unknown",
        )
    return chosen

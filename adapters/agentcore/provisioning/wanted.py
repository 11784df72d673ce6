"""Which harnesses there should be, and how each is recognised: by its name, and by tags that nobody else sets."""

import hashlib
import json
from dataclasses import dataclass, field

NAME_PREFIX = "mesh"
DEPLOYMENT_TAG = "harness-mesh:deployment"
AGENT_TAG = "harness-mesh:agent"
SPEC_TAG = "harness-mesh:spec"


@dataclass(frozen=True, slots=True)
class Spec:
    """What the operator approved for a profile's harnesses. Nothing of it may be shown (I18)."""

    execution_role_arn: str = field(repr=False)
    model_id: str = ""
    """Bedrock model that a turn has which names none; empty: the service's default."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The harness of one agent in a deployment. What an author edits is not part of it: it travels with each invocation (I4)."""

    deployment: str
    """Id of a profile's harnesses among all of the account: letters, digits, `.`, `_` and `-`."""
    agent_id: str
    spec: Spec

    @property
    def name(self) -> str:
        """36 characters, the same on every replica, so that a harness is never made twice and one whose answer was lost is found."""
        return deployment_prefix(self.deployment) + _digest(self.agent_id)[:20]

    @property
    def tags(self) -> dict[str, str]:
        """Whose it is, and of which spec."""
        return {
            DEPLOYMENT_TAG: self.deployment,
            AGENT_TAG: self.agent_id,
            SPEC_TAG: self.spec_digest,
        }

    @property
    def spec_digest(self) -> str:
        """Changes when the harness has to be updated."""
        return _digest(self.spec.execution_role_arn, self.spec.model_id)[:32]


def deployment_prefix(deployment: str) -> str:
    """How the names of all harnesses of a deployment begin: 16 characters."""
    return f"{NAME_PREFIX}_{_digest(deployment)[:10]}_"


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

"""What has to be done so that the harnesses there are become those that are wanted. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapters.agentcore.provisioning.wanted import AGENT_TAG, DEPLOYMENT_TAG, SPEC_TAG, Wanted

READY = "READY"
SETTLED = frozenset({"READY", "CREATE_FAILED", "UPDATE_FAILED", "DELETE_FAILED"})


@dataclass(frozen=True, slots=True)
class Found:
    """A harness of the account whose name is one of this deployment's."""

    name: str
    harness_id: str
    arn: str
    status: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of one round. What is being changed already is left to a later round."""

    create: tuple[Wanted, ...] = ()
    update: tuple[tuple[Found, Wanted], ...] = ()
    remove: tuple[Found, ...] = ()

    @property
    def size(self) -> int:
        """How many changes it is."""
        return len(self.create) + len(self.update) + len(self.remove)


def plan(deployment: str, wanted: Iterable[Wanted], ended: Iterable[str], found: Iterable[Found]) -> Plan:
    """The steps. Removed are harnesses of `ended` agents alone, whatever else there is: what was not named may have conversations."""
    by_name = {each.name: each for each in wanted}
    over = frozenset(ended)
    there = {each.name: each for each in found}
    create = tuple(each for name, each in sorted(by_name.items()) if name not in there)
    update: list[tuple[Found, Wanted]] = []
    remove: list[Found] = []
    for name, each in sorted(there.items()):
        # A name alone proves nothing: what does not carry the tag of this deployment is somebody else's and is never touched.
        if each.tags.get(DEPLOYMENT_TAG) != deployment or each.status not in SETTLED:
            continue
        if name not in by_name:
            if each.tags.get(AGENT_TAG) in over:
                remove.append(each)
        elif each.status == "CREATE_FAILED":
            # A failed one is not mended by an update; its name is free again for a later round.
            remove.append(each)
        elif each.status != READY or each.tags.get(SPEC_TAG) != by_name[name].spec_digest:
            update.append((each, by_name[name]))
    return Plan(create, tuple(update), tuple(remove))

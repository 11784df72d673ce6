"""The control plane, as far as it is needed: boto3 behind plain values. Blocking; the caller gives it threads."""

import re
from collections.abc import Mapping
from typing import Any, Protocol, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from adapters.agentcore.provisioning.plan import Found
from adapters.agentcore.provisioning.wanted import SPEC_TAG, Wanted, deployment_prefix

MAX_HARNESSES = 10_000
"""Harnesses of an account that are looked through (I35)."""
PAGE = 100
_CODE = re.compile(
    r"[A-Za-z]{1,64}(Exception|Error)|Throttling|ExpiredToken|InvalidClientTokenId|SignatureDoesNotMatch"
)
_ALREADY = frozenset({"ConflictException", "ResourceNotFoundException"})


class ControlFault(Exception):
    """The control plane did not do it. `code` is the service's, or the name of a failure on the way; no text of the service is kept (I22)."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code

    @property
    def throttled(self) -> bool:
        """Whether coming back later helps."""
        return self.code in ("ThrottlingException", "ServiceQuotaExceededException")


class Client(Protocol):
    """What is used of a `bedrock-agentcore-control` client of boto3."""

    def list_harnesses(self, **asked: Any) -> Mapping[str, Any]: ...
    def list_tags_for_resource(self, *, resourceArn: str) -> Mapping[str, Any]: ...  # noqa: N803 - boto3's
    def get_harness(self, *, harnessId: str) -> Mapping[str, Any]: ...  # noqa: N803
    def create_harness(self, **asked: Any) -> Mapping[str, Any]: ...
    def update_harness(self, **asked: Any) -> Mapping[str, Any]: ...
    def close(self) -> None: ...
    def delete_harness(self, *, harnessId: str) -> Mapping[str, Any]: ...  # noqa: N803
    def tag_resource(self, *, resourceArn: str, tags: Mapping[str, str]) -> Mapping[str, Any]: ...  # noqa: N803


def open_control(region: str, endpoint_url: str = "") -> "Control":
    """The control plane of a region, with the standard chain of credentials. Errors: ControlFault for a region or address that is none."""
    # A retried request carries the same client token, so it takes effect once.
    config = Config(retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=5, read_timeout=20)
    try:
        # boto3 has no types of its own.
        session: Any = cast("Any", boto3).Session(region_name=region)
        return Control(session.client("bedrock-agentcore-control", endpoint_url=endpoint_url or None, config=config))
    except (BotoCoreError, ValueError) as error:
        raise ControlFault(type(error).__name__) from None


class Control:
    """The harnesses of one account and region. Every method may raise ControlFault."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def of_deployment(self, deployment: str, known: Mapping[str, Mapping[str, str]]) -> list[Found]:
        """All harnesses whose name is one of the deployment's, with their tags; those in `known`, by ARN, are not asked for again."""
        prefix = deployment_prefix(deployment)
        named = [each for each in self._summaries() if each["harnessName"].startswith(prefix)]
        return [found for each in named if (found := self._with_tags(each, known.get(each["arn"]))) is not None]

    def named(self, name: str) -> Found | None:
        """One harness by its name."""
        for found in self._summaries():
            if found["harnessName"] == name:
                return self._with_tags(found)
        return None

    def status(self, harness_id: str) -> str:
        """Its status; empty: there is none."""
        try:
            return _asked(self._client.get_harness, harnessId=harness_id)["harness"]["status"]
        except ControlFault as fault:
            if fault.code == "ResourceNotFoundException":
                return ""
            raise

    def create(self, wanted: Wanted) -> bool:
        """Makes it. False: it is there; another replica, or a request whose answer was lost, was first."""
        model = {"model": {"bedrockModelConfig": {"modelId": wanted.spec.model_id}}} if wanted.spec.model_id else {}
        return _done(
            self._client.create_harness,
            harnessName=wanted.name,
            executionRoleArn=wanted.spec.execution_role_arn,
            tags=wanted.tags,
            **model,
        )

    def update(self, found: Found, wanted: Wanted) -> bool:
        """Makes it what the profile says now. False: it is being changed, or gone."""
        model = {"model": {"bedrockModelConfig": {"modelId": wanted.spec.model_id}}} if wanted.spec.model_id else {}
        done = _done(
            self._client.update_harness,
            harnessId=found.harness_id,
            executionRoleArn=wanted.spec.execution_role_arn,
            **model,
        )
        # The tag last: if this process dies in between, the update is made again, which changes nothing.
        return done and _done(self._client.tag_resource, resourceArn=found.arn, tags={SPEC_TAG: wanted.spec_digest})

    def close(self) -> None:
        """Ends its connections."""
        self._client.close()

    def remove(self, found: Found) -> bool:
        """Removes it. False: it is being changed, or gone."""
        return _done(self._client.delete_harness, harnessId=found.harness_id)

    def _summaries(self) -> list[Mapping[str, Any]]:
        token, found = "", list[Mapping[str, Any]]()
        while True:
            page = _asked(self._client.list_harnesses, maxResults=PAGE, **({"nextToken": token} if token else {}))
            found += page["harnesses"]
            if len(found) > MAX_HARNESSES:
                raise ControlFault("too_many_harnesses")
            token = page.get("nextToken", "")
            if not token:
                return found

    def _with_tags(self, summary: Mapping[str, Any], known: Mapping[str, str] | None = None) -> Found | None:
        try:
            tags = known or _asked(self._client.list_tags_for_resource, resourceArn=summary["arn"]).get("tags", {})
        except ControlFault as fault:
            if fault.code == "ResourceNotFoundException":
                return None
            raise
        return Found(summary["harnessName"], summary["harnessId"], summary["arn"], summary["status"], tags)


def _asked(call: Any, **asked: Any) -> Mapping[str, Any]:
    try:
        return call(**asked)
    except ClientError as error:
        said = cast("Mapping[str, Mapping[str, str]]", error.response)
        code = said.get("Error", {}).get("Code", "")
        # I22: a code of AWS is an identifier; anything else is text of somebody else's, and goes no further.
        raise ControlFault(code if _CODE.fullmatch(code) else "unknown") from None
    except BotoCoreError as error:
        raise ControlFault(type(error).__name__) from None


def _done(call: Any, **asked: Any) -> bool:
    try:
        _asked(call, **asked)
    except ControlFault as fault:
        if fault.code in _ALREADY:
            return False
        raise
    return True

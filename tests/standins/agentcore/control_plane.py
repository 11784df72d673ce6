"""Harnesses, their endpoints and tags, with state: names are unique, changes take a while, a client token is one request."""

import contextlib
import re
import string
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.standins.agentcore.errors import Refused
from tests.standins.agentcore.http import Reply, Request

REGION, ACCOUNT = "eu-central-1", "123456789012"
Document = dict[str, Any]
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,39}")
_ROLE = re.compile(r"arn:aws(-[^:]+)?:iam::([0-9]{12})?:role/.+")
_DEFAULTS: Document = {
    "model": {"bedrockModelConfig": {"modelId": "default"}},
    "systemPrompt": [],
    "tools": [],
    "skills": [],
    "allowedTools": ["*"],
    "truncation": {"strategy": "none"},
}
_CHANGEABLE = ("executionRoleArn", "maxIterations", "maxTokens", "timeoutSeconds", "memory", *_DEFAULTS)


@dataclass
class Fault:
    """The next request of this operation fails: with `kind`; applied all the same, its answer lost, when `kind` is empty."""

    operation: str
    kind: str = ""


@dataclass
class Kept:
    """One harness."""

    document: Document
    tags: dict[str, str]
    looks_left: int
    """Looks until what is under way (CREATING, UPDATING, DELETING) is over."""
    endpoints: dict[str, Document] = field(default_factory=dict)


class ControlPlane:
    """The control plane's state. `looks` is how many looks a change takes; `page` bounds a page of a listing."""

    def __init__(self) -> None:
        self.harnesses: dict[str, Kept] = {}
        self.faults: deque[Fault] = deque()
        self.calls: list[str] = []
        self.looks = 1
        self.page = 100
        self._tokens: dict[str, Document] = {}
        self._made = 0

    def knows(self, arn: str) -> bool:
        """Whether a harness can be invoked. Any ARN can while nothing was ever made here: tests of turns need no harness."""
        if not self._made:
            return True
        return any(
            kept.document["arn"] == arn and kept.document["status"] == "READY" for kept in self.harnesses.values()
        )

    def add(self, name: str, role: str = f"arn:aws:iam::{ACCOUNT}:role/agents", **more: Any) -> Document:
        """A harness that is ready, as if made before."""
        made = self._create({"harnessName": name, "executionRoleArn": role, **more})["harness"]
        self.harnesses[made["harnessId"]].looks_left = 0
        return self._looked(made["harnessId"])

    async def answer(self, request: Request, reply: Reply) -> None:
        """Answers a request of the control plane. Errors: Refused."""
        operation, status = _operation(request)
        self.calls.append(operation)
        fault = self._fault(operation)
        if fault is not None and fault.kind:
            raise Refused(fault.kind)
        said = self._done(operation, request)
        if fault is not None:
            reply.cut()
            return
        await reply.whole(status, said)

    def _fault(self, operation: str) -> Fault | None:
        for fault in self.faults:
            if fault.operation == operation:
                self.faults.remove(fault)
                return fault
        return None

    def _done(self, operation: str, request: Request) -> Document | None:
        asked: Document = request.document if request.method in ("POST", "PATCH", "PUT") else {}
        token = asked.pop("clientToken", "") or request.query.get("clientToken", [""])[0]
        if token in self._tokens:
            return self._tokens[token]
        match operation:
            case "CreateHarness":
                said = self._create(asked)
            case "ListHarnesses":
                self._pass_on()
                return self._list(request, sorted(self.harnesses), "harnesses", self._summary)
            case "GetHarness":
                return {"harness": self._looked(request.path[1])}
            case "UpdateHarness":
                said = self._update(request.path[1], asked)
            case "DeleteHarness":
                said = self._delete(request.path[1])
            case "CreateHarnessEndpoint":
                said = self._create_endpoint(request.path[1], asked)
            case "ListHarnessEndpoints":
                endpoints = self._kept(request.path[1]).endpoints
                return self._list(request, sorted(endpoints), "endpoints", lambda name: endpoints[name])
            case "GetHarnessEndpoint":
                return {"endpoint": self._endpoint(request)}
            case "UpdateHarnessEndpoint":
                said = self._update_endpoint(request, asked)
            case "DeleteHarnessEndpoint":
                said = {"endpoint": {**self._endpoint(request), "status": "DELETING"}}
                del self._kept(request.path[1]).endpoints[request.path[3]]
            case "TagResource":
                self._tagged(request).update(asked["tags"])
                return None
            case "UntagResource":
                for name in request.query.get("tagKeys", []):
                    self._tagged(request).pop(name, None)
                return None
            case _:
                return {"tags": dict(self._tagged(request))}
        if token:
            self._tokens[token] = said
        return said

    def _create(self, asked: Document) -> Document:
        name, role = asked.get("harnessName", ""), asked.get("executionRoleArn", "")
        if not _NAME.fullmatch(name) or not _ROLE.fullmatch(role):
            raise Refused("ValidationException", "harnessName or executionRoleArn is malformed.")
        if any(kept.document["harnessName"] == name for kept in self.harnesses.values()):
            raise Refused("ConflictException", "A harness of this name exists.")
        self._made += 1
        harness_id = f"{name}-{_suffix(self._made)}"
        runtime = f"{name}_rt-{_suffix(self._made)}"
        document = {
            **_DEFAULTS,
            "harnessId": harness_id,
            "harnessName": name,
            "arn": f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:harness/{harness_id}",
            "status": "CREATING",
            "harnessVersion": "1",
            "createdAt": _now(),
            "updatedAt": _now(),
            "environment": {
                "agentCoreRuntimeEnvironment": {
                    "agentRuntimeArn": f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:runtime/{runtime}",
                    "agentRuntimeName": f"{name}_rt",
                    "agentRuntimeId": runtime,
                    "lifecycleConfiguration": {},
                    "networkConfiguration": {"networkMode": "PUBLIC"},
                }
            },
            **{key: asked[key] for key in _CHANGEABLE if key in asked},
        }
        self.harnesses[harness_id] = Kept(document, dict(asked.get("tags", {})), self.looks)
        return {"harness": dict(document)}

    def _update(self, harness_id: str, asked: Document) -> Document:
        kept = self._settled(harness_id)
        changed = {key: asked[key] for key in _CHANGEABLE if key in asked}
        version = str(int(kept.document["harnessVersion"]) + 1)
        kept.document.update(changed, harnessVersion=version, status="UPDATING", updatedAt=_now())
        kept.looks_left = self.looks
        return {"harness": dict(kept.document)}

    def _delete(self, harness_id: str) -> Document:
        kept = self._settled(harness_id)
        kept.document["status"], kept.looks_left = "DELETING", self.looks
        return {"harness": dict(kept.document)}

    def _settled(self, harness_id: str) -> Kept:
        kept = self._kept(harness_id)
        if kept.document["status"] not in ("READY", "CREATE_FAILED", "UPDATE_FAILED", "DELETE_FAILED"):
            raise Refused("ConflictException", "The harness is being changed.")
        return kept

    def _pass_on(self) -> None:
        """A listing is a look at everything: whoever asks for nothing else sees changes end all the same."""
        for harness_id in list(self.harnesses):
            with contextlib.suppress(Refused):
                self._looked(harness_id)

    def _looked(self, harness_id: str) -> Document:
        """The harness as a look finds it: each brings what is under way nearer to its end."""
        kept = self._kept(harness_id)
        if kept.document["status"] in ("CREATING", "UPDATING", "DELETING"):
            if kept.looks_left > 0:
                kept.looks_left -= 1
            elif kept.document["status"] == "DELETING":
                del self.harnesses[harness_id]
                raise Refused("ResourceNotFoundException", "No such harness.")
            else:
                kept.document["status"] = "READY"
        return dict(kept.document)

    def _kept(self, harness_id: str) -> Kept:
        if harness_id not in self.harnesses:
            raise Refused("ResourceNotFoundException", "No such harness.")
        return self.harnesses[harness_id]

    def _list(self, request: Request, names: list[str], key: str, shown: Any) -> Document:
        size = min(int(request.query.get("maxResults", ["100"])[0]), self.page)
        after = request.query.get("nextToken", [""])[0]
        left = [name for name in names if name > after]
        page = {key: [shown(name) for name in left[:size]]}
        return {**page, "nextToken": left[size - 1]} if len(left) > size else page

    def _summary(self, harness_id: str) -> Document:
        document = self.harnesses[harness_id].document
        shown = ("harnessId", "harnessName", "arn", "status", "createdAt", "updatedAt", "harnessVersion")
        return {key: document[key] for key in shown}

    def _create_endpoint(self, harness_id: str, asked: Document) -> Document:
        kept = self._kept(harness_id)
        name = asked["endpointName"]
        if name in kept.endpoints:
            raise Refused("ConflictException", "An endpoint of this name exists.")
        version = asked.get("targetVersion", kept.document["harnessVersion"])
        kept.endpoints[name] = {
            "harnessId": harness_id,
            "harnessName": kept.document["harnessName"],
            "endpointName": name,
            "arn": f"{kept.document['arn']}/harness-endpoint/{name}",
            "status": "READY",
            "createdAt": _now(),
            "updatedAt": _now(),
            "liveVersion": version,
            "targetVersion": version,
        }
        return {"endpoint": kept.endpoints[name]}

    def _endpoint(self, request: Request) -> Document:
        endpoints = self._kept(request.path[1]).endpoints
        if request.path[3] not in endpoints:
            raise Refused("ResourceNotFoundException", "No such endpoint.")
        return endpoints[request.path[3]]

    def _update_endpoint(self, request: Request, asked: Document) -> Document:
        endpoint = self._endpoint(request)
        version = asked.get("targetVersion", endpoint["targetVersion"])
        endpoint.update(targetVersion=version, liveVersion=version, updatedAt=_now())
        return {"endpoint": endpoint}

    def _tagged(self, request: Request) -> dict[str, str]:
        for kept in self.harnesses.values():
            if kept.document["arn"] == request.path[1]:
                return kept.tags
        raise Refused("ResourceNotFoundException", "No such resource.")


def _operation(request: Request) -> tuple[str, int]:
    match (request.method, request.path):
        case ("POST", ("harnesses",)):
            return "CreateHarness", 201
        case ("GET", ("harnesses",)):
            return "ListHarnesses", 200
        case (("GET" | "PATCH" | "DELETE") as method, ("harnesses", _)):
            return {"GET": "GetHarness", "PATCH": "UpdateHarness", "DELETE": "DeleteHarness"}[method], 200
        case ("POST", ("harnesses", _, "endpoints")):
            return "CreateHarnessEndpoint", 201
        case ("GET", ("harnesses", _, "endpoints")):
            return "ListHarnessEndpoints", 200
        case (("GET" | "PATCH" | "DELETE") as method, ("harnesses", _, "endpoints", _)):
            verb = {"GET": "Get", "PATCH": "Update", "DELETE": "Delete"}[method]
            return f"{verb}HarnessEndpoint", 200
        case ("POST", ("tags", _)):
            return "TagResource", 204
        case ("DELETE", ("tags", _)):
            return "UntagResource", 204
        case ("GET", ("tags", _)):
            return "ListTagsForResource", 200
        case _:
            said = f"The stand-in has no {request.method} /{'/'.join(request.path)}."
            raise Refused("ResourceNotFoundException", said)


def _suffix(number: int) -> str:
    """Ten characters of letters and digits, as ids end with."""
    letters, said = string.ascii_letters, ""
    while number:
        number, at = divmod(number, len(letters))
        said = letters[at] + said
    return said.rjust(10, "0")


def _now() -> str:
    return datetime.now(UTC).isoformat()

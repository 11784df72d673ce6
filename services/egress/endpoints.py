"""The endpoints of the operator file and their credentials, which are read for each request: a key that is rotated needs no restart."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from pydantic import SecretStr, ValidationError

from services.common.errors import ConfigurationError
from services.common.model_endpoints import MAX_ENDPOINTS, ModelEndpoint
from services.common.operator_section import resolved_token
from services.common.operator_yaml import read_yaml

SECTION: Final = "model_endpoints"


class CredentialMissing(Exception):
    """The endpoint's credential cannot be read now. The text is for the operator, names no value, and must not go into a sandbox."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint as the operator describes it."""

    entry: ModelEndpoint
    environment: Mapping[str, str] = field(repr=False)

    def credential(self) -> SecretStr:
        """The credential as it is now. Errors: `CredentialMissing`."""
        try:
            found = resolved_token(self.entry.credential_env, self.entry.credential_file, self.environment)
        except ValueError as error:
            # The shared reader speaks of a token; the keys of this section are called otherwise.
            problem = str(error).replace("token_file", "credential_file").replace("token_env", "credential_env")
            raise CredentialMissing(f"{SECTION} {self.entry.id!r}: {problem}") from None
        if found is None:
            raise CredentialMissing(f"{SECTION} {self.entry.id!r}: no credential is named.")
        return found

    def authorization(self) -> tuple[str, str]:
        """The header that carries the credential, and its value. Errors: `CredentialMissing`."""
        value = self.credential().get_secret_value()
        if self.entry.credential_header == "authorization":
            return "authorization", f"Bearer {value}"
        return self.entry.credential_header, value


def load_endpoints(path: Path, environment: Mapping[str, str] = os.environ) -> dict[str, Endpoint]:
    """The endpoints by id. Errors: `ConfigurationError` with every problem, each with file and place, and no value (I32)."""
    raw = read_yaml(path)
    entries: object = cast("dict[str, Any]", raw).get(SECTION, []) if isinstance(raw, dict) else []
    if not isinstance(entries, list) or len(cast("list[Any]", entries)) > MAX_ENDPOINTS:
        raise ConfigurationError(f"{path}: {SECTION} must be a list of at most {MAX_ENDPOINTS} endpoints.")
    endpoints: dict[str, Endpoint] = {}
    problems: list[str] = []
    for number, entry in enumerate(cast("list[Any]", entries)):
        where = f"{path}: {SECTION}[{number}]"
        try:
            endpoint = ModelEndpoint.model_validate(entry)
        except ValidationError as error:
            for problem in error.errors(include_input=False, include_context=False, include_url=False):
                key = "".join(f".{part}" for part in problem["loc"])
                problems.append(f"{where}{key}: {problem['msg'].removeprefix('Value error, ')}.")
            continue
        if endpoint.id in endpoints:
            problems.append(f"{where}.id: {endpoint.id!r} is given twice.")
        endpoints[endpoint.id] = Endpoint(endpoint, environment)
    if problems:
        raise ConfigurationError("\n".join(problems))
    return endpoints

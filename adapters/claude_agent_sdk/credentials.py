"""How the program reaches its model: through the egress with the run's own token, or with a credential of this process (I28)."""

import os
from collections.abc import Mapping
from pathlib import Path

from adapters.claude_agent_sdk.profile import Profile
from adapters.sdk.contract import Turn
from adapters.sdk.errors import AuthenticationError, ConfigurationError
from harness.common.v1 import placement_pb2

MODEL_AUDIENCE = "model"
FILE_VARIABLE = "ANTHROPIC_API_KEY_FILE"
KEY_VARIABLE = "ANTHROPIC_API_KEY"
ELSEWHERE = "-"
"""In the place of a file: each profile brings a credential of its own, or runs in a sandbox."""
MAX_CREDENTIAL_BYTES = 16 * 1024
_VARIABLES = {"api_key": "ANTHROPIC_API_KEY", "auth_token": "ANTHROPIC_AUTH_TOKEN"}
# The program asks for this name alone; who answers is on the other side of the socket.
_EGRESS_URL = "http://localhost"


def model_access(profile: Profile, turn: Turn) -> dict[str, str]:
    """Variables of the program with which one turn reaches its model. Raises ConfigurationError or AuthenticationError that says what is missing."""
    address = next((one.address for one in turn.construction.context.facades if one.audience == MODEL_AUDIENCE), None)
    if address is not None:
        return _through_egress(address, turn)
    if turn.construction.placement == placement_pb2.PLACEMENT_SANDBOX_POD:
        # I28: a sandbox holds no credential, whatever its profile names.
        raise ConfigurationError(
            "The profile runs in a sandbox and has no way to a model: give it a model_endpoint.",
            code="model_unreachable",
        )
    access = {_VARIABLES[profile.credential_kind]: credential(profile, os.environ)}
    if profile.base_url:
        access["ANTHROPIC_BASE_URL"] = profile.base_url
    return access


def _through_egress(address: str, turn: Turn) -> dict[str, str]:
    token = next((one.value for one in turn.raw.tokens if one.audience == MODEL_AUDIENCE), "")
    if not token:
        raise ConfigurationError("The run was given no token for its model.", code="model_token_missing")
    if address.startswith("unix:"):
        place = {"ANTHROPIC_UNIX_SOCKET": address.removeprefix("unix:"), "ANTHROPIC_BASE_URL": _EGRESS_URL}
    else:
        place = {"ANTHROPIC_BASE_URL": f"http://{address}"}
    return {"ANTHROPIC_AUTH_TOKEN": token, **place}


def credential(profile: Profile, environment: Mapping[str, str]) -> str:
    """The credential, read anew for every turn, so that it may be exchanged. Raises AuthenticationError that says where it was looked for, never a
    path: that is the operator's.
    """
    if profile.credential_env:
        return _given(environment.get(profile.credential_env, ""), "the variable that credential_env names")
    if profile.credential_file is not None:
        return _read(profile.credential_file, "the profile's credential_file")
    if (path := environment.get(FILE_VARIABLE, "")) and path != ELSEWHERE:
        return _read(Path(path), FILE_VARIABLE)
    where = f"the profile's credential_file or credential_env, or {FILE_VARIABLE} or {KEY_VARIABLE} of the adapter's process"
    return _given(environment.get(KEY_VARIABLE, ""), where)


def _read(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CREDENTIAL_BYTES + 1)
        if len(data) > MAX_CREDENTIAL_BYTES:
            raise AuthenticationError(f"The credential in {where} is too large to be one.", code="credential_invalid")
        return _given(data.decode("ascii").strip(), where)
    except OSError as error:
        raise AuthenticationError(
            f"The credential cannot be read: {where}: {error.strerror}.", code="credential_missing"
        ) from None
    except UnicodeDecodeError:
        raise AuthenticationError(f"The credential in {where} is no plain text.", code="credential_invalid") from None


def _given(value: str, where: str) -> str:
    if not value:
        raise AuthenticationError(f"There is no credential for the model: set {where}.", code="credential_missing")
    if not value.isascii() or not value.isprintable():
        raise AuthenticationError(f"The credential in {where} is no single line of text.", code="credential_invalid")
    return value

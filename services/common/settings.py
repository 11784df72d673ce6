"""Typed settings from the environment (twelve-factor, prefix `HARNESS_`), refused with one clear message when wrong (I32).

Every secret can come from a file instead: `HARNESS_X_FILE` names a file with the value of `HARNESS_X`.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from services.common.errors import ConfigurationError
from services.common.ids import MIN_IDENTITY_KEY_BYTES, Identity

PREFIX = "HARNESS_"
EXIT_CONFIGURATION = 2
MAX_SECRET_FILE_BYTES = 65_536
MAX_UNIX_PATH_BYTES = 103  # of the 108 of sockaddr_un, what every platform grants
MAX_REPLICAS = 64
MIN_TOKEN_CHARACTERS = 16
# pydantic-settings reports a list or mapping that is no JSON by text alone, and the text names the field.
_UNPARSED_FIELD = re.compile(r'error parsing value for field "(\w+)"')

S = TypeVar("S", bound="ProcessSettings")


def check_address(text: str) -> str:
    """A gRPC address: `unix:/path` (absolute, at most 103 bytes) or `host:port` (port 0 picks a free one). `ValueError` otherwise.

    No commas: they separate the addresses of a list.
    """
    if "," in text:
        raise ValueError("one address is wanted here, and no address has a comma in it")
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/"):
            raise ValueError("a unix address needs an absolute path, like unix:/run/harness/runs.sock")
        if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
            raise ValueError(
                f"the socket path has {len(os.fsencode(path))} bytes, the system allows {MAX_UNIX_PATH_BYTES}: use a shorter folder"
            )
        return text
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("expected unix:/path or host:port")
    return text


def split_addresses(text: str) -> tuple[str, ...]:
    """The addresses of a comma-separated list: those of the replicas of one service, at most 64, each once. `ValueError` otherwise."""
    addresses = tuple(check_address(part.strip()) for part in text.split(","))
    if len(addresses) > MAX_REPLICAS or len(set(addresses)) < len(addresses):
        raise ValueError(f"name each replica once, {MAX_REPLICAS} at most")
    return addresses


def _check_addresses(text: str) -> str:
    return ",".join(split_addresses(text))


def _split_list(value: object) -> object:
    """Several values in one variable or file: separated by commas or lines."""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, str):
        return tuple(part.strip() for part in value.replace("\n", ",").split(",") if part.strip())
    return value


def _check_tokens(tokens: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if not tokens:
        raise ValueError("at least one token is needed")
    for token in tokens:
        text = token.get_secret_value()
        if len(text) < MIN_TOKEN_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError(
                f"every token needs at least {MIN_TOKEN_CHARACTERS} printable ASCII characters without spaces"
            )
    return tokens


def _check_identity_key(key: SecretStr) -> SecretStr:
    if len(key.get_secret_value().encode("utf-8")) < MIN_IDENTITY_KEY_BYTES:
        raise ValueError(
            f"needs at least {MIN_IDENTITY_KEY_BYTES} bytes; the same random text on every service of the environment"
        )
    return key


Address = Annotated[str, AfterValidator(check_address)]
"""A setting that is a gRPC address."""

Addresses = Annotated[str, AfterValidator(_check_addresses)]
"""A setting that names a service: the addresses of its replicas, separated by commas; `channels.connect` takes it as it is."""

CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_list)]
"""A setting with several values, separated by commas."""

Tokens = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split_list), AfterValidator(_check_tokens)]
"""Service tokens, separated by commas or lines; all are accepted, the first is sent."""


class _SecretFiles(PydanticBaseSettingsSource):
    """`HARNESS_X_FILE` for every secret field `x`. A variable and its file at once are refused: which one counts must not be guessed."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = environment_variable(field_name)
        path = os.environ.get(variable + "_FILE", "")
        if not path or not _is_secret(field):
            return None, field_name, False
        if os.environ.get(variable):
            raise ConfigurationError(f"{variable} and {variable}_FILE are both set: keep one of them.")
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_SECRET_FILE_BYTES + 1)
            text = data.decode("utf-8")
        except OSError as error:
            raise ConfigurationError(f"{variable}_FILE: cannot read {path}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{variable}_FILE: {path} is not UTF-8 text.") from None
        if len(data) > MAX_SECRET_FILE_BYTES:
            raise ConfigurationError(
                f"{variable}_FILE: {path} is larger than {MAX_SECRET_FILE_BYTES} bytes: that is no secret."
            )
        return text.strip(), field_name, False

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, field in self.settings_cls.model_fields.items():
            value, key, _ = self.get_field_value(field, name)
            if value is not None:
                values[key] = value
        return values


class ProcessSettings(BaseSettings):
    """What every process of the mesh is told."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", hide_input_in_errors=True, env_ignore_empty=True
    )

    environment: Annotated[
        str,
        Field(
            pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
            description="Name of the environment; part of every binding id, so it never changes.",
        ),
    ] = "local"
    service_tokens: Annotated[
        Tokens,
        Field(description="Service credentials: all are accepted (rotation), the first is sent to other services."),
    ]
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="The least severe level that is logged.")
    ] = "info"
    log_format: Annotated[
        Literal["json", "console"], Field(description="One JSON object a line, or text for people.")
    ] = "json"
    metrics_listen: Annotated[
        Address | None, Field(description="`host:port` of the Prometheus listener; none when empty.")
    ] = None
    shutdown_grace_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=3600,
            description="Seconds that running calls get to finish after SIGTERM before they are cancelled.",
        ),
    ] = 10.0
    otel_enabled: Annotated[
        bool, Field(description="Export OpenTelemetry spans (the OTEL_* variables say where to).")
    ] = False

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, _SecretFiles(settings_cls)

    @property
    def outgoing_token(self) -> SecretStr:
        """The credential to send to other services: the first of `service_tokens`."""
        return self.service_tokens[0]

    @classmethod
    def from_environment(cls) -> Self:
        """The settings, or `ConfigurationError` with every problem in one text, without any value of a secret."""
        try:
            return cls.model_validate({})
        except ValidationError as error:
            raise ConfigurationError("\n".join(_problems(cls, error))) from None


class ServiceSettings(ProcessSettings):
    """What every gRPC service is told on top."""

    listen: Annotated[Address, Field(description="Where the service listens: `unix:/path` or `host:port`.")]
    data_dir: Annotated[
        Path, Field(description="Folder for what the service keeps on this machine; made when missing.")
    ]
    store_url: Annotated[
        SecretStr | None,
        Field(
            description="Record store: `mongodb://host/database`, one for all services, or `sqlite:///path`, one file a service; a file in the "
            "data folder when empty."
        ),
    ] = None
    store_pool_size: Annotated[
        int, Field(ge=1, le=500, description="Connections this process opens to a MongoDB server at most (I35).")
    ] = 32
    store_timeout_seconds: Annotated[
        float,
        Field(
            ge=0.1,
            le=300,
            description="Seconds one call to MongoDB may take, the wait for a connection and for a primary included (I34, I35).",
        ),
    ] = 5.0
    identity_key: Annotated[
        SecretStr,
        AfterValidator(_check_identity_key),
        Field(description="Key of the digests in every id; the same on every service, for ever."),
    ]
    default_deadline_seconds: Annotated[
        float, Field(gt=0, le=3600, description="Seconds a unary call may take when its caller set no deadline (I35).")
    ] = 30.0
    max_concurrent_rpcs: Annotated[
        int,
        Field(
            ge=1, le=100_000, description="Calls and streams served at once; one more is refused with `capacity` (I35)."
        ),
    ] = 10_000

    def identity(self) -> Identity:
        """The maker of binding ids and owner digests of this environment (I1)."""
        return Identity(self.identity_key.get_secret_value().encode("utf-8"), self.environment)


def load_settings(settings_class: type[S]) -> S:
    """The settings; or one clear message on stderr and exit code 2 (I32). For `__main__` alone."""
    try:
        return settings_class.from_environment()
    except ConfigurationError as error:
        sys.stderr.write(f"configuration error: {error}\n")
        raise SystemExit(EXIT_CONFIGURATION) from None


def environment_variable(field_name: str) -> str:
    """The variable of a settings field."""
    return PREFIX + field_name.upper()


def settings_table(settings_class: type[ProcessSettings]) -> str:
    """A Markdown table of every setting of a class, for the generated reference."""
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, field in settings_class.model_fields.items():
        variable = environment_variable(name)
        secret = _is_secret(field)
        label = f"`{variable}` or `{variable}_FILE`" if secret else f"`{variable}`"
        default = (
            "**required**"
            if field.is_required()
            else "(secret)"
            if secret and field.default is not None
            else _default_text(field)
        )
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(
            f"| {label} | {_type_text(field.annotation).replace('|', chr(92) + '|')} | {default} | {meaning} |"
        )
    return "\n".join(lines) + "\n"


def _problems(settings_class: type[ProcessSettings], error: ValidationError) -> Iterator[str]:
    # The input is left out on purpose: it may be a secret that ended up in the wrong variable.
    for problem in error.errors(include_input=False, include_context=False, include_url=False):
        unparsed = _UNPARSED_FIELD.search(problem["msg"])
        if unparsed is not None:
            yield f"{environment_variable(unparsed[1])}: expected JSON. Meaning: {settings_class.model_fields[unparsed[1]].description}"
            continue
        name = str(problem["loc"][0]) if problem["loc"] else ""
        field = settings_class.model_fields.get(name)
        if field is None:
            yield f"{name or settings_class.__name__}: {problem['msg'].removeprefix('Value error, ')}."
            continue
        variable = environment_variable(name)
        source = f"{variable} or {variable}_FILE" if _is_secret(field) else variable
        if problem["type"] == "missing":
            yield f"{source} is not set: {field.description}"
        else:
            yield f"{source}: {problem['msg'].removeprefix('Value error, ')}. Meaning: {field.description}"


def _is_secret(field: FieldInfo) -> bool:
    return any(part is SecretStr for part in _type_parts(field.annotation))


def _type_parts(annotation: object) -> Iterator[object]:
    yield annotation
    for argument in get_args(annotation):
        yield from _type_parts(argument)


def _type_text(annotation: object) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(annotation))
    names = [
        part.__name__
        for part in _type_parts(annotation)
        if isinstance(part, type) and part not in (type(None), NoDecode) and not get_args(part)
    ]
    simple = {
        "SecretStr": "secret",
        "str": "text",
        "int": "whole number",
        "float": "number",
        "bool": "true or false",
        "Path": "path",
        "tuple": "list",
    }
    return ", ".join(dict.fromkeys(simple.get(name, name) for name in names))


def _default_text(field: FieldInfo) -> str:
    default: object = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, bool):
        return "`true`" if default else "`false`"
    return "none" if default is None or default == () else f"`{default}`"

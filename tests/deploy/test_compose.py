"""What can be known of the compose file without starting it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from services.catalog.operator_file import load_operator_file
from services.catalog.settings import CatalogSettings
from services.common.capability_token import generate_private_key
from services.gateway.settings import GatewaySettings
from services.runs.settings import RunsSettings
from services.sandbox.settings import SandboxSettings
from services.sessions.settings import SessionsSettings
from tests.deploy.test_images import STAGES

FOLDER = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
OURS = {name: service for name, service in COMPOSE["services"].items() if "build" in service}
SETTINGS = {
    "catalog": CatalogSettings,
    "sessions": SessionsSettings,
    "runs": RunsSettings,
    "sandbox": SandboxSettings,
    "gateway": GatewaySettings,
}


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_built_and_confined(name):
    service = OURS[name]
    assert service["build"]["target"] == name
    assert name in STAGES
    assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    # One or the other: a service with neither would be on the default network.
    assert ("networks" in service) != (service.get("network_mode") == "none")


def test_every_image_has_a_version():
    for service in COMPOSE["services"].values():
        _, _, tag = service["image"].rpartition(":")
        assert tag[0].isdigit(), service["image"]


def test_what_is_used_is_declared():
    for name, service in COMPOSE["services"].items():
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert {volume for volume in volumes if not volume.startswith(".")} <= COMPOSE["volumes"].keys(), name
        assert all((FOLDER / volume).is_file() for volume in volumes if volume.startswith(".")), name
        assert set(service.get("networks", ())) <= COMPOSE["networks"].keys(), name
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys(), name


def test_an_adapter_has_no_secret_no_network_and_no_socket_of_a_service():
    adapter = OURS["adapter-reference"]
    assert "secrets" not in adapter
    assert adapter["network_mode"] == "none"
    assert adapter["volumes"] == ["adapters:/run/harness/adapters"]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_those_of_the_service(name, monkeypatch, tmp_path):
    given = OURS[name]["environment"]
    known = {f"HARNESS_{field.upper()}" for field in SETTINGS[name].model_fields}
    assert {
        variable.removesuffix("_FILE") if variable.startswith("HARNESS_") and variable not in known else variable
        for variable in given
    } <= known
    for variable in [variable for variable in os.environ if variable.startswith("HARNESS_")]:
        monkeypatch.delenv(variable)
    for variable, value in given.items():
        if value.startswith("/run/secrets/"):
            secret = value.removeprefix("/run/secrets/")
            assert secret in OURS[name]["secrets"]
            value = str(_secret(secret, tmp_path))
        monkeypatch.setenv(variable, value)
    SETTINGS[name].from_environment()


def test_the_operator_file_is_valid(tmp_path):
    operator = load_operator_file(FOLDER / "harness.yaml", tmp_path, {})
    (adapter,) = operator.adapters.values()
    assert adapter.address == OURS["adapter-reference"]["environment"]["HARNESS_LISTEN"]


def test_the_health_check_tells_a_dead_service_from_a_living_one(tmp_path):
    environment = {**os.environ, "HARNESS_LISTEN": f"unix:{tmp_path}/nobody.sock"}
    for arguments in ([], ["--http"]):
        answer = subprocess.run([sys.executable, FOLDER / "health.py", *arguments], env=environment, check=False)
        assert answer.returncode == 1


class _Overlay(yaml.SafeLoader):
    """Reads what docker compose adds to YAML: `!override` replaces a list instead of adding to it."""


def _list(loader: yaml.SafeLoader, node: yaml.Node) -> list[Any]:
    assert isinstance(node, yaml.SequenceNode)
    return loader.construct_sequence(node)


_Overlay.add_constructor("!override", _list)
REPLICAS = yaml.load((FOLDER / "compose.replicas.yaml").read_text("utf-8"), _Overlay)["services"]  # noqa: S506 - a safe loader


@pytest.mark.parametrize("name", REPLICAS)
def test_the_settings_with_replicas_are_those_of_the_service(name, monkeypatch, tmp_path):
    service = name.removesuffix("-2")
    changed = REPLICAS[name]
    if name != service:
        assert changed["extends"] == {"file": "compose.yaml", "service": service}
    given = OURS[service]["environment"] | changed["environment"]
    for variable in [variable for variable in os.environ if variable.startswith("HARNESS_")]:
        monkeypatch.delenv(variable)
    for variable, value in given.items():
        if value.startswith("/run/secrets/"):
            value = str(_secret(value.removeprefix("/run/secrets/"), tmp_path))
        monkeypatch.setenv(variable, value)
    settings = SETTINGS[service].from_environment()
    # Each address that is named is one that is listened on, by a replica of that service.
    listening = {OURS[each.removesuffix("-2")]["environment"]["HARNESS_LISTEN"] for each in REPLICAS} | {
        replica["environment"].get("HARNESS_LISTEN") for replica in REPLICAS.values()
    }
    for field in ("catalog_address", "sessions_address", "runs_address"):
        addresses = getattr(settings, field, "")
        if addresses:
            assert len(addresses.split(",")) == 2
            assert set(addresses.split(",")) <= listening


def test_replicas_listen_apart():
    listen = [REPLICAS[name]["environment"].get("HARNESS_LISTEN") for name in REPLICAS if name.endswith("-2")]
    sockets = [address for address in listen if address]
    assert len(set(sockets)) == len(sockets) == 3
    assert REPLICAS["gateway-2"]["ports"] == ["127.0.0.1:8011:8010"]
    facades = [REPLICAS["sessions-2"]["environment"], OURS["sessions"]["environment"]]
    assert {each["HARNESS_FACADE_LISTEN"] for each in facades} == set(
        REPLICAS["runs"]["environment"]["HARNESS_STATE_FACADE_ADDRESS"].split(",")
    )


def _secret(name: str, folder: Path) -> Path:
    """A secret of the right kind, as a file."""
    private = generate_private_key()
    public = load_pem_private_key(private.encode(), None).public_key()
    values = {
        "capability-private": private,
        "capability-public": public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
    }
    path = folder / name
    path.write_text(values.get(name, "0123456789abcdef" * 4))
    return path

"""`harness up --replicas`: what may be asked for, and what one gets."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from cli.mesh.replicas import parse_replicas
from services.common.errors import ConfigurationError
from tests.support.mesh import HARNESS, running_mesh
from tests.support.processes import ProcessHandle


def test_what_is_asked_for() -> None:
    replicas = parse_replicas(" runs=2, gateway = 3")
    assert {name: list(replicas.of(name)) for name in ("runs", "gateway", "sessions")} == {
        "runs": [1, 2],
        "gateway": [1, 2, 3],
        "sessions": [1],
    }
    assert list(replicas.ports(8010)) == [8010, 8011, 8012]
    assert list(replicas.ports(0)) == [0, 0, 0]
    assert list(replicas.ports(65_533)) == [65_533, 65_534, 65_535]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not service=number"),
        ("runs", "'runs' is not service=number"),
        ("runs=", "is not service=number"),
        ("runs=two", "'runs=two' is not service=number"),
        ("runs=-1", "is not service=number"),
        ("runs=0", "runs may have 1 to 16 processes, not 0"),
        ("runs=17", "runs may have 1 to 16 processes, not 17"),
        ("runs=" + "9" * 5000, "1 to 16"),
        ("runs=2,runs=3", "runs is named twice"),
        ("sandbox=2", "'sandbox' cannot have replicas; these can: catalog, sessions, runs, gateway"),
        ("runs=2;gateway=2", "is not service=number"),
    ],
)
def test_i32_what_cannot_be_had_says_why(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match="--replicas") as caught:
        parse_replicas(text)
    assert said in str(caught.value)


def test_i32_there_must_be_a_port_for_each_gateway() -> None:
    with pytest.raises(ConfigurationError, match="2 gateways on consecutive ports from 65535 would need port 65536"):
        parse_replicas("gateway=2").ports(65_535)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--replicas", "adapter=2"], "cannot have replicas"), (["--replicas", "gateway=2", "--port", "65535"], "--port")],
)
def test_i32_the_command_says_it_and_starts_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [str(HARNESS), "up", "--data-dir", str(tmp_path / "data"), *arguments],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert not (tmp_path / "data").exists()


def test_every_port_of_the_gateways_must_be_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [str(HARNESS), "up", "--port", str(port - 1), "--replicas", "gateway=2", "--data-dir", str(tmp_path / "d")],
            capture_output=True,
            text=True,
            timeout=90,
        )
    assert done.returncode == 2
    assert "Address already in use" in done.stdout
    assert "starting" not in done.stdout


def test_replicas_are_started_named_and_restarted_one_by_one(tmp_path: Path) -> None:
    data_dir = tmp_path / "a,b"  # a comma separates addresses, so none may have one in it
    with running_mesh(data_dir, ["--replicas", "runs=2,sessions=2,catalog=2,gateway=2"]) as mesh:
        entries = {entry["name"]: entry for entry in mesh.state["processes"]}
        assert list(entries) == [
            "bus", "adapter-reference", "catalog", "catalog-2", "sessions", "sessions-2", "sandbox", "runs", "runs-2",
            "gateway", "gateway-2",
        ]  # fmt: skip
        assert {name: (entry["service"], entry["replica"]) for name, entry in entries.items() if "runs" in name} == {
            "runs": ("runs", 1),
            "runs-2": ("runs", 2),
        }
        assert entries["runs-2"]["address"].endswith("/runs-2.sock")
        assert (data_dir / "logs" / "runs-2.log").exists()
        urls = mesh.urls
        assert len(set(urls)) == 2
        assert mesh.url == urls[0] == entries["gateway"]["url"]
        assert all(url in mesh.said[-1] for url in urls), mesh.said
        for url in urls:
            with closing(mesh.client(url=url)) as client:
                assert client.get("/readyz").status_code == 200

        others = {name: mesh.pid(name) for name in entries if name not in ("runs-2", "gateway-2")}
        for name in ("runs-2", "gateway-2"):
            before = mesh.pid(name)
            mesh.kill(name)
            assert mesh.pid(name) not in (0, before)
        assert {name: mesh.pid(name) for name in others} == others, "one by one: the others were left alone"
        assert mesh.urls == urls, "a gateway that picked a free port keeps it over a restart"

        handles: list[ProcessHandle] = mesh.handles()
        assert mesh.stop() == 0
        assert all(handle.wait_gone(0) for handle in handles)

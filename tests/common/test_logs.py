"""Logs: one form for everything, and nothing in them that must not be."""

import json
import logging
from typing import Any, Literal

import pytest
from pydantic import SecretStr

from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger, log_incident
from tests.common.conftest import service_logs

CANARY = "canary-90"


def entries(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_entry_has_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    with service_logs():
        get_logger("x").info("run_taken", run_id="run_1", count=3)
    (entry,) = entries(capsys)
    assert {key: entry[key] for key in ("event", "run_id", "count", "level", "service", "logger")} == {
        "event": "run_taken",
        "run_id": "run_1",
        "count": 3,
        "level": "info",
        "service": "toy",
        "logger": "x",
    }


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_i22_what_must_not_be_logged_is_not(
    log_format: Literal["json", "console"], capsys: pytest.CaptureFixture[str]
) -> None:
    with service_logs(log_format, level="debug"):
        log = get_logger("x")
        forbidden = (
            "authorization",
            "Token",
            "prompt",
            "text",
            "arguments",
            "result",
            "subject",
            "password",
            "messages",
            "stderr",
        )
        log.info("a", **dict.fromkeys(forbidden, CANARY))
        log.info("b", nested={"deep": {"token": CANARY}, "list": [{"prompt": CANARY}]}, secret_value=SecretStr(CANARY))
        log.info("c", error=RuntimeError(CANARY), errors=[ValueError(CANARY)])
        try:
            raise RuntimeError(CANARY)
        except RuntimeError as error:
            log.exception("d")
            logging.getLogger("grpc").exception("e")
            logging.getLogger("asyncio").error("f", exc_info=error)
            log_incident(log, "g", error)
            log_incident(log, "h", ExceptionGroup(CANARY, [error]))
    shown = capsys.readouterr().err
    assert all(f"{name}" in shown for name in "abcdefgh")
    assert CANARY not in shown


def test_a_cause_is_described_and_our_own_reason_named(capsys: pytest.CaptureFixture[str]) -> None:
    with service_logs():
        try:
            try:
                raise HarnessError(Reason.CAPACITY, "full")
            except HarnessError as inner:
                raise OSError(28, CANARY) from inner
        except OSError as error:
            incident_id = log_incident(get_logger("x"), "failed", error, method="/a/B")
    (entry,) = entries(capsys)
    assert entry["incident_id"] == incident_id
    assert (entry["error"]["type"], entry["error"]["errno"]) == ("builtins.OSError", 28)
    assert entry["error"]["causes"][0]["reason"] == "capacity"


def test_i35_an_entry_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    with service_logs():
        endless: dict[str, Any] = {}
        endless["again"] = endless
        get_logger("x").info("long", value="v" * 100_000, endless=endless)
    assert len(capsys.readouterr().err) < 5_000


def test_the_level_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with service_logs(level="warning"):
        get_logger("x").info("quiet")
        logging.getLogger("other").info("quiet")
        get_logger("x").warning("loud")
    assert [entry["event"] for entry in entries(capsys)] == ["loud"]

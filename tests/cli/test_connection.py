"""Which mesh, as whom."""

from pathlib import Path

import pytest

from cli.connection import connection_from
from cli.errors import CommandError, ExitCode


@pytest.mark.parametrize(
    "url", ["", "http://127.0.0.1:8010", "http://localhost:1", "http://[::1]:8010/", "http://127.9.9.9"]
)
def test_this_machine_needs_nothing(url: str) -> None:
    connection = connection_from({"HARNESS_URL": url})
    assert connection.is_loopback
    assert (connection.token, connection.subject) == ("local-development-only", "local-user")
    assert not connection.url.endswith("/")


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:8010", "https://mesh.example", "http://127.0.0.1.example", "http://0.0.0.0:1"]
)
def test_i32_another_machine_needs_token_and_subject(url: str) -> None:
    for given, missing in (({}, "HARNESS_TOKEN"), ({"HARNESS_TOKEN": "secret"}, "HARNESS_SUBJECT")):
        with pytest.raises(CommandError, match=missing) as caught:
            connection_from({"HARNESS_URL": url, **given})
        assert caught.value.exit_code is ExitCode.USAGE
    connection = connection_from({"HARNESS_URL": url, "HARNESS_TOKEN": "secret", "HARNESS_SUBJECT": "alice"})
    assert (connection.token, connection.subject, connection.is_loopback) == ("secret", "alice", False)


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "127.0.0.1:8010", "http://", "http://127.0.0.1:99999", "http://u:p@127.0.0.1", "http://127.0.0.1/?x=1", "http://a\x1b"]
)  # fmt: skip
def test_a_wrong_url_is_named_and_never_repeated(url: str) -> None:
    with pytest.raises(CommandError, match="HARNESS_URL") as caught:
        connection_from({"HARNESS_URL": url})
    assert url not in f"{caught.value.message}{caught.value.hint}".replace("http://127.0.0.1:8010", "")


@pytest.mark.parametrize("name", ["HARNESS_TOKEN", "HARNESS_SUBJECT"])
@pytest.mark.parametrize("value", ["a\nb", "ä", "x" * 9000, "\x7f"])
def test_what_no_header_can_carry_is_refused_unseen(name: str, value: str) -> None:
    with pytest.raises(CommandError, match=name) as caught:
        connection_from({name: value})
    assert value not in caught.value.message


def test_a_token_comes_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert connection_from({"HARNESS_TOKEN_FILE": str(file)}).token == "from-file"
    with pytest.raises(CommandError, match="HARNESS_TOKEN_FILE"):
        connection_from({"HARNESS_TOKEN_FILE": str(tmp_path / "none")})


def test_i22_a_token_is_in_no_repr() -> None:
    assert "secret" not in repr(connection_from({"HARNESS_TOKEN": "secret"}))

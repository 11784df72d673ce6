"""AG-UI and custom streams of a real run, from every cursor."""

from __future__ import annotations

from collections.abc import Generator

import httpx
import pytest

from tests.e2e.turns import conversation, save_agent, start, watch
from tests.gateway.test_encodings import parse
from tests.support.mesh import RunningMesh, running_mesh

_MESSAGE = {
    "script": [
        {"reasoning": "hm"},
        {"text": "Hello there."},
        {"tool_result": {"id": "c1", "name": "search", "arguments": {"q": 1}, "result": {"hits": 2}}},
        {"text": "Done."},
        {"warning": {"code": "slow", "message": "It was slow."}},
        {"usage": {"input_tokens": 3}},
    ]
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh")) as mesh:
        yield mesh


def stream(client: httpx.Client, run_id: str, protocol: str, after: int) -> bytes:
    path = f"/api/v1/runs/{run_id}/events/stream"
    answer = client.get(path, params={"protocol": protocol}, headers={"Last-Event-ID": str(after)})
    assert answer.status_code == 200, answer.text
    return answer.content


def test_i8_a_real_run_in_every_encoding_from_every_cursor(mesh: RunningMesh) -> None:
    with mesh.client() as client:
        talk = conversation()
        run_id = start(client, save_agent(client), _MESSAGE, talk)
        last = watch(client, run_id)[-1].sequence
        for protocol in ("agui", "custom"):
            whole = stream(client, run_id, protocol, 0)
            frames = parse(whole)
            assert frames[-1][0] == last
            for after in range(1, last + 1):
                # An event's frames go together, the one with the id last.
                shown = [index for index, frame in enumerate(frames) if frame[0] is not None and frame[0] <= after]
                rest = b"".join(part + b"\n\n" for part in whole.split(b"\n\n")[shown[-1] + 1 if shown else 0 : -1])
                assert stream(client, run_id, protocol, after) == rest
            if protocol == "agui":
                assert frames[0][2]["threadId"] == talk
                assert [item["type"] for _, _, item in frames if item["type"].startswith(("TOOL", "RUN"))] == [
                    "RUN_STARTED",
                    "TOOL_CALL_START",
                    "TOOL_CALL_ARGS",
                    "TOOL_CALL_END",
                    "TOOL_CALL_RESULT",
                    "RUN_FINISHED",
                ]
                assert frames[-1][2]["usage"] == [{"inputTokens": 3}]
            else:
                assert {name for _, name, _ in frames} == {
                    "content",
                    "thinking",
                    "tool_start",
                    "tool_end",
                    "warning",
                    "done",
                }

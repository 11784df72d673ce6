"""`python -m services.gateway.reference` writes docs/reference/rest.md anew: the table and the settings come from the contracts and the code."""

import sys
from pathlib import Path

from services.common.errors import TABLE
from services.common.settings import settings_table
from services.gateway.openapi import operations_table
from services.gateway.operations import public_operations
from services.gateway.settings import GatewaySettings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rest.md"
_HEAD = """# REST and SSE

<!-- Written by `python -m services.gateway.reference`; change that, or the contracts, not this page. -->

The gateway translates the public gRPC services. Routes, this page, `/openapi.json` and `/docs` come from the contracts in `proto/`; there
is no rule and no state in the gateway, so it can be killed at any moment and a client goes on at another one.

## Every request

- `Authorization: Bearer <internal token>` and `X-Harness-Engine-Subject: <subject>` (1 to 256 printable ASCII characters), each exactly
  once; anything else is 401. A token anywhere else is not looked at, and an unknown query parameter is 422 without being quoted.
- `traceparent` is passed on when it has the exact W3C shape; otherwise a new one takes its place.
- A file is uploaded as the body alone, with its media type as `Content-Type`: no form, no `Content-Encoding`. It has at most
  `HARNESS_MAX_FILE_BYTES` (413), has to keep coming (`HARNESS_BODY_TIMEOUT_SECONDS` a piece) and be there within `HARNESS_FILE_TRANSFER_SECONDS` (408).
- Any other body is `application/json` in UTF-8 (415 otherwise), at most `HARNESS_MAX_BODY_BYTES` (413), and has to come within
  `HARNESS_BODY_TIMEOUT_SECONDS` (408, and the connection is closed). An operation without a body refuses one. Request line and headers have
  at most `HARNESS_MAX_HEADER_BYTES` together (431).
- Unknown paths are 404, unknown methods 405, what is no HTTP 400, in the same form as every failure.

## JSON

- Names are `snake_case`; enums are lower-case short names (`completed`, `sandbox_pod`); integers are numbers; times are RFC 3339 in UTC;
  durations `1.5s`; bytes base64.
- Answers always have every field: `""`, `0`, `false`, `[]`, `{}` when empty, and `null` for an absent object, optional value or enum. The
  `data` of events is the exception: what is absent or empty is left out (unknown usage stays absent), while numbers and booleans that
  cannot be absent are always there.
- In requests, `null` is the same as leaving a field out. Unknown fields, repeated keys, NaN and infinities, NUL characters, halves of
  surrogate pairs, numbers out of range or not exact as a double, and nesting beyond 32 levels are refused, all at once, each with its path.
- Map keys and keys of free-form objects are sorted, whole doubles are written as integers: the same content is the same bytes on every
  replica.

## Answers

Success is `{"success": true, "data": …}`; failure `{"success": false, "error": "<safe sentence>", "code": "<machine code>", "details":
[{"path", "code", "message"}, …]}`. Facts of an error (the `run_id` of a conflict, an `incident_id`) are members of a last entry of
`details` with an empty path. 429 and retryable 503 carry `Retry-After`.

## Events

An event is `{"run_id", "sequence", "event_type", "data", "created_at"}` in pages; a frame of a stream is `id: <sequence>`, `event: <type>`,
`data: <json of data>`. An event inside a subagent is `subagent.event` with `{"namespace", "event_type", "data"}`; `subagent.started` and
`subagent.completed` stay themselves and, inside another subagent, have its `namespace` in their data. With `protocol=agui` or `custom` a stream
shows the same log in [another encoding](stream-encodings.md).

A stream starts after `Last-Event-ID`, or else after `after`, and ends after the run's terminal event; past the end of a finished run it
ends at once, and a cursor older than what is kept is 410. Silence is filled with comments. A stream that ends without a terminal event is
resumed with the last id: the gateway stops, or could not reach the runs service for `HARNESS_STREAM_RETRY_SECONDS`. A subscriber that reads
nothing for `HARNESS_STREAM_STALL_SECONDS` is dropped; it delays nobody else.

## Files

`POST /api/v1/files` answers when the whole file is kept; one that breaks off leaves nothing. The content comes back with its media type
(`charset=utf-8` for text), `Content-Length`, `Content-Disposition: attachment` with the name made safe, `nosniff`, a policy that runs nothing,
and `no-store`. A download that breaks off is shorter than its length. See [Send files](../how-to/send-files.md).

## Operations

"""


def reference() -> str:
    """The whole page."""
    codes = "\n".join(
        f"| `{reason.value}` | {rule.http_status} |" for reason, rule in TABLE.items() if reason.value.islower()
    )
    return (
        f"{_HEAD}{operations_table(public_operations())}\n"
        "Without a credential: `GET /healthz`, `/readyz` (503 unless catalog and runs are ready; sessions and harnesses are shown and change nothing), "
        "`/metrics`, `/openapi.json`, `/docs`.\n\n"
        f"## Codes\n\n| code | status |\n|---|---|\n{codes}\n\n"
        f"## Settings\n\n{settings_table(GatewaySettings)}"
    )


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(reference())
    sys.stderr.write(f"wrote {PAGE}\n")

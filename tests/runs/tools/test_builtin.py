"""The built-in tools: arithmetic, the clock, and HTTP GET that reaches nothing but what an operator allows."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.runs.tools.providers.addresses import AllowList, NotAllowed
from services.runs.tools.providers.builtin import BUILTIN, BuiltinProvider
from services.runs.tools.providers.calculator import NotArithmetic, value_of
from services.runs.tools.providers.http_get import HttpGet, Resolve
from services.runs.tools.providers.port import ProviderCall, ProviderFailed
from services.runs.tools.record import Ended, Outcome
from tests.runs.tools.stand import StandClock

# --- the calculator ---


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("0.1 + 0.2", "0.3"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("2 ** -1", "0.5"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7 % -3", "-2"),
        ("1e3 / 8", "125"),
        ("0 * -1", "0"),
        ("0 ** 1", "0"),
        (".5 + 1.", "1.5"),
        ("10 ** 100", "1E+100"),
        ("--+5", "5"),
    ],
)
def test_an_expression_has_its_value(expression: str, value: str) -> None:
    assert value_of(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", "1 +", "(1", "1)", "1 2", "a", "__import__('os')", "1 if 1 else 2", "1 / 0", "1 // 0", "1 % 0", "0 ** 0", "0 ** -1", "(-1) ** 0.5",
        "9 ** 9 ** 9", "1e9999 * 1e9999", "2 ** 10001", "(" * 60 + "1" + ")" * 60, "-" * 60 + "1", "1" * 2_000, "1 ** " * 60 + "1", "1e99999", "²",
    ],
)  # fmt: skip
def test_i35_what_has_no_bounded_value_is_refused(expression: str) -> None:
    with pytest.raises(NotArithmetic):
        value_of(expression)


async def test_the_calculator_and_the_clock_answer() -> None:
    provider = BuiltinProvider(StandClock())
    assert json.loads((await provider.invoke(call("calculator", {"expression": "2*21"}))).result) == {"value": "42"}
    wrong = await provider.invoke(call("calculator", {"expression": "1/0"}))
    assert wrong.failure is not None
    assert wrong.failure.code == "not_arithmetic"
    for zone, offset in (("UTC", "+00:00"), ("Asia/Kolkata", "+05:30")):
        told = json.loads((await provider.invoke(call("clock", {"timezone": zone}))).result)
        assert (told["timezone"], told["time"][-6:]) == (zone, offset)
    for zone in ("No/Where", "../../etc/passwd", "/etc/passwd"):
        unknown = await provider.invoke(call("clock", {"timezone": zone}))
        assert unknown.failure is not None
        assert unknown.failure.code == "timezone_unknown"
    with pytest.raises(ProviderFailed):
        await provider.invoke(call("unknown", {}))
    assert BUILTIN == "builtin"


# --- what may be reached ---

LISTED = AllowList.of({"hosts": ["Example.org", "*.wide.example", "port.example:8443", "10.0.0.1", "[2001:db8::1]"]})


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org", "http://EXAMPLE.org./x?y#z", "https://a.wide.example/", "https://a.b.wide.example/", "https://port.example:8443/",
        "http://10.0.0.1/", "https://[2001:db8::1]/",
    ],
)  # fmt: skip
def test_a_listed_host_may_be_asked_for(url: str) -> None:
    LISTED.target(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example", "https://wide.example/", "https://example.org:8443/", "https://port.example/", "ftp://example.org/", "file:///etc/passwd",
        "example.org", "https://user:pass@example.org/", "https://user@example.org/", "https://example.org@evil.example/", "https://example.org\\@evil.example/",
        "https://example.org /", "https://example.org:99999/", "https://[::1", "https://exämple.org/", "https:///x", "https://notexample.org/",
        "https://example.org.evil.example/", "http://167772161/", "http://0x0a000001/",
    ],
)  # fmt: skip
def test_ssrf_no_other_host_may_be_asked_for(url: str) -> None:
    with pytest.raises(NotAllowed):
        LISTED.target(url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", str(ipaddress.IPv4Address(0)), "255.255.255.255", "224.0.0.1",
        "::1", "::",
        "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::",
        "2001:0:4136:e378:8000:63bf:80ff:fffe", "fec0::1", "192.0.0.9", "192.0.0.170", "198.18.0.1", "240.0.0.1", "100::1", "5f00::1", "::8.8.8.8",
    ],
)  # fmt: skip
def test_ssrf_no_address_that_is_not_public_is_connected_to(address: str) -> None:
    with pytest.raises(NotAllowed):
        LISTED.check_address(address)


def test_a_network_that_an_operator_lists_is_reached_and_no_other() -> None:
    listed = AllowList.of({"hosts": ["x"], "networks": ["10.1.0.0/16", "fd00:1::/32"]})
    for address in ("10.1.2.3", "fd00:1::5", "93.184.216.34", "2606:4700::1111"):
        listed.check_address(address)
    for address in ("10.2.0.1", "127.0.0.1", "fd00:2::1"):
        with pytest.raises(NotAllowed):
            listed.check_address(address)


@pytest.mark.parametrize(
    "settings",
    [{}, {"hosts": []}, {"hosts": "example.org"}, {"hosts": [1]}, {"hosts": ["x"], "networks": ["10.0.0.0/99"]}],
)
def test_settings_that_allow_nothing_say_so(settings: dict[str, Any]) -> None:
    with pytest.raises(NotAllowed):
        AllowList.of(settings)


# --- HTTP GET ---


def call(tool_id: str, arguments: dict[str, Any], **more: Any) -> ProviderCall:
    facts: dict[str, Any] = {"settings": {}, "max_result_bytes": 1_000} | more
    return ProviderCall(tool_id, arguments, "tcl_1", "user", timeout_seconds=90, **facts)


class Site:
    """A real HTTP server on the loopback interface. `pages` are raw responses by path; `asked` the request heads that came."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        writer.write(self.pages[head.split(" ")[1]])
        writer.close()


def page(body: bytes, kind: str = "text/plain", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    await server.wait_closed()


async def loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def get(site: Site, path: str = "/", *, resolve: Resolve = loopback, **more: Any) -> Ended:
    """Fetch a page of the site under the name of a listed host."""
    hosts = more.pop("hosts", [f"site.example:{site.port}"])
    settings = {"hosts": hosts, "networks": more.pop("networks", ["127.0.0.0/8"])}
    url = more.pop("url", f"http://site.example:{site.port}{path}")
    return await HttpGet(resolve).invoke(call("http_get", {"url": url}, settings=settings, **more))


def code(ended: Ended) -> str:
    assert ended.failure is not None
    return ended.failure.code


async def test_a_page_is_fetched_by_name_from_the_checked_address(site: Site) -> None:
    site.pages["/a?b=c"] = page("grüße".encode("latin-1"), "text/plain; charset=iso-8859-1")
    ended = await get(site, "/a?b=c")
    assert json.loads(ended.result) == {"status": 200, "content_type": "text/plain", "text": "grüße"}
    assert f"host: site.example:{site.port}" in site.asked[0].lower()
    assert "cookie" not in site.asked[0].lower()


@pytest.mark.parametrize(
    "charset", ["utf-7", "unicode_escape", "raw_unicode_escape", "punycode", "idna", "hex", "no-such-one", ""]
)
async def test_i35_a_page_is_read_with_charsets_of_pages_alone(site: Site, charset: str) -> None:
    """Others of the language take minutes for a page of their choice (punycode), or make what no JSON can hold (utf-7)."""
    site.pages["/"] = page(b"+2AA- \\ud800 a-b", f"text/plain; charset={charset}")
    assert json.loads((await get(site)).result)["text"] == "+2AA- \\ud800 a-b"


async def test_an_error_of_the_site_is_a_result(site: Site) -> None:
    site.pages["/"] = page(b'{"no": 1}', "application/problem+json", "404 Not Found")
    ended = await get(site)
    assert ended.outcome is Outcome.SUCCESS
    assert json.loads(ended.result)["status"] == 404


async def test_ssrf_a_listed_name_that_resolves_to_the_inside_reaches_nothing(site: Site) -> None:
    site.pages["/"] = page(b"inside")
    assert code(await get(site, networks=[])) == "url_not_allowed"

    async def half(host: str, port: int) -> list[str]:
        return ["93.184.216.34", "127.0.0.1"]

    assert code(await get(site, networks=[], resolve=half)) == "url_not_allowed"
    assert site.asked == []


async def test_ssrf_the_name_is_resolved_once_and_the_checked_address_is_dialled(site: Site) -> None:
    site.pages["/"] = page(b"ok")
    answers = [["127.0.0.1"], ["169.254.169.254"]]

    async def rebinding(host: str, port: int) -> list[str]:
        return answers.pop(0)

    assert (await get(site, resolve=rebinding)).outcome is Outcome.SUCCESS
    assert len(answers) == 1


@pytest.mark.parametrize("target", ["http://elsewhere.example/", "//elsewhere.example/", "file:///etc/passwd"])
async def test_ssrf_a_redirect_is_held_to_the_list_too(site: Site, target: str) -> None:
    site.pages["/"] = page(b"", "text/plain", "302 Found", f"location: {target}")
    assert code(await get(site)) == "url_not_allowed"
    assert len(site.asked) == 1


async def test_ssrf_the_address_of_a_redirect_is_checked_too(site: Site) -> None:
    site.pages["/"] = page(b"", "text/plain", "302 Found", f"location: http://second.example:{site.port}/x")
    site.pages["/x"] = page(b"inside")

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "site.example" else ["127.9.9.9"]

    hosts = [f"site.example:{site.port}", f"second.example:{site.port}"]
    assert code(await get(site, hosts=hosts, networks=["127.0.0.1/32"], resolve=resolve)) == "url_not_allowed"
    assert len(site.asked) == 1


async def test_redirects_within_the_list_are_followed_and_bounded(site: Site) -> None:
    site.pages["/1"] = page(b"", "text/plain", "301 Moved", "location: /2")
    site.pages["/2"] = page(b"", "text/plain", "307 Temporary", "location: 3")
    site.pages["/3"] = page(b"there")
    assert json.loads((await get(site, "/1")).result)["text"] == "there"
    site.pages["/loop"] = page(b"", "text/plain", "302 Found", "location: /loop")
    assert code(await get(site, "/loop")) == "too_many_redirects"
    assert len(site.asked) == 3 + 4


async def test_i35_a_page_beyond_its_bound_is_not_read_on(site: Site) -> None:
    site.pages["/"] = page(b"x" * 1_001)
    assert code(await get(site)) == "result_too_large"


@pytest.mark.parametrize(
    ("kind", "headers"),
    [("image/png", ()), ("application/octet-stream", ()), ("text/plain", ("content-encoding: gzip",))],
)
async def test_what_is_no_text_is_not_told(site: Site, kind: str, headers: tuple[str, ...]) -> None:
    site.pages["/"] = page(b"\x89", kind, "200 OK", *headers)
    assert code(await get(site)) == "not_text"


async def test_a_site_that_breaks_off_is_a_passing_failure(site: Site) -> None:
    site.pages["/"] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 10\r\n\r\nabc"
    with pytest.raises(ProviderFailed) as failed:
        await get(site)
    assert (failed.value.code, failed.value.passing) == ("http_failed", True)

    async def nowhere(host: str, port: int) -> list[str]:
        raise OSError

    with pytest.raises(ProviderFailed) as failed:
        await get(site, resolve=nowhere)
    assert (failed.value.code, failed.value.reached) == ("host_not_found", False)


async def test_i11_a_site_that_redirects_to_a_host_without_address_was_asked(site: Site) -> None:
    site.pages["/"] = page(b"", "text/plain", "302 Found", f"location: http://second.example:{site.port}/x")

    async def resolve(host: str, port: int) -> list[str]:
        if host != "site.example":
            raise OSError
        return ["127.0.0.1"]

    hosts = [f"site.example:{site.port}", f"second.example:{site.port}"]
    with pytest.raises(ProviderFailed) as failed:
        await get(site, hosts=hosts, resolve=resolve)
    assert (failed.value.code, failed.value.reached) == ("host_not_found", True)

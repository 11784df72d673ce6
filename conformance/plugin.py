"""The cases as pytest items: `pytest -p conformance.plugin --certify-target ADDRESS --pyargs conformance.suite` (reference: certification)."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.capability_keys import SECTIONS
from conformance.cases import Case
from conformance.certification import Certifier, Options, chosen
from conformance.failure import TargetError
from conformance.results import CaseResult
from conformance.rules import ADAPTER, WORKER


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `harness certify`."""
    group = parser.getgroup("certification", "certify an adapter or worker endpoint")
    group.addoption("--certify-target", metavar="ADDRESS", help="unix:/path or host:port of the endpoint")
    group.addoption("--certify-placement", choices=(ADAPTER, WORKER), default=ADAPTER)
    group.addoption("--certify-section", type=int, action="append", choices=tuple(SECTIONS))
    group.addoption("--certify-driver", default="reference", metavar="NAME")
    group.addoption("--certify-replica", default="", metavar="ADDRESS")
    group.addoption("--certify-descriptor", default="", metavar="FILE|ADDRESS")
    group.addoption("--certify-facades", default="", metavar="HOST:PORT")
    group.addoption("--certify-pid", type=int, default=0, metavar="PID")
    group.addoption("--certify-token-file", default="", metavar="FILE")


def _options(config: pytest.Config) -> Options:
    def given(name: str) -> str:
        return str(config.getoption(f"--certify-{name}") or "")

    if not given("target"):
        raise pytest.UsageError("--certify-target is missing: give unix:/path or host:port of the endpoint.")
    sections: list[int] | None = config.getoption("--certify-section")
    return Options(
        target=given("target"),
        placement=given("placement"),
        sections=tuple(sections or SECTIONS),
        driver=given("driver"),
        token=Path(given("token-file")).read_text().strip() if given("token-file") else "",
        replica=given("replica"),
        descriptor=given("descriptor"),
        facades=given("facades"),
        pid=int(given("pid") or 0),
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """An item a case, in the order of their running."""
    if "certification_case" in metafunc.fixturenames:
        cases = chosen(_options(metafunc.config).sections)
        metafunc.parametrize("certification_case", cases, ids=[case.id for case in cases])


class Session:
    """A certification on an event loop of its own, for tests that know nothing of event loops."""

    def __init__(self, options: Options) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="certification", daemon=True)
        self._thread.start()
        self._certifier = Certifier(options)

    def enter(self) -> None:
        """Connects. Raises TargetError."""
        asyncio.run_coroutine_threadsafe(self._certifier.__aenter__(), self._loop).result()

    def run(self, case: Case) -> CaseResult:
        """What comes of one case."""

        return asyncio.run_coroutine_threadsafe(self._certifier.run(case), self._loop).result()

    def close(self) -> None:
        """Ends it all."""
        asyncio.run_coroutine_threadsafe(self._certifier.__aexit__(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def certification_session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """The certification that all cases of this session belong to."""
    session = Session(_options(request.config))
    try:
        session.enter()
    except TargetError as error:
        session.close()
        pytest.exit(f"{error} {error.hint}", returncode=pytest.ExitCode.USAGE_ERROR)
    yield session
    session.close()

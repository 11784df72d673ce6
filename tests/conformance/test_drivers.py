"""Drivers of authors, beside those of the kit."""

import sys
from pathlib import Path

import pytest

from conformance.drivers import driver_named
from conformance.failure import TargetError
from conformance.scenario import Say

OWN = """
from conformance.drivers.reference import ReferenceDriver

class Loud(ReferenceDriver):
    name = "loud"

    def talk(self, said):
        return said.upper()

class Stranger:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a driver in it that nothing else has on its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    (tmp_path / "loud_parrot.py").write_text(OWN)
    return tmp_path


def test_a_driver_of_an_author_is_found_in_the_current_folder(folder: Path) -> None:
    driver = driver_named("loud_parrot:Loud")
    assert (driver.name, driver.talk("hello")) == ("loud", "HELLO")
    assert driver.message((Say("x"),)) == driver_named("reference").message((Say("x"),))


@pytest.mark.parametrize(
    "name",
    ["crystal-ball", "no_such_module_here:Loud", "loud_parrot:Absent", "loud_parrot:Stranger", "json:dumps", ":"],
)
def test_what_is_no_driver_is_refused_with_what_to_do(folder: Path, name: str) -> None:
    with pytest.raises(TargetError, match="driver") as refused:
        driver_named(name)
    assert name in str(refused.value)
    assert refused.value.hint

"""Control groups that a killed service left are removed by the next to start; what lives, or belongs to one that lives, is left alone (I29)."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from services.sandbox.backends.local.cgroups import PARENT_PREFIX, Cgroups, Limits, find_cgroups
from tests.sandbox.mesh import control_groups

NAME = "lse_00000000000000000000000000"
LIMITS = Limits(memory_mib=64, max_pids=16, cpu_millis=0)


def made(name: str) -> Cgroups:
    found = find_cgroups(f"{PARENT_PREFIX}tests-{name}-{os.getpid()}")
    if isinstance(found, str):
        pytest.skip(f"no control groups can be made here: {found}")
    return found


@pytest.fixture
def living() -> Iterator[Cgroups]:
    found = made("living")
    yield found
    found.remove(NAME)
    found.close()


@pytest.fixture
def killed() -> Iterator[Cgroups]:
    """Of a service that was killed: its groups are there, and nobody holds them."""
    found = made("killed")
    found.create(NAME, LIMITS)
    yield found
    found.remove(NAME)
    found.close()


def there(groups: Cgroups) -> bool:
    return any(path.exists() for path in groups.paths(NAME))


def test_i29_what_a_killed_service_left_is_removed(living: Cgroups, killed: Cgroups) -> None:
    living.create(NAME, LIMITS)
    killed._let_go()  # what the kernel does for a process that is gone
    assert living.remove_unused() >= 1
    assert not there(killed)
    assert control_groups(killed.paths(NAME)[0].parent.name) == []
    assert there(living)


def test_i29_what_another_service_holds_is_left_although_nothing_lives_in_it(living: Cgroups, killed: Cgroups) -> None:
    living.remove_unused()
    assert there(killed)
    killed.create("lse_second", LIMITS)  # and it goes on making more
    assert killed.remove("lse_second")


def test_i29_a_group_with_a_process_in_it_is_left(living: Cgroups, killed: Cgroups) -> None:
    killed._let_go()
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    try:
        for path in killed.paths(NAME):
            (path / "cgroup.procs").write_text(str(process.pid))
        living.remove_unused()
        assert killed.pids(NAME) == {process.pid}
    finally:
        process.communicate()


def test_a_parent_that_is_removed_while_it_is_taken_is_made_anew(killed: Cgroups) -> None:
    killed._let_go()
    assert killed.remove(NAME)
    killed.close()
    assert not killed.hold()
    again = made("killed")
    assert again.create(NAME, LIMITS)
    assert again.remove(NAME)
    again.close()

"""Names of tools that every provider takes: reversible, bounded, never shared (worker protocol, facades; design 0003)."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog import tool_names
from services.catalog.tool_names import MAX_NAME, NamesCollide, names_of, provider_name

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", fullmatch=True)
# Ids that meet once what is unsafe is replaced, or that look like a mapped name.
CLOSE = st.one_of(
    st.from_regex(r"a[._:-]{1,3}b", fullmatch=True),
    st.from_regex(r"a[._]{70,72}", fullmatch=True),
    st.builds(provider_name, st.from_regex(r"a[.:]b", fullmatch=True)),
    st.builds(lambda tool_id: provider_name(provider_name(tool_id)), st.from_regex(r"a[.:]b", fullmatch=True)),
)


@given(IDS)
def test_a_name_is_safe_and_always_the_same(tool_id: str) -> None:
    assert NAME.fullmatch(provider_name(tool_id))
    assert provider_name(tool_id) == provider_name(tool_id)


@given(st.sets(st.one_of(IDS, CLOSE), max_size=30))
def test_names_lead_back_to_their_ids(tool_ids: set[str]) -> None:
    names = names_of(tool_ids)
    assert {name: tool_id for tool_id, name in names.items()} == {names[tool_id]: tool_id for tool_id in tool_ids}
    assert len(set(names.values())) == len(tool_ids)


@pytest.mark.parametrize("tool_id", ["calculator", "http_get", "a-b", "A" * MAX_NAME, "a__b", "a__0123456789abcde"])
def test_a_safe_id_is_its_own_name(tool_id: str) -> None:
    assert provider_name(tool_id) == tool_id


@pytest.mark.parametrize("tool_id", ["crm.find", "crm:find", "A" * (MAX_NAME + 1), "a__0123456789abcdef"])
def test_any_other_id_gets_a_stem_and_a_digest(tool_id: str) -> None:
    stem, mark, digest = provider_name(tool_id).rpartition("__")
    assert mark == "__"
    assert re.fullmatch(r"[0-9a-f]{16}", digest)
    assert tool_id.replace(".", "_").replace(":", "_").startswith(stem)
    assert len(stem) >= min(len(tool_id), 46)


def test_an_id_that_is_the_name_of_another_gets_a_name_of_its_own() -> None:
    taken = provider_name("crm.find")
    names = names_of(["crm.find", taken])
    assert names["crm.find"] == taken != names[taken]


def test_names_that_would_be_shared_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Digests that collide cannot be found in a test's time, so this one gives every id the same.
    same = hashlib.blake2b(b"", digest_size=8)
    monkeypatch.setattr(tool_names.hashlib, "blake2b", lambda *_, **__: same)
    with pytest.raises(NamesCollide, match=r"'a\.b' and 'a:b' would both be named"):
        names_of(["a.b", "a:b"])

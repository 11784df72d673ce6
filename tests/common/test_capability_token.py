"""Capability tokens: what they open, and every way in which one is refused."""

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass, replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from services.common import capability_token
from services.common.caller import Capability
from services.common.capability_token import CapabilitySigner, CapabilityVerifier, generate_private_key
from services.common.errors import HarnessError, Reason

CAPABILITY = Capability("harness.tool.v1.ToolBrokerService", "bnd_1", 2, 3, "run_1", ("t1", "t2"))


@dataclass
class HandClock:
    now: float = 1_000_000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def signer(clock: HandClock) -> CapabilitySigner:
    return CapabilitySigner(generate_private_key(), clock=clock)


@pytest.fixture
def verifier(signer: CapabilitySigner, clock: HandClock) -> CapabilityVerifier:
    return CapabilityVerifier([signer.public_key_pem], CAPABILITY.audience, clock=clock)


def refused(verifier: CapabilityVerifier, token: str) -> bool:
    with pytest.raises(HarnessError) as caught:
        verifier.verify(token)
    assert token == "" or token not in str(caught.value)
    return caught.value.reason is Reason.UNAUTHENTICATED


def test_a_token_opens_what_it_says(signer: CapabilitySigner, verifier: CapabilityVerifier) -> None:
    token = signer.sign(CAPABILITY, deadline_at=1_000_060.9)
    assert verifier.verify(token) == CAPABILITY
    assert verifier.verify(token) == CAPABILITY


def test_it_ends_with_the_run_also_when_remembered(
    signer: CapabilitySigner, verifier: CapabilityVerifier, clock: HandClock
) -> None:
    token = signer.sign(CAPABILITY, deadline_at=1_000_060.9)
    clock.now = 1_000_059.9
    assert verifier.verify(token) == CAPABILITY
    clock.now = 1_000_060.0
    assert refused(verifier, token)
    assert refused(CapabilityVerifier([signer.public_key_pem], CAPABILITY.audience, clock=clock), token)


def test_another_audience_is_refused(signer: CapabilitySigner, verifier: CapabilityVerifier) -> None:
    assert refused(verifier, signer.sign(replace(CAPABILITY, audience="harness.state.v1"), deadline_at=2e6))


def test_another_key_is_refused_also_under_a_known_key_id(
    signer: CapabilitySigner, verifier: CapabilityVerifier, clock: HandClock
) -> None:
    other = CapabilitySigner(generate_private_key(), clock=clock)
    assert refused(verifier, other.sign(CAPABILITY, deadline_at=2e6))
    known = jwt.get_unverified_header(signer.sign(CAPABILITY, deadline_at=2e6))["kid"]
    forged = jwt.encode(claims(), Ed25519PrivateKey.generate(), algorithm="EdDSA", headers={"kid": known})
    assert refused(verifier, forged)


def test_keys_rotate(signer: CapabilitySigner, clock: HandClock) -> None:
    newer = CapabilitySigner(generate_private_key(), clock=clock)
    both = CapabilityVerifier([newer.public_key_pem, signer.public_key_pem], CAPABILITY.audience, clock=clock)
    for each in (signer, newer):
        assert both.verify(each.sign(CAPABILITY, deadline_at=2e6)) == CAPABILITY


def claims(**changed: Any) -> dict[str, Any]:
    return {
        "iss": "harness",
        "aud": CAPABILITY.audience,
        "iat": 1_000_000,
        "exp": 2_000_000,
        "binding_id": "bnd_1",
        "epoch": 2,
        "runtime_generation": 3,
        "run_id": "run_1",
        "tool_ids": [],
        **changed,
    }


def encoded(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def test_the_header_does_not_choose_the_algorithm(signer: CapabilitySigner, verifier: CapabilityVerifier) -> None:
    known = jwt.get_unverified_header(signer.sign(CAPABILITY, deadline_at=2e6))["kid"]
    for algorithm in ("none", "None", "NONE"):
        assert refused(verifier, f"{encoded({'alg': algorithm, 'kid': known})}.{encoded(claims())}.")
    # The classic confusion: an HMAC whose key is the public key's text.
    body = f"{encoded({'alg': 'HS256', 'kid': known})}.{encoded(claims())}"
    mac = hmac.new(signer.public_key_pem.encode(), body.encode(), hashlib.sha256).digest()
    assert refused(verifier, f"{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}")


@pytest.mark.parametrize(
    "changed",
    [
        {"epoch": "2"},
        {"epoch": True},
        {"runtime_generation": 1.5},
        {"run_id": 7},
        {"tool_ids": "t1"},
        {"tool_ids": [1]},
        {"exp": "never"},
        {"aud": [CAPABILITY.audience, "harness.state.v1"]},
        {"iss": "someone"},
        *(
            {name: None}
            for name in ("aud", "exp", "iat", "iss", "binding_id", "epoch", "runtime_generation", "run_id", "tool_ids")
        ),
    ],
    ids=str,
)
def test_malformed_claims_are_refused_though_signed(changed: dict[str, Any], clock: HandClock) -> None:
    pem = generate_private_key()
    signer = CapabilitySigner(pem, clock=clock)
    verifier = CapabilityVerifier([signer.public_key_pem], CAPABILITY.audience, clock=clock)
    header = jwt.get_unverified_header(signer.sign(CAPABILITY, deadline_at=2e6))
    assert verifier.verify(jwt.encode(claims(), pem, algorithm="EdDSA", headers={"kid": header["kid"]}))
    bad = {name: value for name, value in claims(**changed).items() if value is not None}
    body = f"{encoded({'alg': 'EdDSA', 'typ': 'JWT', 'kid': header['kid']})}.{encoded(bad)}"
    signature = jwt.get_algorithm_by_name("EdDSA").sign(
        body.encode(), jwt.get_algorithm_by_name("EdDSA").prepare_key(pem)
    )
    assert refused(verifier, f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}")


@pytest.mark.parametrize(
    "text", ["", "x", "a.b.c", "\ud800", "é" * 10, "." * 50, "x" * 100_000], ids=lambda text: repr(text[:8])
)
def test_other_texts_are_refused(verifier: CapabilityVerifier, text: str) -> None:
    assert refused(verifier, text)


def test_every_changed_character_is_noticed(signer: CapabilitySigner, verifier: CapabilityVerifier) -> None:
    token = signer.sign(CAPABILITY, deadline_at=2e6)
    payload_start = token.index(".") + 1
    for position in range(0, len(token) - 2, 7):
        if position != payload_start - 1:
            changed = token[:position] + ("A" if token[position] != "A" else "B") + token[position + 1 :]
            assert refused(verifier, changed), position


def test_i35_the_memory_of_a_verifier_is_bounded(
    signer: CapabilitySigner, verifier: CapabilityVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capability_token, "CACHE_SIZE", 3)
    for number in range(10):
        verifier.verify(signer.sign(replace(CAPABILITY, epoch=number), deadline_at=2e6))
    assert len(verifier._verified) == 3  # the bound itself is what is tested


def test_keys_of_another_kind_are_refused() -> None:
    rsa = generate_rsa_key(65537, 2048)
    pem = rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with pytest.raises(ValueError, match="not an Ed25519 key"):
        CapabilitySigner(pem)
    with pytest.raises(ValueError, match="not an unencrypted PEM") as caught:
        CapabilitySigner("canary")
    assert "canary" not in str(caught.value)
    with pytest.raises(ValueError, match="at least one"):
        CapabilityVerifier([], "a")
    with pytest.raises(ValueError, match="PEM public key"):
        CapabilityVerifier(["x"], "a")


def test_i35_tools_are_bounded(signer: CapabilitySigner) -> None:
    with pytest.raises(ValueError, match="at most 256 tools"):
        signer.sign(replace(CAPABILITY, tool_ids=tuple(map(str, range(257)))), deadline_at=2e6)


def test_no_token_in_a_repr(signer: CapabilitySigner, verifier: CapabilityVerifier) -> None:
    token = signer.sign(CAPABILITY, deadline_at=2e6)
    verifier.verify(token)
    assert token not in f"{signer!r}{verifier!r}{CAPABILITY!r}"

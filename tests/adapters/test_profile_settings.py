"""The readers of a profile's settings: what is wrong is named by its key, and its value by nothing."""

import re
from typing import Any

import pytest

from adapters.sdk.errors import ConfigurationError
from adapters.sdk.profile_settings import (
    MAX_ENTRIES,
    MAX_TEXT_CHARACTERS,
    Reader,
    flag,
    json_object,
    list_of,
    mapping_of,
    matching,
    number,
    one_of,
    path,
    read_settings,
    text,
    url,
    whole,
)

CANARY = "canary-4c1d"
MANY = [CANARY] * (MAX_ENTRIES + 1)


@pytest.mark.parametrize(
    ("reader", "value", "read"),
    [
        (text, "a", "a"),
        (flag, False, False),
        (url, "https://models.example.com:8443/v1", "https://models.example.com:8443/v1"),
        (json_object, {"a": [1]}, {"a": [1]}),
        (one_of("a", "b"), "b", "b"),
        (matching(re.compile("[a-z]+"), "a word"), "word", "word"),
        (whole(1, 5), 5.0, 5),
        (number(0, 5), 1, 1.0),
        (list_of(text), ["a"], ("a",)),
        (mapping_of(whole(0, 1)), {"a": 1.0}, {"a": 1}),
    ],
)
def test_a_setting_is_read(reader: Reader[Any], value: object, read: object):
    assert read_settings({"key": value}, {"key": reader}) == {"key": read}


@pytest.mark.parametrize(
    ("reader", "value", "named"),
    [
        (text, "", "key must be a text"),
        (text, CANARY * MAX_TEXT_CHARACTERS, "key must be a text"),
        (path, 5, "key must be a text"),
        (flag, 1, "key must be true or false"),
        (url, f"ftp://{CANARY}", "key must be http:// or https://"),
        (url, f"https://{CANARY}@host", "key must be http:// or https://"),
        (url, f"https://host/?{CANARY}", "key must be http:// or https://"),
        (url, f"https://{CANARY}:port", "key must be http:// or https://"),
        (url, "https://", "key must be http:// or https://"),
        (json_object, [CANARY], "key must be an object"),
        (json_object, {"a": CANARY * 10_000}, "key must be an object"),
        (one_of("a", "b"), CANARY, "key must be one of a, b"),
        (matching(re.compile("[a-z]+"), "a word"), CANARY, "key must be a word"),
        (whole(1, 5), 1.5, "key must be a whole number from 1 to 5"),
        (whole(1, 5), True, "key must be a whole number from 1 to 5"),
        (whole(1, 5), float("nan"), "key must be a whole number from 1 to 5"),
        (number(0, 5), float("inf"), "key must be a number from 0 to 5"),
        (list_of(text), CANARY, "key must be a list"),
        (list_of(text), MANY, "key must be a list of at most 64 entries"),
        (list_of(text), ["a", 5], "key[1] must be a text"),
        (mapping_of(text), {"a": ""}, "key.a must be a text"),
        (mapping_of(text), {str(place): "a" for place in range(65)}, "key must be a mapping with at most 64 entries"),
    ],
)
def test_what_is_wrong_is_named_by_its_key_alone(reader: Reader[Any], value: object, named: str):
    with pytest.raises(ConfigurationError) as raised:
        read_settings({"key": value}, {"key": reader})
    assert raised.value.message.startswith(f"The profile's setting {named}")
    assert raised.value.code == "profile_invalid"
    assert CANARY not in raised.value.message


def test_an_unknown_key_is_told_with_those_that_there_are():
    with pytest.raises(ConfigurationError, match="no key 'kez'; use key, other") as raised:
        read_settings({"kez": CANARY}, {"other": text, "key": text})
    assert CANARY not in raised.value.message

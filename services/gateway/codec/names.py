"""Short names of enum values: `RUN_STATUS_COMPLETED` is `completed`."""

from functools import cache

from google.protobuf.descriptor import EnumDescriptor

_ZERO = "UNSPECIFIED"


@cache
def short_names(enum: EnumDescriptor) -> dict[int, str | None]:
    """Number to short name; the zero value, which says "not stated", has none."""
    prefix = enum.values_by_number[0].name.removesuffix(_ZERO)
    return {
        value.number: None if value.number == 0 else value.name.removeprefix(prefix).lower() for value in enum.values
    }


@cache
def numbers(enum: EnumDescriptor) -> dict[str, int]:
    """Short name to number, without the zero value."""
    return {name: number for number, name in short_names(enum).items() if name is not None}

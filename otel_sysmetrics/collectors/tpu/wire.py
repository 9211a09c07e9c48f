"""The three messages of the TPU runtime's metric service, as bytes.

The fields are those of tpu_metric_service.proto (https://github.com/google/cloud-accelerator-diagnostics). Coded by
hand, since generated code would tie us to one generation of protobuf, and the application to ours.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_LONGEST_VARINT: Final = 10
_MORE: Final = 0x80

# Of MetricResponse, TPUMetric, Metric, Attribute, AttrValue and Gauge.
_RESPONSE_METRIC: Final = 1
_METRICS: Final = 3
_ATTRIBUTE: Final = 1
_GAUGE: Final = 3
_COUNTER: Final = 4
_ATTRIBUTE_KEY: Final = 1
_ATTRIBUTE_VALUE: Final = 2
_TEXT_VALUE: Final = 1
_INT_VALUE: Final = 3
_LIST_VALUE: Final = 6
_LISTED: Final = 1
_AS_DOUBLE: Final = 1
_AS_INT: Final = 2

# What the device is called in a list of attributes, among others such as `core_type`.
_DEVICE_KEYS: Final = frozenset({b"device-id", b"device_id", b"device_ordinal"})
_MOST_DEVICES: Final = 1 << 31
_MOST_DIGITS: Final = 9


class Malformed(ValueError):
    """Bytes that are no such message."""


def request(name: str) -> bytes:
    """Return a MetricRequest for a metric."""
    return text_field(1, name)


def text_field(number: int, text: str) -> bytes:
    """Return a field of text."""
    data = text.encode()
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def supported(data: bytes) -> frozenset[str]:
    """Return the metric names of a ListSupportedMetricsResponse; raises Malformed."""
    return frozenset(
        name.decode("utf-8", "replace")
        for number, metric in fields(data)
        if number == 1 and isinstance(metric, bytes)
        for inner, name in fields(metric)
        if inner == 1 and isinstance(name, bytes)
    )


def values(data: bytes) -> dict[int, float]:
    """Return the numbers of a MetricResponse by device; raises Malformed.

    The device is the attribute's value, whatever its key: `device-id` and `device_id` are both in use. Of two rows for
    one device the first counts.
    """
    found: dict[int, float] = {}
    for metric in _inner(data, _RESPONSE_METRIC):
        for row in _inner(metric, _METRICS):
            device, value = _device(row), _number(row)
            if device is not None and value is not None:
                found.setdefault(device, value)
    return found


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message as (number, value), fixed ones as their bytes; raises Malformed."""
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        kind, number = key & 7, key >> 3
        if kind == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _read_varint(data, position)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise Malformed(f"wire type {kind}")
        if size > len(data) - position:
            raise Malformed("the message is cut short")
        yield number, data[position : position + size]
        position += size


def _inner(data: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, value in fields(data) if number == wanted and isinstance(value, bytes))


def _device(row: bytes) -> int | None:
    """Return the device that a row is about: an int, its digits, or either in a list of attributes."""
    for attribute in _inner(row, _ATTRIBUTE):
        for value in _inner(attribute, _ATTRIBUTE_VALUE):
            listed = (entry for entries in _inner(value, _LIST_VALUE) for entry in _inner(entries, _LISTED))
            named = (entry for entry in listed if _DEVICE_KEYS.intersection(_inner(entry, _ATTRIBUTE_KEY)))
            for candidate in (value, *(inner for entry in named for inner in _inner(entry, _ATTRIBUTE_VALUE))):
                device = _id(candidate)
                if device is not None:
                    return device
    return None


def _id(value: bytes) -> int | None:
    for number, content in fields(value):
        if number == _INT_VALUE and isinstance(content, int) and content < _MOST_DEVICES:
            return content
        if number == _TEXT_VALUE and isinstance(content, bytes) and content.isdigit() and len(content) <= _MOST_DIGITS:
            return int(content)
    return None


def _number(row: bytes) -> float | None:
    for measure in (_GAUGE, _COUNTER):
        for data in _inner(row, measure):
            for number, value in fields(data):
                if number == _AS_DOUBLE and isinstance(value, bytes) and len(value) == struct.calcsize("<d"):
                    return float(struct.unpack("<d", value)[0])
                if number == _AS_INT and isinstance(value, int):
                    return value - (1 << 64) if value >= 1 << 63 else value
    return None


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & 0x7F | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(_LONGEST_VARINT):
        if position + count >= len(data):
            raise Malformed("the message is cut short")
        byte = data[position + count]
        value |= (byte & 0x7F) << 7 * count
        if not byte & _MORE:
            return value & (1 << 64) - 1, position + count + 1
    raise Malformed("a number is too long")

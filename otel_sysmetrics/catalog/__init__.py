"""All specs, by tag template; every other list of tags or kinds follows from this one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.spec import MetricSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def _tables() -> Iterator[MetricSpec]:
    for module in sorted(iter_modules(__path__), key=lambda module: module.name):
        table = vars(import_module(f"{__name__}.{module.name}"))
        yield from (value for value in table.values() if isinstance(value, MetricSpec))


def _collect() -> Mapping[str, MetricSpec]:
    catalog: dict[str, MetricSpec] = {}
    for spec in _tables():
        if spec.tag in catalog:
            message = f"two specs share the tag {spec.tag!r}"
            raise ValueError(message)
        catalog[spec.tag] = spec
    return catalog


CATALOG: Final = _collect()
KINDS: Final = tuple(dict.fromkeys(kind for spec in CATALOG.values() for kind in spec.collectors))

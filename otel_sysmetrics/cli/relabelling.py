"""The rules by which a Prometheus scrape keeps the series that our filters keep.

A rule can only ask whether a whole text matches, so each pattern that is found leaves a flag in a label of its own, and
an entry holds where all its flags are up. The labels' values are matched each alone: joined, they could match across.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_sysmetrics.patterns import closed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_sysmetrics.cli.yaml import Node
    from otel_sysmetrics.endpoints import Filters

OURS: Final = "otel_sysmetrics_"
"""How the labels begin that the rules need on the way."""

KEPT: Final = f"{OURS}kept"
"""The label that tells what was scraped from what the scraper adds itself, such as `up`."""

OWN: Final = {label: f"{OURS}{label}" for label in ("job", "instance")}
"""Labels that the scraper needs for itself, and where the series' own are kept meanwhile."""

_NAME: Final = f"{OURS}name"
_FLAG: Final = f"{OURS}flag_"
_TARGET: Final = f"{OURS}target"
"""What the scraper puts where a series has no job or instance of its own: no exporter writes that."""


def target_rules() -> list[Node]:
    """Return the relabel_configs: a series' own job and instance may be the same as the target's true ones."""
    return [_set(label, _TARGET) for label in OWN]


def rules(endpoint: str, target: dict[str, str], filters: Filters) -> list[Node]:
    """Return the metric_relabel_configs of an endpoint whose own job and instance are `target`."""
    return [
        {"regex": f"{OURS}.*", "action": "labeldrop"},
        {"source_labels": ["__name__"], "regex": ".*_created", "action": "drop"},
        *_set_aside(target),
        *(_filters(endpoint, filters) if filters else [_set(KEPT)]),
        {"source_labels": [KEPT], "regex": "1", "action": "keep"},
        {"regex": f"{_NAME}|{_FLAG}.*", "action": "labeldrop"},
    ]


def _set_aside(target: dict[str, str]) -> Iterator[Node]:
    """Move the series' own job and instance, and give it those of the target."""
    for label, aside in OWN.items():
        yield {"source_labels": [label], "target_label": aside}
        yield {"source_labels": [aside], "regex": _TARGET, "target_label": aside, "replacement": ""}
        yield _set(label, target[label])


def _filters(endpoint: str, filters: Filters) -> Iterator[Node]:
    # In a replacement $ begins a group's number, and $$ is the character.
    prefix = endpoint.replace("$", "$$")
    yield {"source_labels": ["__name__"], "target_label": _NAME, "replacement": f"{prefix}.${{1}}"}
    for number, (pattern, labels) in enumerate(filters):
        if any(label == "__name__" for label, _ in labels):
            continue  # a label here and none in the collector, where it is missing
        asked = [(_NAME, pattern), *((OWN.get(label, label), wanted) for label, wanted in labels)]
        flags = [f"{_FLAG}{number}_{index}" for index in range(len(asked))]
        for flag, (label, wanted) in zip(flags, asked, strict=True):
            found = f"(?s:.*)(?-s:{closed(wanted)})(?s:.*)"
            yield {"source_labels": [label], "regex": found, "target_label": flag, "replacement": "1"}
            # To Prometheus a label that is missing is empty, which many a pattern matches.
            yield {"source_labels": [label], "regex": "", "target_label": flag, "replacement": ""}
        all_up = ";".join("1" for _ in flags)
        yield {"source_labels": flags, "regex": all_up, "target_label": KEPT, "replacement": "1"}


def _set(label: str, value: str = "1") -> Node:
    return {"target_label": label, "replacement": value.replace("$", "$$")}

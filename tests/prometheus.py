"""A real Prometheus, which tests send to or have scrape, and then ask."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import yaml

from tests.otelcol import free_ports, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BUILD = os.path.join(os.path.dirname(os.path.dirname(__file__)), "collector-config", "build-prometheus")


def find_binary(name: str = "prometheus") -> str | None:
    """Find $PROMETHEUS, else the one that `make prometheus` has cached, else one on PATH; likewise promtool."""
    named = os.environ.get(name.upper())
    if named:
        return named
    with open(BUILD, encoding="utf-8") as script:
        version = re.search(r"^version=(\S+)$", script.read(), re.MULTILINE)
    assert version is not None
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return shutil.which(os.path.join(cache, "otel-sysmetrics", f"{name}-{version[1]}")) or shutil.which(name)


class Prometheus:
    """One that runs at `url`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:  # noqa: ANN401 - JSON
        """Return the data that its API answers with."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as response:
            return json.load(response)["data"]

    def query(self, expression: str, timeout: float = 30) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series that an expression yields, as soon as there is one."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.get("query", query=expression)["result"]
            if found:
                return [(each["metric"], float(each["value"][1])) for each in found]
            names = self.get("label/__name__/values")
            assert time.monotonic() < deadline, f"{expression} yields nothing after {timeout} s; there are {names}"
            time.sleep(0.1)


@contextmanager
def prometheus_running(binary: str, folder: str, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """Run one that takes OTLP, with a configuration, as long as the block."""
    path = os.path.join(folder, "prometheus.yml")
    with open(path, "w", encoding="utf-8") as file:
        yaml.safe_dump(dict(config), file)
    (port,) = free_ports(1)
    command = (
        binary,
        f"--config.file={path}",
        f"--storage.tsdb.path={os.path.join(folder, 'tsdb')}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-otlp-receiver",
    )
    with running(command, (port,), {}):
        yield Prometheus(port)

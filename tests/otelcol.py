"""A real otelcol that tests send metrics to and read them back from."""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal

import yaml

MANIFEST = os.path.join(os.path.dirname(os.path.dirname(__file__)), "collector-config", "builder.yaml")

# Without a scheme that allows UTF-8 the exporter answers with every dot and slash of a name as an underscore.
ACCEPT_UTF8 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8"

_TEMPORALITIES: dict[int, Literal["delta", "cumulative"]] = {1: "delta", 2: "cumulative"}


@dataclass(frozen=True)
class Point:
    """One number point as otelcol received it."""

    name: str
    unit: str
    kind: Literal["gauge", "sum"]
    monotonic: bool
    temporality: Literal["delta", "cumulative"] | None
    value: int | float
    attributes: dict[str, Any]
    resource: dict[str, Any]
    scope_name: str
    scope_version: str
    start_time_ns: int
    time_ns: int


def find_binary() -> str | None:
    """Find $OTELCOL, else the one that `make otelcol` has cached, else one on PATH."""
    named = os.environ.get("OTELCOL")
    if named:
        return named
    with open(MANIFEST, "rb") as manifest:
        digest = hashlib.sha256(manifest.read()).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cached = os.path.join(cache, "otel-sysmetrics", f"otelcol-{digest[:12]}")
    return shutil.which(cached) or shutil.which("otelcol") or shutil.which("otelcol-contrib")


class Otelcol:
    """A running otelcol: OTLP in over HTTP and gRPC, out into a file and, if asked for, a Prometheus exporter.

    Each of `configs` is merged over that by otelcol itself: a mapping, or the path of a YAML file.
    """

    def __init__(
        self,
        binary: str,
        folder: str,
        *configs: Mapping[str, Any] | str,
        prometheus: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._output = os.path.join(folder, "metrics.jsonl")
        self._log = os.path.join(folder, "otelcol.log")
        self._read_bytes = 0
        self._points: list[Point] = []

        self._http, self._grpc, self._prometheus = free_ports(3)
        self.http_endpoint = f"http://127.0.0.1:{self._http}"
        self.grpc_endpoint = f"http://127.0.0.1:{self._grpc}"

        os.makedirs(folder, exist_ok=True)
        self._command = [binary]
        for number, config in enumerate((self._base_config(prometheus=prometheus), *configs)):
            path = config if isinstance(config, str) else os.path.join(folder, f"config-{number}.yaml")
            if not isinstance(config, str):
                with open(path, "w", encoding="utf-8") as file:
                    yaml.safe_dump(dict(config), file)
            self._command += ["--config", path]

    def _base_config(self, *, prometheus: bool) -> dict[str, Any]:
        exporters: dict[str, Any] = {
            # Appending keeps what was received before a restart.
            "file": {"path": self._output, "flush_interval": "200ms", "append": True}
        }
        if prometheus:
            exporters["prometheus"] = {
                "endpoint": f"127.0.0.1:{self._prometheus}",
                "translation_strategy": "NoTranslation",
            }
        protocols = {"http": self._http, "grpc": self._grpc}
        return {
            "receivers": {
                "otlp": {
                    "protocols": {name: {"endpoint": f"127.0.0.1:{port}"} for name, port in protocols.items()},
                }
            },
            "exporters": exporters,
            "service": {
                "telemetry": {"metrics": {"level": "none"}},  # else it binds port 8888
                "pipelines": {"metrics": {"receivers": ["otlp"], "exporters": list(exporters)}},
            },
        }

    def start(self, timeout: float = 30) -> None:
        """Start otelcol and return once its OTLP receivers accept connections."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        deadline = time.monotonic() + timeout
        while not (accepts(self._http) and accepts(self._grpc)):
            if self._process.poll() is not None:
                message = f"otelcol ended with status {self._process.returncode}:\n{self.log()}"
                raise RuntimeError(message)
            if time.monotonic() > deadline:
                self.stop()
                message = f"otelcol accepts no connection after {timeout} s:\n{self.log()}"
                raise TimeoutError(message)
            time.sleep(0.05)

    def stop(self, timeout: float = 10) -> None:
        """End otelcol, at first gently so that it writes what it holds; a second call does nothing."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stop and start again, on the same ports."""
        self.stop()
        self.start()

    def log(self) -> str:
        """Return what otelcol has logged so far."""
        with open(self._log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def points(self) -> list[Point]:
        """Return every number point written so far, in the order of arrival."""
        with contextlib.suppress(FileNotFoundError), open(self._output, "rb") as output:
            output.seek(self._read_bytes)
            for line in output:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._read_bytes += len(line)
                self._points += _points(json.loads(line))
        return list(self._points)

    def wait_for(self, predicate: Callable[[list[Point]], bool], timeout: float = 15) -> list[Point]:
        """Return the points as soon as they satisfy the predicate."""
        deadline = time.monotonic() + timeout
        while True:
            points = self.points()
            if predicate(points):
                return points
            if time.monotonic() > deadline:
                names = sorted({point.name for point in points})
                message = f"not so after {timeout} s, with {len(points)} points of {names}"
                raise AssertionError(message)
            time.sleep(0.05)

    def scrape(self, accept: str = ACCEPT_UTF8) -> str:
        """Return what the Prometheus exporter answers to a scraper that sends this Accept header."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._prometheus}/metrics", headers={"Accept": accept})
        response: IO[bytes]
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read().decode()


@contextlib.contextmanager
def running(
    command: Sequence[str], ports: Sequence[int], environment: Mapping[str, str], timeout: float = 30
) -> Iterator[None]:
    """Run a server as long as the block, which begins once it accepts connections at all its ports.

    What it logs is printed at the end, which pytest shows beside a test that failed.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environment}
        )
        deadline = time.monotonic() + timeout
        try:
            while not all(map(accepts, ports)):
                if process.poll() is not None or time.monotonic() > deadline:
                    message = f"{command[0]} accepts no connections; its status is {process.poll()}"
                    raise RuntimeError(message)
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.seek(0)
            print(log.read().decode(errors="replace"))  # noqa: T201 - pytest keeps it


def free_ports(count: int) -> list[int]:
    """Find local TCP ports that nothing listens on, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def accepts(port: int) -> bool:
    """Tell whether something on this machine accepts TCP connections at the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _points(request: dict[str, Any]) -> list[Point]:
    """Decode one line of the file exporter, which is OTLP's JSON; histograms are left out."""
    return [
        Point(
            name=metric["name"],
            unit=metric.get("unit", ""),
            kind=kind,
            monotonic=metric[kind].get("isMonotonic", False),
            temporality=_TEMPORALITIES.get(metric[kind].get("aggregationTemporality")),
            value=_number(point),
            attributes=_attributes(point),
            resource=_attributes(of_resource.get("resource", {})),
            scope_name=of_scope.get("scope", {}).get("name", ""),
            scope_version=of_scope.get("scope", {}).get("version", ""),
            start_time_ns=int(point.get("startTimeUnixNano", 0)),
            time_ns=int(point["timeUnixNano"]),
        )
        for of_resource in request.get("resourceMetrics", ())
        for of_scope in of_resource["scopeMetrics"]
        for metric in of_scope["metrics"]
        for kind in _kinds(metric)
        for point in metric[kind]["dataPoints"]
    ]


def _kinds(metric: dict[str, Any]) -> Sequence[Literal["gauge", "sum"]]:
    kinds: tuple[Literal["gauge", "sum"], ...] = ("gauge", "sum")
    return [kind for kind in kinds if kind in metric]


def _number(point: dict[str, Any]) -> int | float:
    if "asInt" in point:
        return int(point["asInt"])  # text in JSON, which has no 64-bit integers
    return float(point.get("asDouble", "nan"))  # neither: a stale marker, which Prometheus also writes as NaN


def _attributes(owner: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: _value(each["value"]) for each in owner.get("attributes", ())}


def _value(value: dict[str, Any]) -> object:
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(each) for each in value["arrayValue"].get("values", ())]
    return next(iter(value.values()), None)

"""What is secret, or says who somebody is, never leaves: a marker is planted in each place, and all output searched."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from otel_sysmetrics import Settings
from otel_sysmetrics.collectors import trainium
from otel_sysmetrics.election import Election
from otel_sysmetrics.endpoints import Endpoint
from otel_sysmetrics.exporters import without_secrets
from otel_sysmetrics.otlp import otlp_endpoint
from otel_sysmetrics.settings import SettingsError
from otel_sysmetrics.sources.http import FetchError, fetch
from tests.collectors.openmetrics_server import Handler, serving
from tests.parts import program, tree
from tests.running import COMMAND, PROGRAMS, Running, Silent, clean_environment, refusing_port, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import MakeMachine

pytestmark = pytest.mark.skipif(os.name == "nt", reason="programs and modes of files")

PREFIX: Final = "OTEL_PYTHON_SYSMETRICS_"
MARK: Final = "s3cret"
OTHER_USER: Final = 54321
_WORD: Final = re.compile(rf"{MARK}-[a-z0-9-]+", re.IGNORECASE)
GPU: Final = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-d",Hostname="node",board_serial="s3cret-dcgm-serial"} 40\n'


def secret(name: str) -> str:
    """Return a marker that tells where it was planted."""
    return f"{MARK}-{name}"


def leaks(*texts: str) -> set[str]:
    """Return the markers that stand in texts, also as what they become in a header of Basic authorization."""
    found: set[str] = set()
    for text in texts:
        words = re.findall(r"[A-Za-z0-9+/]{12,}", text)
        decoded = [base64.b64decode(word[: len(word) // 4 * 4]).decode("latin-1") for word in words]
        found.update(match for each in (text, *decoded) for match in _WORD.findall(each))
    return found


def of(name: str, url: str, path: str = "/metrics") -> str:
    """Return an address with markers in user, password and query."""
    user = f"//{secret(f'{name}-user')}:{secret(f'{name}-password')}@"
    return f"{url.replace('//', user)}{path}?key={secret(f'{name}-query')}"


def answer(request: Handler) -> None:
    """Answer as the path says, with words that are nobody's business."""
    what = request.path.partition("?")[0].strip("/")
    if "node.invalid" in request.path:  # asked to be a proxy
        request.say(secret("word-of-the-proxy"), 407)
    elif what.isdecimal():
        request.send_response(int(what), secret("reason"))
        request.send_header("WWW-Authenticate", secret("challenge"))
        request.send_header("Location", f"http://{secret('location')}:x@127.0.0.1:1/?key={secret('location-query')}")
        request.end_headers()
        request.wfile.write(secret("answer").encode())
    elif what == "file":
        request.say("", 302, Location=f"file:///{secret('file')}")
    elif what == "garbage":
        request.wfile.write(f"{secret('garbage')}\r\n\r\n".encode())
    elif what == "dcgm":
        request.say(GPU)
    else:
        request.say("a 1\n" if "user-agent" in {name.lower() for name in request.headers} else "")


class World:
    """An environment with a marker in each place where a secret may be, and servers that fail in each way."""

    def __init__(self, folder: Path, stack: ExitStack, gpus: dict[str, str]) -> None:
        self.folder = folder
        server = stack.enter_context(serving(answer))
        refused = f"http://127.0.0.1:{stack.enter_context(refusing_port())}"
        token = folder / "token"
        token.write_text(secret("token"))
        token_of_nothing = folder / "two"
        token_of_nothing.write_text(f"{secret('two-tokens')} {secret('two-tokens')}")
        paths = ("/metrics", "/401", "/404", "/500", "/302", "/file", "/garbage")
        endpoints: dict[str, Any] = {
            path.strip("/"): {
                "url": of(path.strip("/"), server.url, path),
                "headers": {"X-Key": secret(f"header-{path.strip('/')}")},
                "timeout": 1,
            }
            for path in paths
        }
        endpoints["refused"] = of("refused", refused)
        endpoints["tls"] = of("tls", server.url.replace("http:", "https:"))
        endpoints["proxied"] = of("proxied", "http://node.invalid")
        endpoints["bearer"] = {"url": f"{server.url}/401", "bearer_token_file": str(token)}
        endpoints["two"] = {"url": f"{server.url}/401", "bearer_token_file": str(token_of_nothing)}
        tools = {"rocm-smi": json.dumps({"card0": {"Card Series": "MI210", "Serial Number": secret("board")}})}
        for name, text in tools.items():
            (folder / f"{name}.json").write_text(text)
            program(folder / "bin", name, f'env >>{folder}/env; echo "$0" >>{folder}/env; cat {folder}/{name}.json')
        self.variables = gpus | {
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{secret('otlp-header')}",
            "OTEL_EXPORTER_OTLP_ENDPOINT": of("otlp", refused, ""),
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "http_proxy": f"http://{secret('proxy-user')}:{secret('proxy-password')}@127.0.0.1:{server.url[17:]}",
            "no_proxy": "127.0.0.1",
            f"{PREFIX}OPENMETRICS_ENDPOINTS": json.dumps(endpoints),
            f"{PREFIX}OPENMETRICS_HEADERS": json.dumps({"Authorization": f"Bearer {secret('header-of-all')}"}),
            f"{PREFIX}DCGM_EXPORTER": of("dcgm", server.url, "/dcgm"),
            f"{PREFIX}OPENMETRICS_ENDPOINT": secret("misspelt-variable"),
            f"{PREFIX}SAMPLING_INTERVAL": "1",
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "USER": secret("user"),
            "LOGNAME": secret("user"),
        }

    def start(self, *words: str, **variables: str) -> Running:
        return Running(*words, environment=clean_environment(**{**self.variables, **variables}), cwd=str(self.folder))


@pytest.fixture
def world(tmp_path: Path, machine: MakeMachine) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack, machine().environment)


def said(running: Running) -> list[str]:
    assert running.lines or running.errors, "nothing was said"
    return [*running.lines, *running.errors]


@pytest.mark.nvml
def test_no_command_shows_a_secret(world: World) -> None:
    """Whatever fails, in whatever way; an identifier of a person or a board is none of anybody's business either."""
    argument = ("-c", "import time; time.sleep(3)", secret("argument"))
    ways = {
        "exec": ("exec", "--exporter", "console", "--", sys.executable, *argument),
        "exec over otlp": ("exec", "--", sys.executable, *argument),
        "sample": ("sample", "--timeout", "3"),
        "sample as json": ("sample", "--timeout", "3", "--format", "json"),
        "doctor": ("doctor", "--timeout", "3"),
        "catalog": ("catalog",),
        "collector-config": ("collector-config",),
    }
    with ExitStack() as stack:
        started = {way: stack.enter_context(world.start(*COMMAND, *words)) for way, words in ways.items()}
        for way, running in started.items():
            assert running.finish(60) == 0, (way, running.tell())

    found = {way: leaks(*said(running)) for way, running in started.items()}
    assert found == {way: set() for way in ways}
    # They were all asked, and the metrics of those that answer are there.
    text = "\n".join(started["doctor"].lines)
    assert "HTTP 401" in text
    assert f"{PREFIX}OPENMETRICS_ENDPOINT is no variable of ours" in text
    config = "\n".join(started["collector-config"].lines)
    assert len(re.findall(r"\$\{env:OPENMETRICS_\w+\}", config)) > 20
    assert {"gpu.0.temp", "openmetrics.metrics.a"} <= set(re.findall(r'"name": "([^"]+)"', told(started["exec"])))
    assert "metrics are not exported" in told(started["exec over otlp"])


def told(running: Running) -> str:
    return "\n".join(said(running))


@pytest.mark.nvml
def test_nothing_secret_reaches_a_vendors_tool(world: World) -> None:
    """It is started by its absolute path, with what it needs to find its own things."""
    with world.start(*COMMAND, "sample", "--timeout", "3") as running:
        assert running.finish(60) == 0

    lines = (world.folder / "env").read_text().splitlines()
    assert f"{world.folder}/bin/rocm-smi" in lines
    assert leaks(*lines) == set()
    allowed = {"HOME", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PWD", "SHLVL", "TMPDIR", "_", "OLDPWD"}
    assert {name for name, found, _ in (line.partition("=") for line in lines) if found} <= allowed


@pytest.mark.nvml
def test_an_application_that_logs_everything_logs_no_secret(world: World) -> None:
    """With log level DEBUG, and with what it exports printed, the Resource included."""
    end = world.folder / "end"
    with world.start(sys.executable, os.path.join(PROGRAMS, "talkative.py"), str(end)) as running:
        until(lambda: "HTTP 401" in "\n".join(running.errors), 60, running.tell)
        until(lambda: '"name": "openmetrics.metrics.a"' in "\n".join(running.lines), 60, running.tell)
        end.touch()
        assert running.finish() == 0

    assert "DEBUG" in told(running)
    assert leaks(*said(running)) == set()


WRONG_OTLP: Final = {
    "refused": "http://{secret}@127.0.0.1:1/x?k={query}",
    "no port": "http://{secret}@127.0.0.1:bad/x?k={query}",
    "no scheme": "{secret}@127.0.0.1:1/x?k={query}",
    "another scheme": "ftp://{secret}@127.0.0.1:1/x?k={query}",
    "half a password": "http://{half}@127.0.0.1:1/x?k={query}",
    "no host": "http://{secret}@/x?k={query}",
    "half an IPv6 address": "http://{secret}@[::1/x?k={query}",
}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_an_exporter_that_fails_shows_no_secret(protocol: str) -> None:
    """The SDK repeats the address, or a header that it cannot send."""
    with ExitStack() as stack:
        started = []
        for url in WRONG_OTLP.values():
            words = {"secret": f"{secret('user')}:{secret('word')}", "query": secret("query")}
            half = f"{secret('user')}:{secret('word')}/{secret('other-half')}"
            environment = clean_environment(
                OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=url.format(**words, half=half),
                OTEL_EXPORTER_OTLP_HEADERS=f"authorization={quote(secret('header'))}%0A%FF" if "bad" in url else "",
                OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
                OTEL_EXPORTER_OTLP_TIMEOUT="1",
                OTEL_PYTHON_SYSMETRICS_COLLECTORS="memory",
            )
            started.append(stack.enter_context(Running(*COMMAND, "run", "--once", environment=environment)))
        for running in started:
            assert running.finish(60) in {1, 2}, running.tell()

    found = {wrong: leaks(*said(running)) for wrong, running in zip(WRONG_OTLP, started, strict=True)}
    assert found == {wrong: set() for wrong in WRONG_OTLP}


def test_what_an_exporter_says_keeps_all_but_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:pa%40ss@host:4317/v1?key=ab")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=Bearer%20abcdef")

    assert (
        without_secrets("metrics to me:pa@ss@host:4317, b'\\nabcdef', ab") == "metrics to …:…@…@host:4317, b'\\n…', …"
    )


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("http://u:s3cret@host:4318/v1?k=s3cret", "http://host:4318"),
        ("http://host?k=s3cret", "http://host"),
        ("http://host#s3cret", "http://host"),
        ("u:s3cret@host", "host"),
        ("https://[::1]:4318/s3cret", "https://[::1]:4318"),
        ("http://u:s3c/ret@host", "http://an address that cannot be read"),
        ("http://u:1/s3cret@host", "http://an address that cannot be read"),
        ("http://u:s3cret", "http://an address that cannot be read"),
    ],
)
def test_the_doctor_shows_of_the_backend_where_it_is(endpoint: str, shown: str) -> None:
    assert otlp_endpoint({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) == shown


WRONG_SETTINGS: Final[tuple[tuple[str, object], ...]] = (
    *(
        (name, value)
        for name in ("openmetrics_endpoints", "openmetrics_headers", "dcgm_exporter")
        for value in (secret("text"), f'{{"a": "{secret("broken")}', [secret("list")], {secret("key"): 3}, 3, b"")
        if not (name == "openmetrics_endpoints" and isinstance(value, dict))  # whose name is shown
    ),
    ("openmetrics_endpoints", {of("name", "http://a"): "node1"}),
    ("openmetrics_endpoints", {f"{secret('name')}@a": "node1"}),
    ("openmetrics_endpoints", {"a": {"url": "http://a", "headers": {f"Authorization: {secret('whole-header')}": ""}}}),
    ("openmetrics_endpoints", {"a": {"url": "http://a", "bearer_token_file": secret("token")}}),
    ("openmetrics_headers", {f"Authorization: Bearer {secret('whole-header')}": ""}),
    ("openmetrics_headers", {"Authorization": f"{secret('line')}\n"}),
    ("openmetrics_header", {"Authorization": secret("misspelt")}),
    ("dcgm_exporter_url", of("misspelt", "http://a")),
    ("dcgm_exporter", of("port", "http://a:bad")),
)


@pytest.mark.parametrize(("name", "value"), WRONG_SETTINGS)
def test_an_error_in_a_setting_shows_no_secret(name: str, value: object) -> None:
    """Neither by its text nor by that of whatever brought it about; the setting is named."""
    if isinstance(value, dict) and secret("key") in value:
        value = {"X-Key": [secret("value")]}
    with pytest.raises(SettingsError) as caught:
        Settings.load({name: value}, environ={})
    texts = [str(caught.value), repr(caught.value)]
    assert name in texts[0]
    assert leaks(*texts) == set()
    if not name.endswith(("header", "url")):
        with pytest.raises(SettingsError) as caught:
            Settings(**{name: value})  # type: ignore[arg-type]
        assert leaks(str(caught.value), repr(caught.value)) == set()


def test_the_user_info_of_a_redirect_is_no_part_of_a_host_name() -> None:
    """It would be asked of the resolver; the place that it is for gets it as a header, and nothing of ours."""
    with serving("a 1\n") as other, serving("") as server:
        there = other.url.replace("//", "//name:word@")
        server.answer = lambda request: request.say("", 302, Location=f"{there}/metrics")
        found = b"".join(fetch(Endpoint(of("first", server.url)), {"X-Key": "ours"}, 5))

    (_, headers) = other.seen[0]
    assert found == b"a 1\n"
    assert headers["Authorization"] == f"Basic {base64.b64encode(b'name:word').decode()}"
    assert headers["Host"] == other.url.removeprefix("http://")
    assert "X-Key" not in headers


def test_headers_without_end_are_no_answer() -> None:
    with (
        serving(
            lambda request: request.say("a 1\n", 200, **{f"X-{number}": "x" * 60_000 for number in range(200)})
        ) as server,
        pytest.raises(FetchError, match="not HTTP"),
    ):
        list(fetch(Endpoint(server.url), {}, 5))


def test_a_tool_in_the_current_directory_is_never_run(tmp_path: Path) -> None:
    """Whatever stands in PATH for it: an empty entry, a dot, a relative folder."""
    for name in ("rocm-smi", "amd-smi", "neuron-monitor", "ioreg"):
        for folder in (tmp_path, tmp_path / "tools"):
            program(folder, name, f"echo {name} >>{tmp_path}/ran")
    root = tree(tmp_path / "root", {"dev/neuron0": ""})
    environment = clean_environment(PATH=":.:tools:./tools::/usr/bin:/bin:", OTEL_PYTHON_SYSMETRICS_ROOT_PATH=str(root))
    command = (*COMMAND, "sample", "--timeout", "2")
    environment["PYTHONSAFEPATH"] = "1"
    environment["PYTHONPATH"] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with Running(*command, environment=environment, cwd=str(tmp_path)) as running:
        assert running.finish(60) == 0, running.tell()

    assert not (tmp_path / "ran").exists()


def test_the_agent_shows_no_secret_while_a_backend_hangs(world: World) -> None:
    with Silent() as backend:
        where = of("silent", backend.endpoint, "")
        with world.start(*COMMAND, "run", OTEL_EXPORTER_OTLP_ENDPOINT=where) as running:
            until(lambda: backend.callers > 0, 60, running.tell)
            running.wait_for_error("otel-sysmetrics: metrics are not exported")
            running.send(signal.SIGTERM)
            assert running.finish() == 0

    assert leaks(*said(running)) == set()


@pytest.mark.parametrize("scheme", ["file", "ftp", "data", "gopher"])
def test_a_redirect_leads_to_no_file_and_no_other_protocol(scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics"
    file.write_text("a 1\n")
    with (
        serving(lambda request: request.say("", 302, Location=f"{scheme}://{file}")) as server,
        pytest.raises(FetchError),
    ):
        list(fetch(Endpoint(server.url), {}, 5))


def test_what_neuron_monitor_says_of_instance_and_user_goes_nowhere() -> None:
    instance = {"instance_id": secret("instance"), "ami_id": secret("image"), "subnet_id": secret("subnet")}
    runtime = {"pid": 7, "neuron_runtime_tag": secret("command-line"), "error": "", "report": {}}
    cores = {"neuroncores_in_use": {"0": {"neuroncore_utilization": 5.0}, secret("core"): {}}, "error": ""}
    runtime["report"] = {"neuroncore_counters": cores}
    line = json.dumps({"neuron_runtime_data": [runtime], "instance_info": instance})

    found = [reading for reading in trainium.readings(trainium.parse(line) or {}) if reading.value is not None]

    assert [reading.value for reading in found] == [5.0]
    assert leaks(repr(found)) == set()


@pytest.fixture
def elections() -> Iterator[Callable[[], bool]]:
    """Return a function that stands for election; whatever was won is given up."""
    with ExitStack() as stack:

        def won() -> bool:
            election = Election(lambda: "job", lambda: 0.0, lambda: 0, expected=True)
            stack.callback(election.end)
            return election.won()

        yield won


def given_away(path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    path.touch()
    os.chown(path, OTHER_USER, OTHER_USER)


TRAPS: Final[dict[str, Callable[[Path, Path], object]]] = {
    "link": lambda lock, victim: lock.symlink_to(victim),
    "link to nothing": lambda lock, victim: lock.symlink_to(f"{victim}.new"),
    "second name": lambda lock, victim: lock.hardlink_to(victim),
    "pipe": lambda lock, _: os.mkfifo(lock),
    "folder": lambda lock, _: lock.mkdir(),
    "another user's file": lambda lock, _: given_away(lock),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_lock_that_somebody_else_has_put_there_is_not_opened(
    trap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elections: Callable[[], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Then every process reports, which is said once, and what the trap leads to is untouched."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    TRAPS[trap](runtime / "otel-sysmetrics-job.lock", victim)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))

    assert elections()

    assert [record.getMessage() for record in caplog.records if "every process reports" in record.getMessage()]
    assert victim.read_text() == "precious"
    assert not (tmp_path / "victim.new").exists()


@pytest.mark.skipif(os.name != "nt" and os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "TMPDIR"])
def test_a_folder_of_another_user_holds_no_lock(
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    elections: Callable[[], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also where only its owner may write to it."""
    theirs = tmp_path / ("theirs" if variable == "XDG_RUNTIME_DIR" else f"otel-sysmetrics-{os.getuid()}")
    theirs.mkdir(mode=0o700)
    os.chown(theirs, OTHER_USER, OTHER_USER)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs) if variable == "XDG_RUNTIME_DIR" else "relative")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert elections()

    assert list(theirs.iterdir()) == []
    said_so = any("every process reports" in record.getMessage() for record in caplog.records)
    assert said_so is (variable == "TMPDIR")  # else the temporary directory has the lock

"""`otel-sysmetrics collector-config`: what it writes is run by the real otelcol, beside the collector `openmetrics`."""

from __future__ import annotations

import base64
import json
import random
import re
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.cli.scrape_config import ScrapeConfig
from otel_sysmetrics.cli.yaml import yaml as yaml_of
from otel_sysmetrics.collector import parts
from otel_sysmetrics.patterns import NotAPattern, compiled
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.spec import Kind
from tests.collectors.openmetrics_server import serving
from tests.collectors.test_contract import context
from tests.otelcol import running
from tests.running import COMMAND, clean_environment, over

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.collectors.openmetrics_server import Answer
    from tests.conftest import StartOtelcol
    from tests.otelcol import Point

PREFIX = "OTEL_PYTHON_SYSMETRICS_OPENMETRICS_"
SAMPLING = "OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL"

PAGE = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",modelName="NVIDIA H100",Hostname="node-7"} 41
DCGM_FI_DEV_GPU_TEMP{gpu="1",modelName="NVIDIA A100",Hostname="node-7"} 43
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",modelName="NVIDIA H100"} 1234567.5
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",modelName="NVIDIA A100"} 9223372036854775792
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{gpu="0"} 140737488355328
DCGM_FI_DEV_FB_FREE{gpu="1"} 80000
# TYPE requests_total counter
requests_total{code="200",job="web",instance="a:1"} 1027
requests_total{code="500",job="api",instance="b:1"} 3
# TYPE broken_total counter
broken_total -1
# TYPE requests_created gauge
requests_created{code="200"} 1.7e9
# TYPE latency histogram
latency_bucket{le="1.0"} 1
latency_bucket{le="+Inf"} 2
latency_sum 3.5
latency_count 2
# TYPE duration summary
duration{quantile="0.5"} 0.1
duration_sum 1
duration_count 2
# TYPE depth gauge
depth{queue="a",owner="x;1;y"} 0.5 1700000000000
depth{queue="b"} NaN
depth{queue="c"} +Inf
depth{queue="d",note=""} -2
depth{queue="one\\ntwo"} 7
# TYPE up gauge
up{target="other"} 1
# TYPE job:rate:sum gauge
job:rate:sum{job="web"} 5
untyped_thing 3
m:a 1
m_a 2
dcgm_lower{gpu="0"} 2147483634
mimic{job="openmetrics.node1",instance="ADDRESS"} 6
sly{otel_sysmetrics_kept="1",otel_sysmetrics_name="node1.up",otel_sysmetrics_flag_0_0="1",x="y"} 8
"""

OPENMETRICS_PAGE = """\
# TYPE http_requests counter
http_requests_total{code="200"} 1027 # {trace_id="abc"} 1 1700000000.5
http_requests_created{code="200"} 1700000000.25
# TYPE build info
build_info{version="1.2"} 1
# TYPE mode stateset
mode{mode="fast"} 1
# TYPE queue_seconds gauge
# UNIT queue_seconds seconds
queue_seconds{q="a"} 0.5
# TYPE sizes gaugehistogram
sizes_bucket{le="+Inf"} 2
sizes_gcount 2
sizes_gsum 3
# TYPE anything unknown
anything 4
# EOF
"""

FILTERS = {
    "none": None,
    "an empty list": [],
    "an empty map": {},
    "one name, anchored": ["^node1\\.depth$"],
    "names, in any case": ["(?i)dcgm_.*_TEMP", "requests"],
    "the endpoint's name": ["node1"],
    "nothing: another endpoint's name": ["node2"],
    "nothing: what is left out all the same": ["latency", "duration", "_created", "broken"],
    "what the scraper calls its own": ["up$", "scrape_"],
    "nothing: a dot that matches no line feed": {"depth": {"queue": "one.two"}},
    "label": {"DCGM": {"modelName": "H100"}},
    "labels together, entries apart": {"DCGM": {"gpu": "^1$", "modelName": "A100"}, "requests": {"code": "^5"}},
    "a label that is missing": {"DCGM": {"Hostname": ".*"}, "depth": {"note": ".*"}},
    "labels that the scraper needs": {"requests": {"job": "web"}, "rate": {"instance": ".*"}, "thing": {"job": ".*"}},
    "alternatives": {"depth|untyped": None, "requests": {"code": "2|3", "instance": "a:1|x"}},
    "labels that are as the target's": {"mimic": {"job": "^openmetrics\\.node1$", "instance": "[.0-9]:[0-9]+$"}},
    "nothing: the name is no label": {"node1": {"__name__": "depth"}},
    "the name is no label, and others are": {"node1": {"code": "2", "__name__": ".*"}, "depth": {"owner": "1"}},
    "nothing: a label that says it is kept": ["no such name"],
    "a quotation without an end": {"\\Qnode1.mimic": {"job": "\\Qmetrics."}},
    "a group with a name": ["(?P<name>depth|thing)"],
    "nothing: a label that looks like two": {"depth": {"queue": "^b", "owner": "1;y$"}},
}


def variables(url: str, filters: object = None, name: str = "node1", **fields: object) -> dict[str, str]:
    endpoints = {name: {"url": url, **fields}}
    given = {f"{PREFIX}ENDPOINTS": json.dumps(endpoints)}
    return given if filters is None else {**given, f"{PREFIX}FILTERS": json.dumps(filters)}


def make(environment: Mapping[str, str], path: Path) -> str:
    """Write the configuration of an environment into a file; return what is said on stderr."""
    done = subprocess.run(
        [*COMMAND, "collector-config"],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    path.write_text(done.stdout, encoding="utf-8")
    return done.stderr


def make_here(environment: Mapping[str, str], path: Path) -> None:
    """Write the same without a process of its own, which costs half a second."""
    path.write_text(yaml_of(ScrapeConfig(Settings.load(environ=environment)).tree), encoding="utf-8")


Seen = set[tuple[Any, ...]]


def kept(attributes: Mapping[str, object]) -> frozenset[tuple[str, object]]:
    """Return attributes without those that begin as otelcol's rules need theirs to, which it loses."""
    return frozenset((key, value) for key, value in attributes.items() if not key.startswith("otel_sysmetrics_"))


def seen(points: list[Point]) -> Seen:
    """Return each series as it arrived; of the scraper's own `up` and `scrape_…` there should be none."""
    return {
        (each.name, kept(each.attributes), each.value, each.unit, each.kind, each.monotonic)
        for each in points
        if not each.name.startswith("sysmetrics.")
    }


def read_here(environment: Mapping[str, str]) -> Seen:
    """Return what the collector reads, as it would arrive."""
    settings = Settings.load(environ=environment)
    (part,) = parts("openmetrics", replace(context(), settings=settings))
    return {
        (
            each.spec.fill(each.labels),
            kept({**each.attributes, "openmetrics.endpoint": each.labels["endpoint"]}),
            each.value,
            each.spec.unit,
            {Kind.COUNTER: "sum", Kind.GAUGE: "gauge"}[each.spec.kind],
            each.spec.kind is Kind.COUNTER,
        )
        for each in part.probe().sample()
    }


def addressed(page: str, version: str = "text/plain; version=0.0.4") -> Answer:
    """Answer with a page that knows the address which it is asked at."""
    return lambda request: request.say(page.replace("ADDRESS", request.headers["Host"]), Content_Type=version)


def poll_until(done: Callable[[], bool], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.otelcol
def test_otelcol_keeps_exactly_the_series_that_the_collector_keeps(
    otelcol_binary: str, otelcol: StartOtelcol, tmp_path: Path
) -> None:
    """Same names, labels, values, units and kinds over OTLP, under each list and map of filters.

    One otelcol runs all: of each configuration the components get names of its own, and its series a mark.
    """
    backend = otelcol()
    expected: dict[str, Seen] = {}
    command = [otelcol_binary]
    with serving(addressed(PAGE)) as server:
        for number, (case, filters) in enumerate(FILTERS.items()):
            environment = {**variables(f"{server.url}/metrics", filters), SAMPLING: "3"}
            expected[case] = read_here(environment)
            path = tmp_path / f"{number}.yaml"
            make_here(environment, path)
            mark(path, str(number), case)
            command += ["--config", str(path)]
        server.seen.clear()
        with running(command, (), {"OTEL_EXPORTER_OTLP_ENDPOINT": backend.http_endpoint}):
            poll_until(lambda: len(server.seen) >= 2 * len(FILTERS))
    backend.stop()  # which writes all that it holds
    arrived = {case: seen([each for each in backend.points() if each.resource["case"] == case]) for case in FILTERS}

    for case, found in arrived.items():
        assert found == expected[case], case
    assert len(expected["none"]) == 16
    assert {case for case in FILTERS if not expected[case]} == {case for case in FILTERS if case.startswith("nothing")}


@pytest.mark.otelcol
def test_patterns_that_the_settings_take_are_taken_by_otelcol(otelcol_binary: str, tmp_path: Path) -> None:
    """None makes a configuration that otelcol refuses to start with, whatever stands in it."""
    legal = [pattern for pattern in PATTERNS if is_legal(pattern)]
    path = tmp_path / "made.yaml"
    filters = {pattern: {"label": pattern} for pattern in legal}
    make_here(variables("http://127.0.0.1:1/metrics", filters), path)
    subprocess.run([otelcol_binary, "validate", "--config", str(path)], check=True)
    assert len(PATTERNS) > len(legal) > 200


def is_legal(pattern: str) -> bool:
    try:
        compiled(pattern)
    except NotAPattern:
        return False
    return True


def patterns() -> list[str]:
    """Make patterns of all sorts, the same ones each time."""
    words = (
        *"a.$^|()[]{}?*+\\:<> \n\u00fc",
        "(?",
        "(?i)",
        "(?P<n>",
        "(?<m>",
        "(?P<\u00fc>",
        "[[:alpha:]]",
        "[^",
        "{2}",
        "{,3}",
    )
    escapes = (
        r"\d",
        r"\b",
        r"\z",
        r"\Q",
        r"\E",
        r"\C",
        r"\pL",
        r"\p{Greek}",
        r"\x41",
        r"\x{3b1}",
        r"\07",
        r"\_",
        r"\\",
    )
    chance = random.Random(6)
    return ["".join(chance.choices(words + escapes, k=chance.randint(1, 6))) for _ in range(1500)]


PATTERNS = patterns()


def mark(path: Path, ident: str, case: str) -> None:
    text = (
        path.read_text(encoding="utf-8").replace("/node1", f"/{ident}").replace("filter/openmetrics", f"filter/{ident}")
    )
    marking = f"resource/{ident}"
    tree = yaml.safe_load(text)
    tree["processors"][marking] = {"attributes": [{"key": "case", "value": case, "action": "upsert"}]}
    tree["service"]["pipelines"][f"metrics/{ident}"]["processors"].append(marking)
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")


@pytest.mark.otelcol
@pytest.mark.parametrize(
    ("name", "page", "version", "series"),
    [
        ("node1", PAGE, "text/plain; version=0.0.4", 16),
        ('a "b" $1 ${env:HOME} \\ ü', OPENMETRICS_PAGE, "application/openmetrics-text; version=1.0.0", 3),
    ],
    ids=["dcgm-exporter and others", "OpenMetrics, from an endpoint with an odd name"],
)
def test_both_ways_bring_the_same_to_otelcol(  # noqa: PLR0913 - fixtures and parameters
    otelcol_binary: str, otelcol: StartOtelcol, tmp_path: Path, *, name: str, page: str, version: str, series: int
) -> None:
    """Over OTLP, from our package and through otelcol, in both formats of text."""
    with serving(addressed(page, version)) as server:
        environment = {**variables(f"{server.url}/some%20path", name=name), SAMPLING: "1"}
        through, beside = otelcol(), otelcol()
        ours = {**environment, **over("http/protobuf", beside.http_endpoint)}
        ours["OTEL_PYTHON_SYSMETRICS_COLLECTORS"] = "openmetrics"
        subprocess.run([*COMMAND, "run", "--once"], env=clean_environment(**ours), check=True)
        path = tmp_path / "made.yaml"
        make(environment, path)
        server.seen.clear()
        with running(
            [otelcol_binary, "--config", str(path)], (), {"OTEL_EXPORTER_OTLP_ENDPOINT": through.http_endpoint}
        ):
            poll_until(lambda: len(server.seen) >= 3)
    for backend in (through, beside):
        backend.stop()  # which writes all that it holds
    assert seen(through.points()) == seen(beside.points())
    assert len(seen(beside.points())) == series
    assert {path for path, _ in server.seen} == {"/some%20path"}


OTHERWISE = """\
UPPER 1
upper 2
twice{x="y"} 1
twice{x="y"} 2
untyped_gsum 1
late 1
# TYPE late counter
labelled{otel_sysmetrics_name="x",a="b"} 1
"""


@pytest.mark.otelcol
def test_otelcol_does_otherwise_what_readme_says(otelcol_binary: str, otelcol: StartOtelcol, tmp_path: Path) -> None:
    """Capitals, duplicates, names of gauge histograms, late types and labels of the rules."""
    backend = otelcol()
    with serving(OTHERWISE) as server:
        environment = {**variables(server.url), SAMPLING: "0.5"}
        beside = {(name, value, kind) for name, _, value, _, kind, _ in read_here(environment)}
        path = tmp_path / "made.yaml"
        make_here(environment, path)
        with running(
            [otelcol_binary, "--config", str(path)], (), {"OTEL_EXPORTER_OTLP_ENDPOINT": backend.http_endpoint}
        ):
            poll_until(lambda: len(server.seen) >= 5)
    backend.stop()  # which writes all that it holds
    through = {(each.name, each.value, each.kind) for each in backend.points()}
    of_otelcol = {("UPPER", 1, "gauge"), ("upper", 2, "gauge"), ("twice", 1, "gauge"), ("late", 1, "sum")}
    of_ours = {("UPPER", 1, "gauge"), ("upper", 2, "gauge"), ("twice", 2, "gauge"), ("untyped_gsum", 1, "gauge")}
    assert through - beside == {(f"openmetrics.node1.{name}", *rest) for name, *rest in of_otelcol - of_ours}
    assert beside - through == {(f"openmetrics.node1.{name}", *rest) for name, *rest in of_ours - of_otelcol}
    assert all(not key.startswith("otel_sysmetrics_") for each in backend.points() for key in each.attributes)
    assert all("openmetrics.metric" not in each.attributes for each in backend.points())


@pytest.mark.otelcol
def test_credentials_come_from_the_environment_as_they_are(otelcol_binary: str, tmp_path: Path) -> None:
    """No secret stands in the file or on stderr, and none is read as a number or as YAML."""
    secrets = {"X-Scope-OrgID": "0123", "X-Odd": '{"a": [1]} # $x', "Authorization": "Bearer t0ken:x"}
    with serving(PAGE) as server:
        url = f"{server.url}/metrics?token=007&match[]=a&match[]=b".replace("//", "//user:pa55@")
        environment = {**variables(url, headers={"X-Own": "own-one"}), SAMPLING: "1"}
        path = tmp_path / "made.yaml"
        said = make({**environment, f"{PREFIX}HEADERS": json.dumps(secrets)}, path)
        values = {
            "OPENMETRICS_X_SCOPE_ORGID": "0123",
            "OPENMETRICS_X_ODD": '{"a": [1]} # $x',
            "OPENMETRICS_AUTHORIZATION": "t0ken:x",
            "OPENMETRICS_NODE1_X_OWN": "own-one",
            "OPENMETRICS_NODE1_TOKEN": "007",
            "OPENMETRICS_NODE1_MATCH": "a",
            "OPENMETRICS_NODE1_MATCH_2": "b",
        }
        assert set(re.findall(r"^  (\w+):", said, re.MULTILINE)) == values.keys()
        for secret in ("0123", "[1]", "t0ken", "own-one", "007", "pa55"):
            assert secret not in path.read_text(encoding="utf-8") + said
        with running([otelcol_binary, "--config", str(path)], (), values):
            poll_until(lambda: bool(server.seen))
    requested, headers = server.seen[0]
    assert parse_qs(urlsplit(requested).query) == {"token": ["007"], "match[]": ["a", "b"]}
    sent = {name.lower(): value for name, value in headers.items()}
    assert {name: sent.get(name.lower()) for name in secrets} == secrets
    assert sent["x-own"] == "own-one"


@pytest.mark.otelcol
def test_user_and_password_of_an_address(otelcol_binary: str, tmp_path: Path) -> None:
    """They are sent as they are decoded, and neither stands in the file."""
    with serving(PAGE) as server:
        path = tmp_path / "made.yaml"
        make({**variables(server.url.replace("//", "//us%40er:pa55@")), SAMPLING: "1"}, path)
        assert "pa55" not in path.read_text(encoding="utf-8")
        values = {"OPENMETRICS_NODE1_USERNAME": "us@er", "OPENMETRICS_NODE1_PASSWORD": "pa55"}
        with running([otelcol_binary, "--config", str(path)], (), values):
            poll_until(lambda: bool(server.seen))
    assert base64.b64decode(server.seen[0][1]["Authorization"].split()[1]).decode() == "us@er:pa55"


@pytest.mark.otelcol
def test_headers_do_not_follow_a_redirect(otelcol_binary: str, tmp_path: Path) -> None:
    """Another origin never gets a header of ours, which otelcol would send along."""
    with serving(PAGE) as elsewhere, serving(lambda request: request.say("", 302, Location=elsewhere.url)) as server:
        path = tmp_path / "made.yaml"
        environment = {**variables(server.url, headers={"X-Key": "k"}), SAMPLING: "0.3"}
        make(environment, path)
        with running([otelcol_binary, "--config", str(path)], (), {"OPENMETRICS_NODE1_X_KEY": "k"}):
            poll_until(lambda: len(server.seen) >= 2)
    assert elsewhere.seen == []


def test_header_that_otelcol_cannot_send_is_said(tmp_path: Path) -> None:
    """It is left out of the file with one line, the value unsaid."""
    environment = {**variables("http://h/m"), f"{PREFIX}HEADERS": '{"Host": "s3cret", "Authorization": "s3cret"}'}
    said = make(environment, tmp_path / "made.yaml")
    assert "header Host of all endpoints is left out" in said
    assert "header Authorization of all endpoints is left out" in said
    assert "s3cret" not in said


def test_no_endpoint_is_a_mistake() -> None:
    """There is nothing to write then."""
    done = subprocess.run([*COMMAND, "collector-config"], env=clean_environment(), capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"names no endpoint" in done.stderr


_TEXTS = st.text() | st.sampled_from(
    ["true", "No", "0x1f", "1e5", "~", "", "a: b", "'", "- x", "# c", "\ufeff", "${x}"]
)
_NODES = st.recursive(
    _TEXTS | st.booleans() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    max_leaves=12,
)


@given(st.dictionaries(_TEXTS, _NODES))
def test_yaml_is_read_back_as_it_was(node: dict[str, Any]) -> None:
    """Whatever a name or a pattern holds, a reader of YAML sees that."""
    assert yaml.safe_load(yaml_of(node) or "{}") == node

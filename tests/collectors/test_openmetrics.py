"""Endpoints over real HTTP."""

from __future__ import annotations

import base64
import gzip
import logging
import shutil
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from otel_sysmetrics.collector import Unavailable, parts
from otel_sysmetrics.endpoints import Endpoint
from otel_sysmetrics.instrumentor import SysMetricsInstrumentor
from otel_sysmetrics.patterns import compiled
from otel_sysmetrics.runner import Runner
from otel_sysmetrics.settings import Settings, SettingsError
from otel_sysmetrics.sources.http import FetchError, fetch
from otel_sysmetrics.spec import Kind
from tests.collectors.openmetrics_server import Handler, serving
from tests.collectors.test_contract import context
from tests.fakes import Desk, ScriptedClock, in_memory, provider_of, values
from tests.parts import until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from otel_sysmetrics.collector import Collector
    from otel_sysmetrics.reading import Reading
    from tests.collectors.openmetrics_server import Answer

PREFIX: Final = "OTEL_PYTHON_SYSMETRICS_"


def collector(url: str | None = None, dcgm: str | None = None, **others: Any) -> Collector:  # noqa: ANN401 - an Endpoint's
    """Return the collector of the one endpoint `ep`, or of a dcgm-exporter."""
    fields = {name: others.pop(name) for name in tuple(others) if name in Endpoint.__dataclass_fields__}
    endpoints = {} if url is None else {"ep": Endpoint(url, **fields)}
    settings = Settings(openmetrics_endpoints=endpoints, dcgm_exporter=dcgm, **others)
    (part,) = parts("openmetrics", replace(context(), settings=settings))
    return part.probe()


def saying(body: str) -> Answer:
    return lambda request: request.say(body)


def by_name(readings: Iterable[Reading]) -> dict[str, float | None]:
    return {reading.spec.fill(reading.labels): reading.value for reading in readings if reading.value is not None}


def scrape(url: str, **others: Any) -> dict[str, float | None]:  # noqa: ANN401 - an Endpoint's
    return by_name(collector(url, **others).sample())


def trouble(url: str, **others: Any) -> str:  # noqa: ANN401 - an Endpoint's
    with pytest.raises(Unavailable) as error:
        scrape(url, **others)
    return str(error.value)


def test_a_series_has_its_own_name_labels_kind_and_unit() -> None:
    body = "# TYPE c counter\n# UNIT c seconds\n" + 'c_total{code="200"} 7\na:b 1\n'
    with serving(body) as server:
        counter, colon = collector(server.url).sample()

    assert (counter.spec.kind, counter.spec.unit, counter.value) == (Kind.COUNTER, "s", 7)
    assert counter.attributes == {"code": "200"}
    assert (colon.spec.kind, colon.spec.fill(colon.labels)) == (Kind.GAUGE, "openmetrics.ep.a_b")
    assert colon.attributes == {"openmetrics.metric": "a:b"}


@pytest.mark.parametrize(
    "names", [("UPPER", "upper", "Upper"), ("a:b", "a_b", "a-b"), ("a:b", "A:B"), ("q.\u00fc", "Q.\u00dc", "q._")]
)
def test_names_that_meet_differ_by_their_attribute(names: tuple[str, ...]) -> None:
    """Names of one spelling but for capitals, or for characters that are not legal, are one to the SDK."""
    desk = Desk()
    page = "".join(f'{{"{name}"}} {value}\n' for value, name in enumerate(names))
    with serving(page) as server:
        endpoint = collector(server.url)
        for _ in range(2):
            desk.give(*endpoint.sample())
    points = desk.ask()

    assert sorted(point.value for point in points) == list(range(len(names)))
    assert len({(point.name.lower(), *point.attributes.items()) for point in points}) == len(names)
    assert all(
        point.attributes.get("openmetrics.metric", names[int(point.value)]) == names[int(point.value)]
        for point in points
    )


def test_a_name_that_met_another_keeps_its_attribute() -> None:
    """A series is the same from one scrape to the next, also where the other name is gone or comes in turn with it."""
    with serving("") as server:
        endpoint = collector(server.url)
        given = []
        for page in ("a 1\nb 1\n", "A 1\n", "a 1\nb 1\n", "a 1\nA 2\n"):
            server.answer = saying(page)
            given.append([each.attributes.get("openmetrics.metric") for each in endpoint.sample()])

    assert given == [[None, None], ["A"], ["a", None], ["a", "A"]]


def test_a_counter_keeps_the_endpoints_total_and_goes_on_over_a_reset() -> None:
    desk = Desk()
    with serving("# TYPE c counter\nc 100\n") as server:
        endpoint = collector(server.url)
        for total, sent in ((100, 100), (107, 107), (3, 110)):
            server.answer = saying(f"# TYPE c counter\nc {total}\n")
            desk.give(*endpoint.sample())
            assert [(point.name, point.value) for point in desk.ask()] == [("openmetrics.ep.c", sent)]


def test_case_104_and_112_an_answer_that_is_too_big_is_left() -> None:
    bomb = gzip.compress(50_000_000 * b"\n")
    with serving(lambda request: request.say(bomb, Content_Encoding="gzip")) as server:
        assert trouble(server.url, body_limit=1_000_000) == "an answer of more than 1000000 bytes"


def test_gzip_is_unpacked() -> None:
    with serving(lambda request: request.say(gzip.compress(b"a 1\n"), Content_Encoding="gzip")) as server:
        assert scrape(server.url) == {"openmetrics.ep.a": 1}


@pytest.mark.parametrize("head", ["HTTP/1.1 200 OK\r\n\r\n", ""])
def test_case_105_an_answer_that_drips_is_over_at_the_deadline(head: str) -> None:
    def drip(request: Handler) -> None:
        request.wfile.write(head.encode())
        for _ in range(200):
            request.wfile.write(b"a")
            time.sleep(0.05)

    begun = time.monotonic()
    with serving(drip) as server:
        assert trouble(server.url, timeout=0.4) == "no whole answer within 0.4 s"
        assert time.monotonic() - begun < 3


def packed(body: bytes, encoding: str) -> bytes:
    """Pack a body as an encoding says: whole, or in many members."""
    if encoding == "identity":
        return body
    step = len(body) if encoding == "gzip" else 20_000
    return b"".join(gzip.compress(body[start : start + step]) for start in range(0, len(body), step))


ENCODINGS: Final = {"identity": "identity", "gzip": "gzip", "gzip of many members": "gzip"}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_case_105_what_has_arrived_is_given_within_the_deadline_only(encoding: str) -> None:
    """A reader that takes long over a piece gets no further one, though nothing more has to be received."""
    body = packed(200_000 * b"a 1\n", encoding)
    with serving(lambda request: request.say(body, Content_Encoding=ENCODINGS[encoding])) as server:
        begun = time.monotonic()
        pieces = fetch(Endpoint(server.url), {}, 1)
        assert next(pieces).startswith(b"a 1\n")
        assert until(lambda: time.monotonic() > begun + 1.1)
        with pytest.raises(FetchError, match="no whole answer within 1 s"):
            next(pieces)


def test_case_105_unpacking_and_reading_lines_are_within_the_deadline() -> None:
    """Lines that all would take about ten seconds."""
    body = gzip.compress(30_000_000 * b"-\n")
    with serving(lambda request: request.say(body, Content_Encoding="gzip")) as server:
        begun = time.thread_time()
        assert trouble(server.url, timeout=0.3) == "no whole answer within 0.3 s"
        assert time.thread_time() - begun < 3


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("length", [1, 20_000, 300_000])
def test_an_answer_is_given_whole_however_it_is_packed(encoding: str, length: int) -> None:
    """Servers that append to a compressed page send several members, which are one text."""
    body = bytes(number % 251 for number in range(length))
    answer = packed(body, encoding)
    with serving(lambda request: request.say(answer, Content_Encoding=ENCODINGS[encoding])) as server:
        assert b"".join(fetch(Endpoint(server.url), {}, 20)) == body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "an answer that is cut short"),
        (gzip.compress(b"a 1\n")[:-1], "an answer that is cut short"),
        (2 * gzip.compress(b"a 1\n") + gzip.compress(b"b 1\n")[:12], "an answer that is cut short"),
        (b"a 1\n", "what it sends is no gzip"),
        (gzip.compress(b"a 1\n") + b"b 1\n", "what it sends is no gzip"),
    ],
    ids=["nothing", "without its end", "without its third", "text", "text behind it"],
)
def test_gzip_that_is_not_whole_gives_nothing(body: bytes, words: str) -> None:
    with serving(lambda request: request.say(body, Content_Encoding="gzip")) as server:
        assert trouble(server.url) == words


def test_case_112_many_small_members_are_too_big_together() -> None:
    body = 100 * gzip.compress(1000 * b"\n")
    with serving(lambda request: request.say(body, Content_Encoding="gzip")) as server:
        assert trouble(server.url, body_limit=50_000) == "an answer of more than 50000 bytes"


def test_an_endpoint_may_be_slower_than_the_interval() -> None:
    """Its time-out holds, also where `sample` makes the interval as short as its window."""

    def slowly(request: Handler) -> None:
        time.sleep(0.5)
        request.say("a 1\n")

    with serving(slowly) as server:
        assert scrape(server.url, sampling_interval=0.1) == {"openmetrics.ep.a": 1}
        assert trouble(server.url, timeout=0.1234567) == "no whole answer within 0.12 s"


def test_attempts_are_over_within_the_interval() -> None:
    """What would be asked again is not, once the interval is over."""
    with serving(lambda request: request.say("", 503)) as server:
        assert trouble(server.url, sampling_interval=0.1, timeout=20) == "HTTP 503"
        assert len(server.seen) == 1


def test_an_answer_that_is_cut_short_gives_nothing() -> None:
    with serving(lambda request: request.say("a 1\n", Content_Length="100")) as server:
        assert trouble(server.url) == "an answer that is cut short"


def test_what_a_cut_attempt_gave_does_not_count() -> None:
    with serving("b 1\n") as server:
        server.answer = lambda request: (
            request.say("a 1\n", Content_Length="100") if len(server.seen) == 1 else request.say("b 1\n")
        )
        assert scrape(server.url) == {"openmetrics.ep.b": 1}


def test_what_passes_is_tried_again_and_what_stays_is_not() -> None:
    with serving("a 1\n") as server:
        server.answer = lambda request: request.say("a 1\n", 503 if len(server.seen) == 1 else 200)
        assert scrape(server.url) == {"openmetrics.ep.a": 1}
        assert len(server.seen) == 2
        server.seen.clear()
        server.answer = lambda request: request.say("secret", 404)
        assert trouble(server.url) == "HTTP 404"
        assert len(server.seen) == 1


def test_case_110_a_page_of_html_is_no_success_and_not_shown() -> None:
    with serving("<!doctype html>\n<input name=password>\n") as server:
        assert trouble(server.url) == "it answers with a page of HTML"


def test_case_111_the_classic_format_is_asked_for_by_its_name() -> None:
    with serving("a 1\n") as server:
        scrape(server.url)

    accepted = server.seen[0][1]["Accept"].split(",")
    assert accepted[0].startswith("text/plain;version=0.0.4")
    assert accepted[-1] == "*/*;q=0.1"


def test_case_113_credentials_go_to_no_other_origin() -> None:
    with serving("a 1\n") as other, serving("") as server:
        server.answer = lambda request: request.say(
            "", 302, Location="/there" if request.path == "/" else f"{other.url}/metrics"
        )
        url = server.url.replace("//", "//user:pass@")
        assert scrape(url, headers={"X-Key": "s"}, openmetrics_headers={"X-All": "s"}) == {"openmetrics.ep.a": 1}

    assert [path for path, _ in server.seen] == ["/", "/there"]
    for _, headers in server.seen:
        assert {"Authorization", "X-Key".capitalize(), "X-All".capitalize()} <= {name.capitalize() for name in headers}
    assert not {"authorization", "x-key", "x-all"} & {name.lower() for name in other.seen[0][1]}


def test_case_113_a_loop_of_redirects_ends() -> None:
    with serving(lambda request: request.say("", 302, Location="/")) as server:
        assert trouble(server.url) == "too many redirects"
        assert len(server.seen) < 10


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://{}/", "data:,a", "http://a..b/", "http://[/", ""])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_case_113_a_redirect_to_what_is_not_http_is_called_that(code: int, location: str) -> None:
    """It is neither followed nor taken for one of too many."""

    def send(request: Handler) -> None:
        request.say("", code, **({"Location": location.format(request.headers["Host"])} if location else {}))

    with serving(send) as server:
        assert trouble(server.url) == "a redirect to what is no address of HTTP"
        assert len(server.seen) == 1


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_case_113_a_redirect_may_name_a_user(code: int) -> None:
    """What it names is sent to where it leads, and nothing of ours."""
    with serving("a 1\n") as other, serving("") as server:
        target = other.url.replace("//", "//theirs:word@")
        server.answer = lambda request: request.say("", code, Location=target)
        url = server.url.replace("//", "//ours:s3cret@")
        assert scrape(url, headers={"X-Key": "s3cret"}) == {"openmetrics.ep.a": 1}

    sent = {name.lower(): value for name, value in other.seen[0][1].items()}
    assert base64.b64decode(sent["authorization"].removeprefix("Basic ")) == b"theirs:word"
    assert "x-key" not in sent


def test_case_114_a_token_is_read_again_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with serving("a 1\n") as server:
        endpoint = collector(server.url, bearer_token_file=str(file))
        with pytest.raises(Unavailable, match="bearer_token_file cannot be read"):
            tuple(endpoint.sample())
        for token in ("one", "two"):
            file.write_text(f"{token}\n", encoding="ascii")
            tuple(endpoint.sample())

    assert [headers["Authorization"] for _, headers in server.seen] == ["Bearer one", "Bearer two"]


def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("a 1\n") as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.delenv("no_proxy", raising=False)
        assert scrape(server.url) == {"openmetrics.ep.a": 1}


def test_any_other_machine_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("a 1\n") as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert scrape("http://node.invalid/metrics") == {"openmetrics.ep.a": 1}

    assert proxy.seen[0][0] == "http://node.invalid/metrics"


def test_an_endpoint_that_is_down_is_one_line_and_one_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    clock = ScriptedClock(60)
    with serving("a 1\n") as server:
        answers = iter((200, 500, 404, 404, 200, 200))
        server.answer = lambda request: request.say("a 1\n", 404 if next(answers, 200) != 200 else 200)
        settings = Settings(openmetrics_endpoints={"ep": Endpoint(server.url)})
        (part,) = parts("openmetrics", replace(context(), settings=settings))
        Runner(part, 5, threading.Event(), lambda health, snapshot: None, clock, bool).run()  # noqa: ARG005

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "otel-sysmetrics: openmetrics ep: HTTP 404",
        "otel-sysmetrics: openmetrics ep is back",
    ]


def test_what_is_lost_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Lines that cannot be read, and series over the limit: the first ones are kept, also from scrape to scrape."""
    with serving("a 1\nb\nc\nd 1\ne 1\nf 1\n") as server:
        endpoint = collector(server.url, series_limit=2)
        for _ in range(3):
            assert by_name(endpoint.sample()) == {"openmetrics.ep.a": 1, "openmetrics.ep.d": 1}

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "otel-sysmetrics: openmetrics ep: 2 lines cannot be read and are left out",
        "otel-sysmetrics: openmetrics ep: 2 series are over the limit of 2 and are left out",
    ]
    assert endpoint.describe() == "2 series, 2 bad lines, 2 series too many"


def test_a_slow_endpoint_delays_nobody() -> None:
    """Each endpoint has a thread of its own: a quick one is sampled over and over while another answers nothing."""
    asked, released = threading.Event(), threading.Event()

    def slowly(request: Handler) -> None:
        asked.set()
        released.wait(60)
        request.say("slow 1\n")

    with serving(slowly) as slow, serving("quick 1\n") as quick:
        endpoints = {"slow": Endpoint(slow.url, timeout=60), "quick": Endpoint(quick.url)}
        reader = in_memory()
        provider = provider_of(reader)
        instrumentor = SysMetricsInstrumentor()
        settings = Settings(
            collectors=("openmetrics",), openmetrics_endpoints=endpoints, sampling_interval=0.2, host_metrics="always"
        )
        instrumentor.instrument(meter_provider=provider, settings=settings)
        try:
            assert until(lambda: "openmetrics.quick.quick" in values(reader.get_metrics_data()))
            assert asked.wait(20)
            before = len(quick.seen)
            assert until(lambda: len(quick.seen) >= before + 3)
            assert "openmetrics.slow.slow" not in values(reader.get_metrics_data())
            released.set()
            assert until(lambda: "openmetrics.slow.slow" in values(reader.get_metrics_data()))
        finally:
            released.set()
            instrumentor.uninstrument()
            provider.shutdown()


def test_case_108_gone_series_are_gone_and_what_churns_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    with serving("a 1\n") as server:
        endpoint = collector(server.url)
        for turn in range(25):
            server.answer = saying("".join(f'a{{pod="{turn}-{number}"}} 1\n' for number in range(100)))
            desk.give(*endpoint.sample())
            assert len(desk.ask()) == (100 if turn < 19 else 0)

    said = [record.getMessage() for record in caplog.records if "label sets" in record.getMessage()]
    assert len(said) == 1
    assert "openmetrics.ep.a: 100 label sets over the limit of 1900" in said[0]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the files of a certificate that nobody knows, and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    words = ("-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    openssl = ("openssl", "req", "-x509", *words, "-keyout", key, "-out", certificate, "-days", "2")
    subprocess.run(openssl, check=True, capture_output=True)
    return certificate, key


def secured(authority: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority)
    return context


def test_a_private_authority_is_trusted_where_it_is_named(authority: tuple[str, str]) -> None:
    certificate, key = authority
    with serving("a 1\n", secured(authority)) as server:
        url = server.url.replace("http:", "https:")
        assert scrape(url, ca_file=certificate) == {"openmetrics.ep.a": 1}
        assert trouble(url).startswith("certificate: self")
        assert trouble(url, ca_file=key) == "ca_file cannot be read"


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_case_113_credentials_do_not_leave_tls(authority: tuple[str, str], tmp_path: Path, code: int) -> None:
    """A redirect from https to http of the same machine leads to another origin, where anybody could read them."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    with serving("a 1\n") as plain, serving("", secured(authority)) as server:
        server.answer = lambda request: request.say("", code, Location=f"{plain.url}/metrics")
        url = server.url.replace("http://", "https://user:s3cret@")
        fields = {"headers": {"X-Key": "s3cret"}, "bearer_token_file": str(token), "ca_file": authority[0]}
        assert scrape(url, openmetrics_headers={"X-All": "s3cret"}, **fields) == {"openmetrics.ep.a": 1}

    assert "s3cret" in str(server.seen)
    assert "s3cret" not in str(plain.seen)
    assert not {"authorization", "x-key", "x-all"} & {name.lower() for name in plain.seen[0][1]}


def test_with_nothing_named_there_is_no_part() -> None:
    assert parts("openmetrics", replace(context(), settings=Settings())) == ()


def load(**texts: str) -> tuple[Settings, list[str]]:
    said: list[SettingsError] = []
    environ = {PREFIX + name.upper(): text for name, text in texts.items()}
    return Settings.load(environ=environ, report=said.append), [str(error) for error in said]


@pytest.mark.parametrize(
    "entry",
    [
        '"ftp://user:s3cret@a/"',
        '"s3cret"',
        '"http://a:99999/s3cret"',
        '"http://a..b/s3cret"',
        '"http://.a/s3cret"',
        f'"http://{64 * "a"}/s3cret"',
        '"http://a/s3cret x"',
        '{"url": "http://a", "headers": {"X": "s3cret\\n"}}',
        '{"url": "http://a", "bearer_token_file": "s3cret"}',
        '{"url": "http://a", "timeout": "s3cret"}',
        '{"url": "http://a", "series_limit": 0}',
        '{"url": "http://a", "nonsense": 1}',
        '{"headers": {}}',
        "3",
    ],
)
def test_a_wrong_endpoint_is_off_and_named_and_the_others_go_on(entry: str) -> None:
    settings, (said,) = load(openmetrics_endpoints=f'{{"bad": {entry}, "good": "http://good/"}}')

    assert list(settings.openmetrics_endpoints) == ["good"]
    assert said.startswith(f"{PREFIX}OPENMETRICS_ENDPOINTS: expected for 'bad' ")
    assert "s3cret" not in said
    with pytest.raises(SettingsError):
        Settings.load(environ={PREFIX + "OPENMETRICS_ENDPOINTS": f'{{"bad": {entry}}}'})


@pytest.mark.parametrize(
    "text", ["(", "a(?=b)", r"(a)\1", '["a", "("]', '{"a": {"l": "("}}', '{"a": {"": ".*"}}', r"\C", '{"a": 3}', "a++"]
)
def test_case_120_a_wrong_filter_is_one_error_and_switches_all_endpoints_off(text: str) -> None:
    settings, (said,) = load(openmetrics_filters=text, openmetrics_endpoints='{"a": "http://a"}')

    assert settings.openmetrics_endpoints == {}
    assert said.startswith(f"{PREFIX}OPENMETRICS_FILTERS=")


def test_without_google_re2_a_filter_that_needs_it_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    try:
        settings, (said,) = load(openmetrics_filters="(a+)+$", openmetrics_endpoints='{"a": "http://a"}')
    finally:
        compiled.cache_clear()

    assert settings.openmetrics_endpoints == {}
    assert "pip install otel-sysmetrics[openmetrics]" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("endpoints", '{"a": "http://s3cret", "b": "http://b", "a": "http://s3cret"}'),
        ("endpoints", '{"x": {"url": "http://s3cret", "a": 1, "a": 2}}'),
        ("headers", '{"a": "s3cret", "a": "s3cret"}'),
        ("filters", '{"a": {"gpu": "0"}, "a": {"gpu": "1"}}'),
        ("filters", '{"x": {"a": "0", "a": "1"}}'),
    ],
)
def test_a_key_that_is_there_twice_is_an_error_that_names_it(name: str, text: str) -> None:
    """JSON would let the first go without a word."""
    _, (said,) = load(**{f"openmetrics_{name}": text})

    assert said.endswith("expected each key once (not so for 'a')")
    assert "s3cret" not in said


def test_wrong_headers_switch_everything_off_that_they_are_for() -> None:
    settings, (said,) = load(
        openmetrics_headers='{"X": "s3cret\\r\\n"}', openmetrics_endpoints='{"a": "http://a"}', dcgm_exporter="http://b"
    )

    assert (settings.openmetrics_endpoints, settings.dcgm_exporter) == ({}, None)
    assert said == f"{PREFIX}OPENMETRICS_HEADERS: expected a text of one line for the header X"


def test_headers_are_not_in_the_text_of_the_settings() -> None:
    settings = Settings(
        openmetrics_headers={"X": "s3cret"}, openmetrics_endpoints={"a": Endpoint("http://u:s3cret@a", {"Y": "s3cret"})}
    )

    assert "s3cret" not in repr(settings)

from __future__ import annotations

import gc
import logging
import math
import re
import threading
import weakref
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, NoOpMeter
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from prometheus_client import REGISTRY, generate_latest

from otel_sysmetrics.catalog import health as health_catalog
from otel_sysmetrics.instruments import _entries, forget_all, is_proxy
from otel_sysmetrics.reading import Reading
from otel_sysmetrics.spec import MetricSpec
from tests.fakes import (
    COUNT,
    PATIENCE,
    PER_DEVICE,
    PER_PATH,
    SHARE,
    TOTAL,
    Desk,
    Point,
    all_points,
    encoded_names,
    in_memory,
    points,
    provider_of,
    run_script,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUCCESS: Final = health_catalog.SUCCESS.tag


class State(IntEnum):
    BUSY = 3


class VendorMeter(NoOpMeter):
    """A meter of another SDK: notes each instrument's name and callbacks, and whether a callback made it."""

    def __init__(self) -> None:
        super().__init__("vendor")
        self.names: list[str] = []
        self.callbacks: list[Callable[[CallbackOptions], Any]] = []
        self.asking = threading.local()
        self.made_in_callback: list[str] = []
        self.before_creation: Callable[[], object] = bool

    def create_observable_gauge(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        self._create(*args, **kwargs)

    def create_observable_counter(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        self._create(*args, **kwargs)

    def _create(self, name: str, *, callbacks: list[Callable[[CallbackOptions], Any]], **_: str) -> None:
        self.before_creation()
        self.names.append(name)
        self.callbacks.extend(callbacks)
        if getattr(self.asking, "now", False):
            self.made_in_callback.append(name)

    def collect(self) -> int:
        """Ask every callback, and return how many points there are."""
        self.asking.now = True
        try:
            return sum(len(callback(CallbackOptions())) for callback in tuple(self.callbacks))
        finally:
            self.asking.now = False


class VendorProvider(metrics.MeterProvider):
    """A provider of another SDK, with one meter."""

    def __init__(self) -> None:
        self.meter = VendorMeter()

    def get_meter(self, *_: Any, **__: Any) -> VendorMeter:  # noqa: ANN401
        return self.meter


class Backend(MetricExporter):
    """Where a periodic reader exports to: keeps what came, and answers that it is well."""

    def __init__(self) -> None:
        super().__init__()
        self.exports: list[MetricsData] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: object) -> MetricExportResult:  # noqa: ARG002
        self.exports.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:  # noqa: ARG002
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None: ...


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test when anything is logged from warning on, by us or by the SDK."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def on_path(value: float, path: str, **attributes: Any) -> Reading:  # noqa: ANN401
    return Reading(PER_PATH, value, {"path": path}, attributes)


class TestNames:
    def test_they_keep_their_capitals_over_otlp(self) -> None:
        desk = Desk()
        desk.give(Reading(SHARE, 1), Reading(TOTAL, 2), on_path(3, "/Data"))

        ours = {name for name in encoded_names(desk.reader.get_metrics_data()) if not name.startswith("sysmetrics.")}
        assert ours == {"fake.busyPercent", "fake.sentBytes", "fake./Data.usageGB"}

    def test_they_keep_their_capitals_under_another_sdk_that_asks_for_lower_case(self) -> None:
        provider = VendorProvider()
        Desk(provider).give(Reading(SHARE, 1), Reading(TOTAL, 2))

        assert [name.lower() for name in provider.meter.names[-2:]] == ["fake.busyPercent", "fake.sentBytes"]

    def test_they_keep_their_capitals_over_prometheus(self, prometheus: Callable[[], str]) -> None:
        desk = Desk(provider_of(PrometheusMetricReader()))
        desk.give(Reading(SHARE, 1), on_path(2, "/Data"))

        assert re.search(r"^fake_busyPercent\w*[{ ]", prometheus(), re.MULTILINE)
        assert re.search(r'^fake_+Data_usageGB\w*{.*fake_path="/Data"', prometheus(), re.MULTILINE)

    def test_they_keep_their_capitals_from_the_proxy_to_the_real_provider(self) -> None:
        found = run_script("""
            import json

            from opentelemetry import metrics

            from otel_sysmetrics.reading import Reading
            from tests.fakes import SHARE, TOTAL, Desk, encoded_names, in_memory, provider_of

            early = Desk(metrics.get_meter_provider(), reader=in_memory())
            early.give(Reading(SHARE, 1), Reading(TOTAL, 2))
            provider = provider_of(early.reader)
            metrics.set_meter_provider(provider)
            early.give(Reading(SHARE, 1), Reading(TOTAL, 2))
            before = encoded_names(early.reader.get_metrics_data())
            early.close()
            late = Desk(provider, reader=early.reader)
            late.give(Reading(SHARE, 1), Reading(TOTAL, 2))
            print(json.dumps([sorted(before), sorted(encoded_names(early.reader.get_metrics_data()))]))
        """)

        names = [SHARE.tag, TOTAL.tag, "sysmetrics.collector.duration", "sysmetrics.collector.success"]
        assert found == [names, names]

    @pytest.mark.parametrize(("name", "stands_in"), [("_ProxyMeterProvider", True), ("ProxyMeterProvider", True)])
    def test_a_vendors_proxy_is_known_by_its_name(self, name: str, *, stands_in: bool) -> None:
        assert is_proxy(type(name, (VendorProvider,), {})()) is stands_in
        assert not is_proxy(VendorProvider())
        assert not is_proxy(provider_of())

    def test_originals_that_differ_by_case_share_one_instrument_and_differ_by_attribute(self) -> None:
        desk = Desk()
        desk.give(on_path(1, "/Data"), on_path(2, "/data"))

        data = desk.reader.get_metrics_data()
        assert [name for name in encoded_names(data) if name.startswith("fake")] == ["fake./Data.usageGB"]
        assert [(point.attributes, point.value) for point in points(data)] == [
            ({"fake.path": "/Data"}, 1),
            ({"fake.path": "/data"}, 2),
        ]

    @pytest.mark.parametrize("parts", [("disk", "disk"), ("/my disk", "/my_disk")])
    @pytest.mark.parametrize("spec", [PER_PATH, PER_DEVICE])
    def test_originals_that_become_one_legal_name_stay_two_series(
        self, spec: MetricSpec, parts: tuple[str, str]
    ) -> None:
        ((label, attribute),) = spec.labels
        desk = Desk()
        for value in (10, 11):
            readings = [Reading(spec, value, {label: path}) for path in ("/my disk", "/my_disk")]
            if parts[0] == parts[1]:
                desk.give(*readings, name=parts[0])
            else:
                for part, reading in zip(parts, readings, strict=True):
                    desk.give(reading, name=part)

        found = desk.ask()
        assert len({point.name for point in found}) == 1
        assert sorted(point.attributes[attribute] for point in found) == ["/my disk", "/my_disk"]
        assert {point.value for point in found} == {11 if spec is PER_PATH else 1}

    def test_one_series_that_two_parts_give_is_sent_once_and_not_added_up(self) -> None:
        desk = Desk()
        for value in (10, 15):
            for part in ("one", "other"):
                desk.give(Reading(PER_DEVICE, value, {"dev": "sda"}), name=part)

        assert len(desk.ask()) == 1
        assert desk.ask()[0].value <= 5

    def test_case_132_paths_of_any_text_are_sent_and_none_is_merged(self) -> None:
        paths = ["/", "/mnt/My Data", "C:\\", "/données", "/donn_es", "up:rate5m", 300 * "a", 301 * "a", "_", "9"]
        desk = Desk()
        desk.give(*(on_path(turn, path) for turn, path in enumerate(paths)))

        found = desk.ask()
        assert {(point.attributes["fake.path"], point.value) for point in found} == {
            (path, turn) for turn, path in enumerate(paths)
        }
        assert encoded_names(desk.reader.get_metrics_data())


class TestAttributes:
    def test_those_of_the_setting_stand_on_every_point(self) -> None:
        desk = Desk(attributes={"team": "vision", "size": 4})
        desk.give(Reading(SHARE, 1), Reading(TOTAL, 2), on_path(3, "/"))

        found = all_points(desk.reader.get_metrics_data())
        assert len(found) == 5
        assert all({"team": "vision", "size": 4}.items() <= point.attributes.items() for point in found)

    def test_a_reading_says_more_exactly_than_a_setting_and_its_label_most_exactly(self) -> None:
        desk = Desk(attributes={"fake.path": "setting", "fake.mountpoint": "setting"})
        desk.give(on_path(1, "/a", **{"fake.mountpoint": "/", "fake.path": "reading"}))

        assert desk.ask()[0].attributes == {"fake.path": "/a", "fake.mountpoint": "/"}

    def test_an_attribute_that_is_unknown_is_left_out(self) -> None:
        desk = Desk()
        desk.give(on_path(1, "/a", **{"fake.mountpoint": None}))

        assert desk.ask()[0].attributes == {"fake.path": "/a"}

    def test_a_number_stays_a_number(self) -> None:
        desk = Desk()
        desk.give(Reading(PER_PATH, 1, {"path": 7}))

        assert desk.ask() == [Point("fake.7.usageGB", {"fake.path": 7}, 1)]

    def test_one_that_changes_makes_another_series_in_place_of_the_first(self) -> None:
        desk = Desk()
        desk.give(on_path(1, "/a", **{"fake.mountpoint": "/"}))
        desk.give(on_path(1, "/a", **{"fake.mountpoint": "/a"}))

        assert [point.attributes["fake.mountpoint"] for point in desk.ask()] == ["/a"]


class TestSelection:
    def test_only_what_is_chosen_is_created_and_sent(self) -> None:
        provider = VendorProvider()
        desk = Desk(provider, included=["fake./a.*", "sysmetrics.*"], excluded=["*.duration"])
        desk.give(Reading(SHARE, 1), on_path(1, "/a"), on_path(1, "/b"))

        assert provider.meter.names == [SUCCESS, "fake./a.usageGB"]

    def test_success_is_created_even_where_it_is_excluded_so_that_there_is_something_to_ask(self) -> None:
        provider = VendorProvider()
        Desk(provider, included=[])

        assert provider.meter.names == [SUCCESS]
        assert provider.meter.collect() == 0


class TestIllValues:
    ILL: Final = (None, True, math.nan, math.inf, -math.inf, 2**63, 2**64 - 1, "7", b"7", [7])

    @pytest.mark.parametrize("spec", [SHARE, COUNT, TOTAL])
    @pytest.mark.usefixtures("quiet")
    def test_each_costs_itself_only_and_the_whole_export_is_encoded(self, spec: MetricSpec) -> None:
        desk = Desk()
        for value in self.ILL:
            ill: Any = value
            desk.give(Reading(spec, ill), on_path(1, "/a"))
            data = desk.reader.get_metrics_data()

            assert [point.name for point in points(data)] == ["fake./a.usageGB"]
            assert encoded_names(data)

    def test_case_128_an_integer_beyond_64_bits_costs_itself_only(self) -> None:
        desk = Desk()
        readings = [on_path(value, str(value)) for value in (2**63 - 1, 2**63, 2**64 - 1, 17131960503145336928)]
        desk.give(*readings)

        data = desk.reader.get_metrics_data()
        assert [point.value for point in points(data)] == [2**63 - 1]
        assert len(encoded_names(data)) == 3

    @pytest.mark.usefixtures("quiet")
    def test_case_129_what_is_not_finite_never_becomes_an_observation(self) -> None:
        provider = VendorProvider()
        desk = Desk(provider, excluded=["sysmetrics.*"])
        desk.give(*(on_path(value, str(value)) for value in (math.nan, math.inf, -math.inf, 0.0 * math.inf, 1.0)))

        assert provider.meter.names == [SUCCESS, "fake.1.0.usageGB"]
        assert provider.meter.collect() == 1

    def test_case_130_attributes_are_text_bool_or_number_before_they_reach_the_sdk(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        desk = Desk()
        desk.give(
            on_path(1, "/a", none=None, bytes=b"GPU", state=State.BUSY, text="\udcff", nan=math.nan, yes=True),
            on_path(2, "/b", things=["unhashable"]),
            on_path(3, "/c"),
        )
        data = desk.reader.get_metrics_data()

        assert {point.attributes["fake.path"]: point.attributes for point in points(data)} == {
            "/a": {"fake.path": "/a", "state": 3, "text": "?", "yes": True},
            "/c": {"fake.path": "/c"},
        }
        assert encoded_names(data)
        assert [record.name for record in caplog.records] == ["otel_sysmetrics"]

    @pytest.mark.parametrize(
        ("spec", "labels"),
        [
            (MetricSpec(tag="fake.badUnit", unit="°C", brief="X.", collectors=("cpu",)), {}),
            (MetricSpec(tag="9fake.badName", unit="1", brief="X.", collectors=("cpu",)), {}),
            (PER_PATH, {"dev": "sda"}),
        ],
    )
    def test_what_the_sdk_refuses_costs_itself_only_and_is_said_once(
        self, spec: MetricSpec, labels: dict[str, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        desk = Desk()
        for turn in range(5):
            desk.give(Reading(spec, 1, labels), Reading(COUNT, turn))
            assert desk.value(COUNT) == turn

        assert [record.getMessage().partition(" cannot be sent: ")[0] for record in caplog.records] == [
            f"otel-sysmetrics: {spec.tag}"
        ]

    def test_case_131_every_sort_of_point_is_encoded_cumulative_and_delta(self) -> None:
        for delta in (False, True):
            desk = Desk(delta=delta, attributes={"text": "é", "flag": True, "number": 2**63 - 1, "share": 0.5})
            for turn in (1, 2):
                desk.give(Reading(SHARE, turn), Reading(COUNT, -turn), Reading(TOTAL, 1.5 * turn), on_path(turn, "/é"))

                assert len(encoded_names(desk.reader.get_metrics_data())) == 6


class TestCase126:
    """Instrumenting, ending it and instrumenting again, on one provider."""

    @pytest.mark.usefixtures("quiet")
    def test_case_126_each_series_comes_once_and_counters_go_on(self) -> None:
        first = Desk()
        sent = []
        for value in (1000, 1500):
            first.give(Reading(TOTAL, value), on_path(1, "/a"))
        sent.append(first.value(TOTAL))
        first.close()
        assert all_points(first.reader.get_metrics_data()) == []

        second = Desk(first.provider, reader=first.reader)
        for value in (0, 40):
            second.give(Reading(TOTAL, value), on_path(2, "/a"))
            sent.append(second.value(TOTAL))

        assert sent == [500, 500, 540]
        assert [(point.name, point.value) for point in second.ask()] == [(TOTAL.tag, 540), ("fake./a.usageGB", 2)]
        assert sorted(encoded_names(second.reader.get_metrics_data())) == sorted(
            [TOTAL.tag, "fake./a.usageGB", SUCCESS, health_catalog.DURATION.tag]
        )

    def test_case_126_delta_is_never_negative_either(self) -> None:
        first = Desk(delta=True)
        for value in (1000, 1500):
            first.give(Reading(TOTAL, value))
        assert first.value(TOTAL) == 500
        first.close()
        second = Desk(first.provider, reader=first.reader)

        second.give(Reading(TOTAL, 0))
        assert second.value(TOTAL) == 0
        second.give(Reading(TOTAL, 40))
        assert second.value(TOTAL) == 40

    def test_case_126_nothing_is_left_of_other_choices_before(self) -> None:
        first = Desk(attributes={"run": 1})
        first.give(Reading(SHARE, 1), Reading(COUNT, 1))
        first.close()
        second = Desk(first.provider, reader=first.reader, attributes={"run": 2}, included=[COUNT.tag])
        second.give(Reading(SHARE, 1), Reading(COUNT, 1))

        assert second.ask() == [Point(COUNT.tag, {"run": 2}, 1)]

    def test_case_126_what_a_late_thread_publishes_after_the_end_is_not_served(self) -> None:
        first = Desk()
        first.give(Reading(COUNT, 1))
        first.close()
        first.give(Reading(COUNT, 2))
        assert first.ask() == []

        second = Desk(first.provider, reader=first.reader)
        second.give(Reading(COUNT, 3))
        first.give(Reading(COUNT, 4))
        assert second.value(COUNT) == 3
        first.close()
        assert second.value(COUNT) == 3

    def test_case_126_two_providers_do_not_disturb_each_other(self) -> None:
        one, other = Desk(), Desk()
        for value in (0, 10):
            one.give(Reading(TOTAL, value))
        other.give(Reading(TOTAL, 7))
        assert (one.value(TOTAL), other.value(TOTAL)) == (10, 0)

        one.close()
        assert (one.value(TOTAL), other.value(TOTAL)) == (None, 0)


def test_in_a_forked_child_nothing_is_served_and_counters_begin_anew() -> None:
    first = Desk()
    for value in (10, 15):
        first.give(Reading(TOTAL, value))
    assert first.value(TOTAL) == 5

    forget_all()

    assert all_points(first.reader.get_metrics_data()) == []
    second = Desk(first.provider, reader=first.reader)
    second.give(Reading(TOTAL, 20))
    assert second.value(TOTAL) == 0


class TestCreation:
    def test_no_instrument_is_created_in_a_callback(self) -> None:
        provider = VendorProvider()
        desk = Desk(provider, on_ask=lambda: None)
        for turn in range(3):
            desk.give(Reading(SHARE, 1), Reading(TOTAL, 1), on_path(1, f"/{turn}"))
            assert provider.meter.collect() > 0

        assert len(provider.meter.names) == len(set(provider.meter.names)) == 7
        assert provider.meter.made_in_callback == []

    def test_a_thousand_are_made_in_a_thread_while_a_reader_collects_and_neither_stops_the_other(self) -> None:
        desk = Desk()
        readings = [on_path(turn, f"/{turn}") for turn in range(1000)]
        made, collects = threading.Event(), list[int]()

        def collect() -> None:
            while not made.wait(0.01):
                collects.append(len(desk.ask()))

        reader = threading.Thread(target=collect, daemon=True)
        maker = threading.Thread(target=desk.give, args=readings, daemon=True)
        reader.start()
        until(lambda: len(collects) > 0)
        maker.start()
        maker.join(PATIENCE)
        made.set()
        reader.join(PATIENCE)

        assert not maker.is_alive()
        assert not reader.is_alive()
        assert sorted(point.value for point in desk.ask()) == list(range(1000))

    def test_case_123_a_callback_answers_while_a_sampling_thread_is_held_up_in_the_sdk(self) -> None:
        provider, stuck, release = VendorProvider(), threading.Event(), threading.Event()
        desk = Desk(provider)
        desk.give(Reading(COUNT, 1))

        def wait() -> None:
            stuck.set()
            assert release.wait(PATIENCE)

        provider.meter.before_creation = wait
        thread = threading.Thread(target=desk.give, args=[on_path(1, "/a")], kwargs={"name": "/a"}, daemon=True)
        thread.start()
        assert stuck.wait(PATIENCE)
        try:
            assert provider.meter.collect() == 1 + len(desk.healths) * 2
        finally:
            release.set()
            thread.join(PATIENCE)
        assert not thread.is_alive()

    def test_two_parts_that_meet_in_one_name_create_it_once(self) -> None:
        provider = VendorProvider()
        desk = Desk(provider)
        threads = [
            threading.Thread(target=desk.give, args=[on_path(1, path) for path in ("/A", "/b")], kwargs={"name": name})
            for name in "abcdefgh"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)

        assert sorted(provider.meter.names[2:]) == ["fake./A.usageGB", "fake./b.usageGB"]

    def test_a_provider_that_is_gone_is_not_held(self) -> None:
        desk = Desk()
        desk.give(Reading(SHARE, 1))
        provider, entry = weakref.ref(desk.provider), weakref.ref(desk.instruments._entry)
        del desk
        gc.collect()
        assert provider() is None

        Desk()
        assert entry() not in _entries  # the oldest SDK lets go of no instrument, and so of no trampoline

    def test_a_provider_that_was_shut_down_takes_everything_in_silence(self) -> None:
        desk = Desk()
        desk.provider.shutdown()  # type: ignore[attr-defined] # the SDK's own
        again = Desk(desk.provider, reader=in_memory())

        again.give(Reading(SHARE, 1))


class TestAsking:
    def test_the_first_callback_starts_what_waits_for_it_and_no_later_one_does(self) -> None:
        asks: list[None] = []
        desk = Desk(on_ask=lambda: asks.append(None))
        assert asks == []

        for _ in range(3):
            desk.ask()
        assert len(asks) == 1

    @pytest.mark.usefixtures("quiet")
    def test_a_thread_that_cannot_be_started_any_more_is_no_error_of_the_export(self) -> None:
        def fail() -> None:
            raise RuntimeError("can't start new thread at interpreter shutdown")

        desk = Desk(on_ask=fail)
        desk.give(Reading(COUNT, 1))

        assert desk.value(COUNT) == 1


@pytest.fixture
def prometheus() -> Iterator[Callable[[], str]]:
    """Return what scrapes this process; afterwards nothing of the test is left to scrape."""
    before = set(REGISTRY._collector_to_names)
    yield lambda: generate_latest(REGISTRY).decode()
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def test_a_scrape_beside_a_periodic_reader_disturbs_neither(prometheus: Callable[[], str]) -> None:
    backend = Backend()
    periodic = PeriodicExportingMetricReader(backend, export_interval_millis=200)
    provider = provider_of(periodic, PrometheusMetricReader())
    desk = Desk(provider)
    for value in (10, 30):
        desk.give(Reading(SHARE, value), Reading(TOTAL, value))

    def exported() -> list[Point]:
        return [point for data in tuple(backend.exports) for point in points(data)]

    until(lambda: len(exported()) >= 2)
    desk.give(Reading(SHARE, 50), Reading(TOTAL, 50))
    scraped = prometheus()
    provider.shutdown()

    assert exported()[:2] == [Point(SHARE.tag, {}, 20.0), Point(TOTAL.tag, {}, 20)]
    assert exported()[-2:] == [Point(SHARE.tag, {}, 50.0), Point(TOTAL.tag, {}, 40)]
    lines = [line for line in scraped.splitlines() if line.startswith("fake_")]
    assert sorted(float(line.split()[-1]) for line in lines) in ([40.0, 50.0], [30.0, 40.0])

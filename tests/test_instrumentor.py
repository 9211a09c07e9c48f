from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points, metadata
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry import metrics
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource

from otel_sysmetrics import environment_variables
from otel_sysmetrics.catalog import KINDS
from otel_sysmetrics.environment_variables import PREFIX
from otel_sysmetrics.instrumentor import Attachment, SysMetricsInstrumentor
from otel_sysmetrics.settings import Settings
from otel_sysmetrics.threads import Lanes
from tests.fakes import (
    ScriptedClock,
    all_points,
    in_memory,
    machine,
    our_threads,
    provider_of,
    run_script,
    until,
    values,
)
from tests.trees import write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes import Point

SUCCESS: Final = "sysmetrics.collector.success"
MEMORY: Final = {"memory_percent": 75.0, "proc.memory.availableMB": 256.0}


class App:
    """An application with a MeterProvider of its own, on a small machine."""

    def __init__(self, root: Path, **resource: str) -> None:
        self.root = root
        self.reader = in_memory()
        self.provider = provider_of(self.reader, **resource)
        self.instrumentor = SysMetricsInstrumentor()

    @property
    def settings(self) -> dict[str, Any]:
        """What reads the machine's memory ten times a second."""
        return {"root_path": str(self.root), "collectors": "memory", "sampling_interval": 0.1}

    def instrument(self, **keywords: object) -> None:
        """Instrument with these settings on top."""
        self.instrumentor.instrument(**{"meter_provider": self.provider, **self.settings, **keywords})

    def points(self) -> list[Point]:
        """Collect."""
        return all_points(self.reader.get_metrics_data())

    def first_sample(self) -> dict[str, float]:
        """Wait until a part has published its first sample, and return it."""

        def published() -> bool:
            attachment = self.instrumentor.attachment
            return attachment is not None and any(health.samples for health in attachment.sampler.healths)

        until(published, "the first sample")
        return values(self.reader.get_metrics_data())

    def hang(self, name: str) -> None:
        """Put in place of a file one whose reader hangs in the kernel."""
        (self.root / name).unlink()
        os.mkfifo(self.root / name)

    def end(self) -> None:
        """End everything, and let whoever hangs go on with an empty file."""
        if self.instrumentor.is_instrumented_by_opentelemetry:
            self.instrumentor.uninstrument()
        for path in self.root.rglob("*"):
            if path.is_fifo():
                with open(os.open(path, os.O_RDWR | os.O_NONBLOCK), "w", encoding="utf-8") as pipe:
                    pipe.write("\n")
                    path.unlink()
        until(lambda: not our_threads(), "the end of all threads")


@pytest.fixture(autouse=True)
def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings of whoever runs the tests."""
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """Return an application that is not instrumented yet."""
    write_tree(tmp_path, machine())
    app = App(tmp_path)
    yield app
    app.end()


def errors(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


class TestInstrument:
    def test_under_a_real_provider_sampling_starts_at_once(self, app: App) -> None:
        app.instrument()
        until(lambda: "otel-sysmetrics memory" in our_threads())

        assert app.first_sample() == MEMORY

    def test_it_takes_ready_settings_too(self, app: App) -> None:
        app.instrumentor.instrument(meter_provider=app.provider, settings=Settings(**app.settings))

        assert app.first_sample() == MEMORY

    def test_the_environment_is_read_where_no_keyword_is_given(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {**app.settings, "metrics_included": "memory_percent"}.items():
            monkeypatch.setenv(PREFIX + name.upper(), str(value))
        app.instrumentor.instrument(meter_provider=app.provider)

        assert app.first_sample() == {"memory_percent": 75.0}

    def test_uninstrument_silences_everything_and_ends_the_threads(self, app: App) -> None:
        app.instrument()
        app.first_sample()

        app.instrumentor.uninstrument()

        assert app.points() == []
        until(lambda: not our_threads())

    def test_case_126_each_series_comes_once_after_uninstrument_and_instrument(
        self, app: App, caplog: pytest.LogCaptureFixture
    ) -> None:
        app.instrument(attributes={"run": 1})
        app.first_sample()
        app.instrumentor.uninstrument()
        app.instrument(attributes={"run": 2})

        assert app.first_sample() == MEMORY
        found = [point for point in app.points() if not point.name.endswith("duration")]
        assert sorted(point.name for point in found) == sorted([*MEMORY, SUCCESS])
        assert {point.attributes["run"] for point in found} == {2}
        assert errors(caplog) == []

    def test_instrumenting_twice_changes_nothing(self, app: App) -> None:
        for run in (1, 2):
            app.instrument(attributes={"run": run})

        app.first_sample()
        assert {point.attributes["run"] for point in app.points()} == {1}

    def test_case_123_it_waits_for_no_hardware_that_hangs_and_nothing_else_does(self, app: App) -> None:
        app.hang("proc/stat")
        app.instrument(collectors="cpu,memory")
        until(lambda: "otel-sysmetrics cpu" in our_threads())

        assert app.first_sample() == MEMORY
        found = {point.attributes.get("collector"): point.value for point in app.points() if point.name == SUCCESS}
        assert found == {"memory": 1}
        app.instrumentor.uninstrument()
        until(lambda: our_threads() == ["otel-sysmetrics cpu"])
        app.instrument(collectors="cpu,memory")
        assert app.first_sample() == MEMORY
        assert our_threads().count("otel-sysmetrics cpu") == 1


class TestNeverRaises:
    @pytest.mark.parametrize(
        ("name", "text", "expected"),
        [
            ("sampling_interval", "soon", "a number of seconds from 0.1 to 86400"),
            ("track_process_tree", "1", "true or false"),
            ("attributes", "team=vision", "a map of attribute to text"),
        ],
    )
    def test_a_bad_variable_is_one_error_and_the_default_holds(  # noqa: PLR0913 - a table
        self,
        app: App,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        name: str,
        text: str,
        expected: str,
    ) -> None:
        monkeypatch.setenv(PREFIX + name.upper(), text)
        app.instrumentor.instrument(meter_provider=app.provider, root_path=str(app.root), collectors="memory")

        assert app.first_sample() == MEMORY
        (error,) = errors(caplog)
        assert error.startswith(f"otel-sysmetrics: {PREFIX}{name.upper()}={text!r}: expected {expected}")

    @pytest.mark.parametrize("name", ["collectors", "metrics_included", "metrics_excluded"])
    def test_a_bad_filter_is_one_error_and_nothing_is_sent(
        self, app: App, caplog: pytest.LogCaptureFixture, name: str
    ) -> None:
        app.instrument(**{name: "gpu.[0"})
        until(lambda: not our_threads(), "the end of a sampler without parts")

        assert app.points() == []
        assert len(errors(caplog)) == 1

    def test_an_unknown_keyword_is_one_error_and_the_rest_holds(
        self, app: App, caplog: pytest.LogCaptureFixture
    ) -> None:
        app.instrument(sampling_intervall=5)

        assert app.first_sample() == MEMORY
        (error,) = errors(caplog)
        assert error.startswith("otel-sysmetrics: sampling_intervall=5: expected one of the settings")

    @pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(1), KeyboardInterrupt()])
    def test_a_provider_that_raises_is_one_error(
        self, app: App, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(metrics.MeterProvider):
            def get_meter(self, *_: Any, **__: Any) -> metrics.Meter:  # noqa: ANN401
                raise error

        app.instrument(meter_provider=Broken())

        assert [line.partition(":")[0] for line in errors(caplog)] == ["otel-sysmetrics is off"]
        assert our_threads() == []

    def test_what_is_no_provider_at_all_is_one_error(self, app: App, caplog: pytest.LogCaptureFixture) -> None:
        app.instrument(meter_provider="otlp")

        assert errors(caplog) == ["otel-sysmetrics is off: AttributeError: 'str' object has no attribute 'get_meter'"]

    def test_case_133_no_line_at_all_for_hardware_that_is_absent(
        self, app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(app.root))
        app.instrument(collectors=",".join(KINDS))
        app.first_sample()

        assert errors(caplog, logging.INFO) == []

    @pytest.mark.parametrize(
        "failure", ['ImportError("wrong ELF class: ELFCLASS32")', 'OSError("cannot open")', "SystemExit(3)"]
    )
    def test_case_135_a_kind_whose_module_cannot_be_imported_costs_itself_only(self, app: App, failure: str) -> None:
        """A broken library below it may raise anything, also what is no Exception."""
        found = run_script(
            """
            import json
            import logging
            import sys

            from tests.fakes import in_memory, provider_of, until, values

            class Broken:
                def find_spec(self, name, path=None, target=None):
                    if name == "otel_sysmetrics.collectors.cpu":
                        raise """
            + failure
            + """

            class Lines(logging.Handler):
                lines = []

                def emit(self, record):
                    self.lines.append(record.getMessage())

            sys.meta_path.insert(0, Broken())
            logging.getLogger().addHandler(Lines())
            from otel_sysmetrics import SysMetricsInstrumentor

            reader = in_memory()
            provider = provider_of(reader)
            SysMetricsInstrumentor().instrument(
                meter_provider=provider, root_path=sys.argv[1], collectors="cpu,memory", sampling_interval=0.1
            )
            until(lambda: len(values(reader.get_metrics_data())) == 2)
            print(json.dumps([values(reader.get_metrics_data()), Lines.lines]))
            """,
            str(app.root),
        )

        assert found[0] == MEMORY
        (line,) = found[1]
        assert line.startswith("otel-sysmetrics: cpu is left out, it cannot be loaded: ")

    def test_case_135_an_application_under_auto_instrumentation_runs_whatever_is_broken(self, tmp_path: Path) -> None:
        """A psutil of another architecture and a setting that cannot be read: one line, and the application runs."""
        (tmp_path / "psutil.py").write_text("raise ImportError('wrong ELF class: ELFCLASS32')\n")
        done = subprocess.run(
            [
                os.path.join(os.path.dirname(sys.executable), "opentelemetry-instrument"),
                *(sys.executable, "-c", "print('the application ran')"),
            ],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
                "PYTHONPATH": str(tmp_path),
                "OTEL_METRICS_EXPORTER": "none",
                "OTEL_TRACES_EXPORTER": "none",
                "OTEL_LOGS_EXPORTER": "none",
                "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "system_metrics",
                PREFIX + "SAMPLING_INTERVAL": "soon",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert (done.returncode, done.stdout) == (0, "the application ran\n")
        assert "Traceback" not in done.stderr
        assert done.stderr.count("OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL='soon'") == 1


class TestNothingToDo:
    def test_a_no_op_provider_gets_no_thread(self, app: App) -> None:
        app.instrument(meter_provider=NoOpMeterProvider())

        assert our_threads() == []

    def test_a_disabled_sdk_gets_no_thread(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        app = App(tmp_path)
        app.instrument()

        assert our_threads() == []
        assert app.points() == []
        app.end()

    def test_the_setting_disabled_does_nothing_at_all(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(PREFIX + "DISABLED", "true")
        app.instrument()

        assert our_threads() == []
        assert app.points() == []


class TestProxy:
    def test_sampling_starts_at_the_first_callback_and_not_before(self, app: App) -> None:
        found = run_script(
            """
            import json
            import sys

            from opentelemetry import metrics

            from otel_sysmetrics import SysMetricsInstrumentor
            from tests.fakes import all_points, in_memory, our_threads, points, provider_of, until, values

            reader, threads = in_memory(), []
            keywords = {"root_path": sys.argv[1], "collectors": "memory", "sampling_interval": 0.1}
            SysMetricsInstrumentor().instrument(**keywords)
            threads.append(our_threads())
            provider = provider_of(reader)
            metrics.set_meter_provider(provider)
            threads.append(our_threads())
            until(lambda: len(values(reader.get_metrics_data())) == 2)
            threads.append("otel-sysmetrics memory" in our_threads())
            first = values(reader.get_metrics_data())
            SysMetricsInstrumentor().uninstrument()
            after = all_points(reader.get_metrics_data())
            SysMetricsInstrumentor().instrument(**keywords)
            until(lambda: len(values(reader.get_metrics_data())) == 2)
            again = sorted(point.name for point in points(reader.get_metrics_data()))
            print(json.dumps([threads, first, after, again]))
            """,
            str(app.root),
        )

        assert found == [[[], [], True], MEMORY, [], sorted(MEMORY)]

    def test_a_first_callback_in_the_final_flush_is_quiet(self, app: App) -> None:
        assert run_script(
            """
            import sys

            from opentelemetry import metrics
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

            from otel_sysmetrics import SysMetricsInstrumentor

            SysMetricsInstrumentor().instrument(root_path=sys.argv[1])
            reader = PeriodicExportingMetricReader(ConsoleMetricExporter(sys.stderr), 3_600_000)
            metrics.set_meter_provider(MeterProvider([reader]))
            print("true")
            """,
            str(app.root),
        )


class TestIdentity:
    HERE: Final = {"host.name": socket.gethostname(), "process.pid": os.getpid()}

    @pytest.mark.parametrize(
        ("resource", "environ", "told"),
        [
            ({"service.instance.id": "from code"}, "", False),
            ({}, "", True),
            ({"service.name": "training"}, "", True),
            ({"service.instance.id": "configured"}, "service.instance.id=configured", True),
            ({"service.instance.id": "from code"}, "service.instance.id=configured", False),
            ({"service.instance.id": "from code"}, "team=vision", False),
        ],
    )
    def test_points_tell_host_and_process_only_where_the_resource_does_not(
        self,
        app: App,
        monkeypatch: pytest.MonkeyPatch,
        resource: dict[str, str],
        environ: str,
        *,
        told: bool,
    ) -> None:
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", environ)
        app = App(app.root, **{key.replace(".", "__"): value for key, value in resource.items()})
        app.instrument()
        app.first_sample()

        for point in app.points():
            told_here = {key: value for key, value in point.attributes.items() if key in self.HERE}
            assert told_here == (self.HERE if told else {})

    def test_under_our_own_provider_the_resource_tells(self, app: App) -> None:
        app.instrument(on_stop=lambda: None)
        app.first_sample()

        assert [point.attributes for point in app.points() if point.name in MEMORY] == [{}, {}]

    def test_the_rank_stands_on_every_point_where_it_is_asked_for(
        self, app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, text in (("RANK", "3"), ("WORLD_SIZE", "8"), ("SLURM_JOB_ID", "77")):
            monkeypatch.setenv(name, text)
        app.instrument(rank_attributes=True, attributes={"team": "vision", "rank": "mine"})
        app.first_sample()

        expected = {"rank": "mine", "world_size": 8, "slurm.job_id": "77", "team": "vision"}
        assert all(expected.items() <= point.attributes.items() for point in app.points())


FORK: Final = """
    import json
    import os
    import socket
    import sys
    import warnings

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    from otel_sysmetrics import SysMetricsInstrumentor
    from tests.fakes import in_memory, our_threads, points, until

    class Older(MeterProvider):
        def _handle_fork(self):
            pass

    warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, since Python 3.12
    reader = in_memory()
    resource = {"service.instance.id": "the parent"} if sys.argv[3] == "with" else {}
    provider = {"older": Older, "newest": MeterProvider}[sys.argv[2]]([reader], Resource(resource))
    SysMetricsInstrumentor().instrument(
        meter_provider=provider,
        root_path=sys.argv[1],
        collectors="memory",
        host_metrics="always",
        sampling_interval=0.1,
    )

    def found():
        until(lambda: len(points(reader.get_metrics_data())) == 2)
        data = reader.get_metrics_data()
        (resource,) = data.resource_metrics
        names = [point.name for point in points(data)]
        ours = {json.dumps(dict(point.attributes)) for point in points(data)}
        return [names, resource.resource.attributes.get("service.instance.id"), *map(json.loads, ours)]

    parent, children = found(), []
    for _ in range(4):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                said = [os.getpid(), our_threads(), found(), "otel-sysmetrics memory" in our_threads()]
                os.write(send, json.dumps(said).encode())
                SysMetricsInstrumentor().uninstrument()
            finally:
                os._exit(0)
        os.close(send)
        with os.fdopen(receive) as pipe:
            children.append(json.loads(pipe.read()))
        os.waitpid(child, 0)
    print(json.dumps([[os.getpid(), socket.gethostname()], parent, found(), children]))
"""


class TestFork:
    """Under the application's own provider; SDKs before 1.43 keep the instance id in a child, later ones make a new."""

    @pytest.mark.parametrize("instance_id", ["with", "without"])
    @pytest.mark.parametrize("sdk", ["older", "newest"])
    def test_a_child_reports_itself_from_its_first_callback_on_and_the_parent_goes_on(
        self, app: App, sdk: str, instance_id: str
    ) -> None:
        (pid, host), before, after, children = run_script(FORK, str(app.root), sdk, instance_id)

        names = list(MEMORY)
        parents_id = "the parent" if instance_id == "with" else None
        parent = {} if parents_id else {"host.name": host, "process.pid": pid}
        assert before == after == [names, parents_id, parent]
        assert len({child for child, *_ in children}) == 4
        for child, threads_before, (found, childs_id, attributes), sampling in children:
            here = {"host.name": host, "process.pid": child}
            assert (threads_before, sampling) == ([], True)
            assert found == names
            assert attributes == here if childs_id == parents_id else attributes in ({}, here)

    @pytest.mark.parametrize(
        ("childs_id", "told_apart_by"), [("child", set()), ("parent", {"host.name", "process.pid"})]
    )
    def test_a_child_that_is_forked_before_the_first_sample_is_told_apart_by_its_own_id_where_it_has_one(
        self, childs_id: str, told_apart_by: set[str]
    ) -> None:
        """As a server's first worker is."""
        provider = provider_of(in_memory(), service__instance__id="parent")
        attachment = Attachment(provider, Settings(rank_attributes=False))
        provider._sdk_config = replace(provider._sdk_config, resource=Resource({"service.instance.id": childs_id}))
        attachment.after_fork(Lanes())

        assert set(attachment._attributes()) == told_apart_by

    def test_a_child_of_an_application_that_is_not_instrumented_starts_nothing(self) -> None:
        assert run_script("""
            import os
            import warnings

            from otel_sysmetrics import SysMetricsInstrumentor
            from tests.fakes import our_threads

            warnings.simplefilter("ignore", DeprecationWarning)
            assert SysMetricsInstrumentor
            child = os.fork()
            if child == 0:
                os._exit(bool(our_threads()))
            print("true" if os.waitpid(child, 0)[1] == 0 else "false")
        """)


GEVENT: Final = """
    import json
    import sys

    if sys.argv[2] == "before":
        from gevent import monkey

        monkey.patch_all()

    from opentelemetry import metrics

    from otel_sysmetrics import SysMetricsInstrumentor
    from tests.fakes import in_memory, provider_of, until, values

    reader, found = in_memory(), []

    def instrument():
        SysMetricsInstrumentor().instrument(
            root_path=sys.argv[1], collectors="cpu,memory", sampling_interval=0.1
        )

    def sample():
        until(lambda: len(values(reader.get_metrics_data())) == 2)
        found.append(values(reader.get_metrics_data()))

    instrument()
    if sys.argv[2] == "after":
        from gevent import monkey

        monkey.patch_all()
    metrics.set_meter_provider(provider_of(reader))
    sample()
    SysMetricsInstrumentor().uninstrument()
    instrument()
    sample()
    print(json.dumps(found))
"""


@pytest.mark.parametrize("patched", ["before", "after"])
def test_case_125_patching_by_gevent_before_or_after_stops_nothing(app: App, patched: str) -> None:
    """One part hangs in the kernel meanwhile: it may not stop the greenlets of the application."""
    app.hang("proc/stat")

    assert run_script(GEVENT, str(app.root), patched) == [MEMORY, MEMORY]


EXIT: Final = """
    import json
    import os
    import sys

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

    from otel_sysmetrics import SysMetricsInstrumentor
    from tests.fakes import in_memory, our_threads, until, values

    class Backend(ConsoleMetricExporter):
        def export(self, metrics_data, **_):
            print(json.dumps(values(metrics_data)))

    probe = in_memory()
    provider = MeterProvider([PeriodicExportingMetricReader(Backend(), 3_600_000), probe])
    SysMetricsInstrumentor().instrument(
        meter_provider=provider, root_path=sys.argv[1], collectors="cpu,memory", sampling_interval=0.5
    )
    until(lambda: "otel-sysmetrics cpu" in our_threads() and len(values(probe.get_metrics_data())) == 2)
    sys.exit()
"""


def test_case_134_a_hung_part_neither_delays_the_exit_nor_costs_the_final_export(app: App) -> None:
    """Where the exit waits for it, that takes the reader's 30 s."""
    app.hang("proc/stat")

    assert run_script(EXIT, str(app.root), seconds=20) == MEMORY


SUPPRESSED: Final = """
    import json
    import sys

    from opentelemetry.instrumentation.utils import is_instrumentation_enabled

    from otel_sysmetrics import SysMetricsInstrumentor
    from tests.fakes import in_memory, provider_of, until

    seen = []

    def look(event, arguments):
        if event == "open" and str(arguments[0]).endswith("proc/meminfo"):
            seen.append(is_instrumentation_enabled())

    sys.addaudithook(look)
    provider = provider_of(in_memory())
    SysMetricsInstrumentor().instrument(
        meter_provider=provider, root_path=sys.argv[1], collectors="memory", sampling_interval=0.1
    )
    until(lambda: len(seen) > 1)
    print(json.dumps([seen[0], is_instrumentation_enabled()]))
"""


def test_nothing_that_a_sampling_thread_does_makes_a_span(app: App) -> None:
    assert run_script(SUPPRESSED, str(app.root)) == [False, True]


class TestPackaging:
    def test_opentelemetry_finds_it_by_entry_point(self) -> None:
        (instrumentor,) = entry_points(group="opentelemetry_instrumentor", name="sysmetrics")
        (variables,) = entry_points(group="opentelemetry_environment_variables", name="sysmetrics")

        assert instrumentor.load() is SysMetricsInstrumentor
        assert variables.load() is environment_variables

    def test_it_depends_on_no_library_that_would_have_to_be_there(self) -> None:
        assert tuple(SysMetricsInstrumentor().instrumentation_dependencies()) == ()

    def test_its_distribution_has_the_extra_without_which_older_releases_instrument_nothing(self) -> None:
        assert "instruments" in (metadata("otel-sysmetrics").get_all("Provides-Extra") or [])


def test_the_watched_process_is_the_application_itself_or_the_one_that_was_named() -> None:
    def watched(settings: Settings) -> int | None:
        return Attachment(provider_of(), settings, clock=ScriptedClock())._watch()

    assert watched(Settings()) == os.getpid()
    assert watched(Settings(pid=42)) == 42
    assert watched(Settings(root_path="/host")) is None
    assert watched(Settings(root_path="/host", pid=42)) == 42

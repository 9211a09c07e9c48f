"""Trainium and Inferentia: neuron-monitor as it answers, dies, falls silent and is not there."""

from __future__ import annotations

import json
import os
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collector import NotHere, Unavailable
from otel_sysmetrics.collectors.trainium import parse, readings
from otel_sysmetrics.runner import Runner
from otel_sysmetrics.sources.tools import ToolError
from tests.fakes import run_script
from tests.parts import CAPTURES, SHARED, Bench, children_of, program, tree, until, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from otel_sysmetrics.reading import Snapshot
    from otel_sysmetrics.runner import Health
    from otel_sysmetrics.threads import Clock

SAMPLES: Final = SHARED / "samples" / "neuron"
OURS: Final = CAPTURES / "trainium"


def report(*runtimes: dict[str, Any], **more: object) -> str:
    return json.dumps({"neuron_runtime_data": [{"report": runtime} for runtime in runtimes], **more})


def busy(**cores: object) -> dict[str, Any]:
    return {
        "neuroncore_counters": {
            "neuroncores_in_use": {core[1:]: {"neuroncore_utilization": share} for core, share in cores.items()}
        }
    }


def holding(value: object) -> dict[str, Any]:
    """Return a runtime whose memory on the host, and for core 0's tensors, is a value."""
    breakdown = {"neuroncore_memory_usage": {"0": {"tensors": value}}}
    return {"memory_used": {"neuron_runtime_used_bytes": {"host": value, "usage_breakdown": breakdown}}}


def tags_of(*runtimes: dict[str, Any]) -> dict[str, float]:
    return values(list(readings(parse(report(*runtimes)) or {})))


class Monitor:
    """A machine with a Neuron device and a neuron-monitor that writes what the test puts into a file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.root = tree(folder / "root", {"dev/neuron0": ""})
        self.script = folder / "script.sh"
        self.starts = folder / "starts"
        self.program = program(
            folder / "bin",
            "neuron-monitor",
            f"""
            echo "$$ $*" >>{self.starts}
            cat "$2" >{folder}/config
            . {self.script}
            """,
        )
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")

    def does(self, script: str) -> None:
        """Say what the next neuron-monitor does."""
        self.script.write_text(script)

    def writes(self, *lines: str) -> None:
        """Have the next neuron-monitor write lines and live on."""
        (self.folder / "lines").write_text("".join(f"{line}\n" for line in lines))
        self.does(f"cat {self.folder}/lines; touch {self.folder}/written; exec sleep 1000")

    def pids(self) -> list[int]:
        """Return the pids of all that were started."""
        return [int(line.split()[0]) for line in self.starts.read_text().splitlines()] if self.starts.exists() else []


@pytest.fixture
def monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Monitor:
    return Monitor(tmp_path, monkeypatch)


@pytest.fixture
def bench(monitor: Monitor) -> Iterator[Bench]:
    bench = Bench("trainium", monitor.root, sampling_interval=1)
    yield bench
    bench.close()


def until_it_fails(bench: Bench) -> None:
    while bench.tags(after=1) == {}:
        pass


def captures() -> list[Path]:
    return sorted(OURS.glob("*.json"))


@pytest.mark.parametrize("capture", captures(), ids=lambda path: path.stem)
def test_what_each_model_reports_gives_exactly_its_tags(capture: Path) -> None:
    recorded = json.loads(capture.read_text())

    assert values(list(readings(parse(json.dumps(recorded["line"])) or {}))) == recorded["tags"]


def test_the_recordings_give_the_tags_of_the_rule() -> None:
    if not SAMPLES.exists():
        pytest.skip("the recordings are not here")
    expected = json.loads((SAMPLES / "expected_tags__sum_rule.json").read_text())["files"]
    for name, of_file in expected.items():
        line = (SAMPLES / name).read_text().splitlines()[-1]
        assert values(list(readings(parse(line) or {}))) == pytest.approx(of_file["tags"]), name


def test_it_asks_for_its_interval_and_for_what_its_tags_need(monitor: Monitor, bench: Bench) -> None:
    monitor.writes(report(busy(c0=12.5, c1=0)))

    assert bench.tags() == {"trn.0.neuroncore_utilization": 12.5, "trn.1.neuroncore_utilization": 0}

    config = json.loads((monitor.folder / "config").read_text())
    assert config["period"] == "1s"
    assert [metric["type"] for metric in config["neuron_runtimes"][0]["metrics"]] == [
        "neuroncore_counters",
        "memory_used",
    ]
    assert bench.collector.describe().startswith("1 Neuron device through ")


def test_a_users_configuration_is_used_as_it_is(monitor: Monitor, tmp_path: Path) -> None:
    config = tmp_path / "mine.json"
    config.write_text('{"period": "7s"}')
    bench = Bench("trainium", monitor.root, sampling_interval=1, neuron_monitor_config=str(config))
    monitor.writes(report(busy(c0=1)))

    assert bench.tags() == {"trn.0.neuroncore_utilization": 1}

    assert (monitor.folder / "config").read_text() == config.read_text() == '{"period": "7s"}'
    bench.close()


def test_cores_and_memory_are_summed_over_all_runtimes_and_a_share_is_cut_at_100(
    monitor: Monitor, bench: Bench
) -> None:
    monitor.writes(report(busy(c0=60, c1=0), busy(c0=50, c1=30), busy(c1="N/A", c2=-1)))

    assert bench.tags() == {"trn.0.neuroncore_utilization": 100, "trn.1.neuroncore_utilization": 30}


def test_one_that_measures_more_than_100_is_not_an_idle_core() -> None:
    """Two applications on one instance: each lists all cores, the other's with zeros."""
    assert tags_of(busy(c0=100.4), busy(c0=0)) == tags_of(busy(c0=100.4)) == {"trn.0.neuroncore_utilization": 100}
    assert tags_of(busy(c0=1000.1), busy(c0=0)) == {}


@given(
    st.lists(
        st.sampled_from((None, "", "N/A", "50", -1, True, [], {}, float("nan"), float("inf"), 0, 0.0))
        | st.integers(0, 1000)
        | st.floats(0, 1000),
        min_size=1,
        max_size=4,
    )
)
def test_a_bad_summand_never_makes_0(said: list[object]) -> None:
    """A sum is 0 only where every runtime says so; what some do not say costs nothing of the others' use."""
    known = [value for value in said if type(value) in {int, float} and 0 <= value < float("inf")]  # type: ignore[operator]
    total: float = sum(known)  # type: ignore[arg-type]
    is_known = total > 0 or len(known) == len(said)

    assert tags_of(*(busy(c0=value) for value in said)) == (
        {"trn.0.neuroncore_utilization": pytest.approx(min(total, 100))} if is_known else {}
    )
    assert tags_of(*map(holding, said)) == (
        {
            "trn.host_total_memory_usage": pytest.approx(total),
            "trn.0.neuroncore_memory_usage.tensors": pytest.approx(total),
        }
        if is_known
        else {}
    )


@pytest.mark.parametrize(
    "silent",
    [{"error": "no such process", "report": busy(c0=0)}, {"report": None}, {"report": {}}, None, "runtime"],
    ids=["error", "null", "empty", "no runtime", "text"],
)
def test_a_runtime_that_says_nothing_may_use_any_core(silent: object) -> None:
    """So the zeros of the others are not those of the cores."""
    line = json.dumps({"neuron_runtime_data": [{"report": busy(c0=0, c1=7) | holding(0)}, silent]})

    assert values(list(readings(parse(line) or {}))) == {"trn.1.neuroncore_utilization": 7}


def test_no_identifier_of_an_instance_comes_out(bench: Bench, monitor: Monitor) -> None:
    monitor.writes(report(busy(c0=1), instance_info={"instance_id": "i-secret", "ami_id": "ami-secret"}))

    assert "secret" not in repr(bench.readings())


def test_old_data_is_dropped_after_three_periods_and_the_silent_program_replaced(
    monitor: Monitor, bench: Bench
) -> None:
    """Case 94: the last document would be repeated for ever."""
    monitor.writes(report(busy(c0=1)))
    assert bench.tags()
    assert bench.tags(after=2.9)
    with pytest.raises(ToolError, match="nothing for 3 periods"):
        bench.tags(after=0.2)

    monitor.writes(report(busy(c0=2)))
    assert bench.tags(after=1) == {"trn.0.neuroncore_utilization": 2}
    assert len(monitor.pids()) == 2


test_case_94_neuron_stream_stale = test_old_data_is_dropped_after_three_periods_and_the_silent_program_replaced


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_case_94_a_forked_child_has_a_monitor_of_its_own(monitor: Monitor) -> None:
    """Neither reads the other's pipe, and the child's end costs the parent nothing: each line tells who wrote it."""
    line = report(holding("PID")).replace('"PID"', "%d")
    monitor.does(f"while :; do printf '{line}\\n' $$; sleep 0.1; done")
    of_parent, of_child, later, started = run_script(
        """
        import json
        import os
        import sys
        import warnings
        from pathlib import Path

        from otel_sysmetrics import SysMetricsInstrumentor
        from tests.fakes import in_memory, provider_of, until, values

        def writers(samples):
            found = []

            def collected():
                found.extend(
                    value for tag, value in values(reader.get_metrics_data()).items() if tag.startswith("trn.host")
                )
                return len(found) >= samples

            until(collected)
            return sorted(set(found))

        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, of forks where threads are
        reader = in_memory()
        provider = provider_of(reader)
        SysMetricsInstrumentor().instrument(
            meter_provider=provider,
            collectors="trainium",
            sampling_interval=1,
            root_path=sys.argv[1],
            host_metrics="always",
        )
        of_parent = writers(5)
        source, sink = os.pipe()
        if not os.fork():
            os.write(sink, json.dumps(writers(300)).encode())
            os._exit(0)
        os.close(sink)
        of_child = json.loads(os.read(source, 1000))
        os.wait()
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in of_child))
        later = writers(300)
        started = [int(line.split()[0]) for line in Path(sys.argv[2]).read_text().splitlines()]
        print(json.dumps([of_parent, of_child, later, started]))
        """,
        str(monitor.root),
        str(monitor.starts),
    )

    assert len(of_parent) == len(of_child) == 1
    assert of_parent == later
    assert started == of_parent + of_child


def test_case_89_neuron_no_device(tmp_path: Path, monitor: Monitor, bench: Bench) -> None:
    """Without a device nothing is started; a monitor that finds none gives no tag, and no 0 %."""
    with pytest.raises(NotHere, match="/dev/neuron0"):
        _ = Bench("trainium", tmp_path / "bare").collector

    monitor.writes('{"neuron_runtime_data": [], "system_data": {"neuron_hw_counters": {"neuron_devices": null}}}')
    assert bench.tags() == {}


def test_a_device_without_the_program_is_said_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Unavailable, match="no neuron-monitor on PATH") as caught:
        _ = Bench("trainium", tree(tmp_path / "root", {"dev/neuron0": "", "dev/neuron1": ""})).collector
    assert "aws-neuronx-tools" in caught.value.remedy


def test_case_90_neuron_absent_exit1(monitor: Monitor, bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """One that ends at once is started ever more rarely, at the rarest every five minutes; nothing of it is shown."""
    monitor.does("echo 'level=error msg=none' >&2; echo 'flag provided but not defined: -c'; exit 1")
    tries = []
    for second in range(4000):
        before = len(monitor.pids())
        with pytest.raises(ToolError):
            until_it_fails(bench)
        if len(monitor.pids()) > before:
            tries.append(second)
        if len(tries) == 9:
            break
    gaps = [later - earlier for earlier, later in pairwise(tries)]

    assert gaps == sorted(gaps)
    assert 30 < gaps[-1] <= 301
    bench.close()
    assert children_of(os.getpid()) == set()
    assert capfd.readouterr().err == ""


class Life:
    """The part as the sampler has it, for so many seconds of a scripted clock, and what its log says."""

    def __init__(self, bench: Bench, caplog: pytest.LogCaptureFixture, seconds: float) -> None:
        self.collected: list[dict[str, float]] = []
        bench.clock.end = seconds
        runner = Runner(
            bench.part, 1, threading.Event(), self._publish, cast("Clock", bench.clock), lambda: False, first_gaps=()
        )
        with caplog.at_level("WARNING", logger="otel_sysmetrics"):
            runner.run()
        self.said = [record.getMessage().partition("trainium")[2] for record in caplog.records]

    def _publish(self, health: Health, snapshot: Snapshot) -> None:
        assert health.samples == len(self.collected)
        self.collected.append(values(list(snapshot.readings)))


@pytest.mark.parametrize(
    "script", ["exit 1", "echo usage; exit 0", "kill -SEGV $$"], ids=["dies", "prints usage", "crashes"]
)
def test_one_that_never_says_anything_is_said_once_over_many_starts(
    script: str, monitor: Monitor, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    monitor.does(script)
    life = Life(bench, caplog, 60)

    assert len(monitor.pids()) > 4
    assert len(life.said) == 1, life.said
    assert not any(life.collected)


def test_one_that_starts_slowly_after_it_died_is_back_only_with_its_first_line(
    monitor: Monitor, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    monitor.does("echo usage; exit 1")
    lines = monitor.folder / "lines"
    lines.write_text(f"{report(busy(c0=1))}\n")
    bench.clock.at(20, lambda: monitor.does(f"while :; do cat {lines}; sleep 0.05; done"))
    life = Life(bench, caplog, 80)

    assert [text[-7:] for text in life.said] == [life.said[0][-7:], "is back"]
    assert life.collected[-1] == {"trn.0.neuroncore_utilization": 1}


def test_one_that_dies_after_each_line_is_not_back_again_and_again(
    monitor: Monitor, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first line is believed after one death, as after an upgrade, and while it keeps dying only its second."""
    (monitor.folder / "lines").write_text(f"{report(busy(c0=1))}\n")
    monitor.does(f"cat {monitor.folder}/lines")
    life = Life(bench, caplog, 200)

    assert len(monitor.pids()) > 5
    assert len(life.said) <= 3, life.said


def test_what_stands_beside_an_error_is_no_value() -> None:
    used = {"host": 0, "neuron_device": 0}
    found = parse(
        report(
            {"memory_used": {"neuron_runtime_used_bytes": used, "error": "cannot read"}},
            {"neuroncore_counters": {"neuroncores_in_use": {"0": {"neuroncore_utilization": 0}}, "error": "no"}},
        )
    )
    assert found is not None
    assert values(list(readings(found))) == {}


def test_an_idle_host_that_says_null_is_alive(monitor: Monitor, bench: Bench) -> None:
    monitor.writes('{"neuron_runtime_data": null}')

    assert bench.tags() == {}
    assert bench.collector.describe().endswith(", 0 runtimes")


def test_a_program_with_a_longer_period_of_the_users_is_not_taken_for_silent(monitor: Monitor, tmp_path: Path) -> None:
    config = tmp_path / "mine.json"
    config.write_text('{"period": "1m"}')
    bench = Bench("trainium", monitor.root, sampling_interval=1, neuron_monitor_config=str(config))
    monitor.writes(report(busy(c0=1)))

    assert bench.tags()
    assert bench.tags(after=170)
    assert len(monitor.pids()) == 1
    bench.close()


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ('{"period": "1m30s"}', 90),
        ('{"period": "1m5s"}', 65),
        ('{"period": "1h0m0.5s"}', 3600.5),
        ('{"period": "+90.s"}', 90),
        ('{"period": ".5m"}', 30),
        ('{"period": "20000000us"}', 20),
        ('{"period": "20000000\N{MICRO SIGN}s"}', 20),
        ('{"period": "20000000\N{GREEK SMALL LETTER MU}s"}', 20),
        ('{"period": "20s1000ms1000000000ns"}', 22),
        ("{}", 5),
        ('{"period": "-3s"}', 300),
        ('{"period": "1m 5s"}', 300),
        ('{"period": "5"}', 300),
        ('{"period": 5}', 300),
        ('{"period": null}', 300),
        ('["period"]', 300),
        ("not JSON", 300),
    ],
)
def test_every_duration_of_gos_is_waited_for_and_what_is_none_generously(
    config: str, seconds: float, monitor: Monitor, tmp_path: Path
) -> None:
    """A monitor that is taken for silent would be ended before its first line, for ever."""
    path = tmp_path / "mine.json"
    path.write_text(config, encoding="utf-8")
    bench = Bench("trainium", monitor.root, sampling_interval=2, neuron_monitor_config=str(path))
    monitor.writes(report(busy(c0=1)))

    assert bench.tags()
    assert bench.tags(after=3 * seconds - 0.1)
    with pytest.raises(ToolError, match="nothing for 3 periods"):
        bench.tags(after=0.2)
    bench.close()


def test_an_absurd_number_of_a_core_is_none() -> None:
    found = parse(report(busy(**{"c" + "1" * 5000: 1, "c00000000000000000000001": 2, "c7": 3})))

    assert found is not None
    assert values(list(readings(found))) == {"trn.7.neuroncore_utilization": 3}


def test_case_91_neuron_no_power_temp(monitor: Monitor, bench: Bench) -> None:
    """An idle device has no runtime: its use is absent, not 0; a power or temperature there is not."""
    hardware = {"neuron_device_type": "trainium", "neuron_device_count": 1, "neuroncore_per_device_count": 2}
    monitor.writes(report(neuron_hardware_info=hardware, system_data={"memory_info": {"memory_used_bytes": 0}}))

    assert bench.tags() == {}
    assert bench.collector.describe().startswith("1 trainium device through ")
    assert bench.collector.describe().endswith(", 0 runtimes")
    assert {spec.unit for spec in bench.part.specs} == {"%", "By"}


def test_case_93_neuron_partial_lines(monitor: Monitor, bench: Bench) -> None:
    """Notices are passed over, half a line waits for its end, the newest document wins, a long one does not stall."""
    long = report(busy(c0=3), padding="x" * 5_000_000)
    lines = monitor.folder / "lines"
    lines.write_text(f"Neuron Tools have changed\n\n{report(busy(c0=1))[:40]}")
    monitor.does(
        f"cat {lines}; while [ ! -e {monitor.folder}/more ]; do sleep 0.02; done; "
        f"cat {monitor.folder}/rest; exec sleep 1000"
    )
    (monitor.folder / "rest").write_text(f"{report(busy(c0=1))[40:]}\n{report(busy(c0=2))}\n{long}\n")
    assert bench.tags() == {}

    (monitor.folder / "more").touch()

    assert until(lambda: bench.tags() == {"trn.0.neuroncore_utilization": 3})


def test_it_is_ended_with_its_collector(monitor: Monitor, bench: Bench) -> None:
    monitor.writes(report(busy(c0=1)))
    bench.tags()
    (pid,) = monitor.pids()
    assert os.path.exists(f"/proc/{pid}")

    bench.close()

    assert until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert children_of(os.getpid()) == set()


KEYS: Final = (
    *("neuron_runtime_data", "report", "neuroncore_counters", "neuroncores_in_use", "0", "1", "memory_used"),
    *("neuron_runtime_used_bytes", "usage_breakdown", "host", "neuroncore_memory_usage", "tensors"),
)

json_values: Final = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=3,
        )
    ),
    max_leaves=20,
)


def test_a_runtime_that_uses_nothing_of_a_core_makes_no_0_of_what_another_does_not_say() -> None:
    line = json.loads(report(busy(c0=0, c1=0), busy(c0="N/A", c1=0)))

    assert values(list(readings(line))) == {"trn.1.neuroncore_utilization": 0}


@pytest.mark.parametrize("place", [(), ("report", "neuroncore_counters")])
def test_a_runtime_with_an_error_makes_no_0_of_what_it_does_not_say(place: tuple[str, ...]) -> None:
    line = json.loads(report(busy(c0=0), busy(c0=30)))
    ill = line["neuron_runtime_data"][1]
    for key in place:
        ill = ill[key]
    ill["error"] = "timeout"

    assert values(list(readings(line))) == {}


@given(st.text() | json_values.map(json.dumps))
def test_no_text_makes_the_parser_fail_or_a_0_out_of_nothing(text: str) -> None:
    found = values(list(readings(parse(text) or {})))

    assert all(value >= 0 for value in found.values())
    assert not found or any(character.isdecimal() for character in text)
    if "0" not in text:
        assert 0 not in found.values()

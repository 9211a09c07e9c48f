"""Public failures around processes: forks, locales, signals, file systems; each named by its number."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from otel_sysmetrics.sources.portable import ask
from tests.collectors.nvidia.program import Program
from tests.fakes import run_script
from tests.nvml import H100
from tests.parts import program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeMachine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")

COMMON: Final = """
    import json, multiprocessing, os, signal, sys, time, warnings

    warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, since Python 3.12
    from opentelemetry import metrics
    from otel_sysmetrics import SysMetricsInstrumentor
    from tests.fakes import in_memory, our_threads, provider_of, until, values

    def instrument(provider):
        SysMetricsInstrumentor().instrument(meter_provider=provider, sampling_interval=0.1)

    def forked(body):
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            try:
                os.write(writer, json.dumps(body()).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told = json.loads(pipe.read())
        os.waitpid(child, 0)
        return told
"""


def test_case_138_what_psutil_has_not_implemented_is_absent() -> None:
    def refuses() -> int:
        raise NotImplementedError

    assert ask(psutil, SimpleNamespace(num_threads=refuses), "num_threads") is None


def test_case_140_bytes_of_another_encoding_do_not_hide_what_a_tool_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.dumps({"card0": {"GPU use (%)": "5", "Unique ID": "0xA1", "PCI Bus": "0000:63:00.0"}})
    program(tmp_path, "rocm-smi", f"printf '42.0\\302\\260C \\265\\202\\n'\necho '{document}'\n")
    (tmp_path / "root").mkdir()
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert run_script(
        """
        import json, sys
        from pathlib import Path
        from tests.parts import Bench

        bench = Bench("amd", Path(sys.argv[1]))
        print(json.dumps(bench.tags()["gpu.0.gpu"]))
        bench.close()
        """,
        str(tmp_path / "root"),
    ) == pytest.approx(5)


@pytest.mark.nvml
@pytest.mark.parametrize(
    "visible", ["2,3", "GPU-aaaaaaaa-0000-0000-0000-000000000000", "MIG-1", "", "-1", "NoDevFiles"]
)
def test_case_141_all_gpus_of_the_host_are_reported_under_nvmls_index(
    machine: MakeMachine, visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever CUDA may use; `gpu_device_ids` chooses."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    with Program(machine(*[H100] * 4)).probe() as host:
        found = host.values()

    assert {f"gpu.{index}.temp" for index in range(4)} <= set(found)


def test_case_142_a_forked_child_counts_from_its_own_beginning() -> None:
    """Counters of the child do not fall and do not begin with the parent's total; its memory is its own."""
    parent, children = run_script(
        COMMON
        + """
    reader = in_memory()
    provider = provider_of(reader)
    SysMetricsInstrumentor().instrument(meter_provider=provider, sampling_interval=0.1, host_metrics="always")
    tags = ("network.tcpRetransmits", "proc.memory.rssMB")

    def sampled():
        until(lambda: set(tags) <= set(values(reader.get_metrics_data())))
        first = values(reader.get_metrics_data())
        time.sleep(0.3)
        second = values(reader.get_metrics_data())
        return [[first[tag], second[tag]] for tag in tags]

    def work():
        held = bytes(b"x" * 100 * 2**20)
        return sampled()

    parent = sampled()
    print(json.dumps([parent, [forked(work) for _ in range(4)]]))
    """
    )
    for (first, second), (resident, _) in children:
        assert 0 <= first <= second < 1000
        assert resident > parent[1][0] + 50


def test_case_143_a_provider_given_in_the_child_is_used_and_none_is_made_global() -> None:
    assert run_script(
        COMMON
        + """
    provider = provider_of(in_memory())
    instrument(provider)
    before = metrics.get_meter_provider()

    def anew():
        reader = in_memory()
        SysMetricsInstrumentor().uninstrument()
        given = provider_of(reader)
        instrument(given)
        until(lambda: "proc.memory.rssMB" in values(reader.get_metrics_data()))
        return metrics.get_meter_provider() is before

    print(json.dumps(forked(anew)))
    """
    )


def test_case_144_short_children_start_nothing() -> None:
    """Each of 50 lives for 0.2 s: no thread, no file more, no child, and it ends well."""
    told, statuses = run_script(
        COMMON
        + """
    reader = in_memory()
    provider = provider_of(reader)
    instrument(provider)
    until(lambda: "proc.memory.rssMB" in values(reader.get_metrics_data()))
    receive, send = os.pipe()

    def live():
        held = lambda: sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else []
        before = held()
        time.sleep(0.2)
        found = [our_threads(), held() == before, len(multiprocessing.active_children())]
        os.write(send, (json.dumps(found) + chr(10)).encode())

    children = []
    for _ in range(50):
        if (child := os.fork()) == 0:
            live()
            os._exit(7)
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(send)
    with os.fdopen(receive) as pipe:
        print(json.dumps([[json.loads(line) for line in pipe], statuses]))
    """
    )
    assert told == [[[], True, 0]] * 50
    assert statuses == [7] * 50


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_case_146_no_zombie_stays_and_a_tool_is_read_where_children_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    document = json.dumps({"card0": {"GPU use (%)": "5", "Unique ID": "0xA1", "PCI Bus": "0000:63:00.0"}})
    program(tmp_path, "rocm-smi", f"echo '{document}'\nexit 3\n")
    (tmp_path / "root").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    found, children = run_script(
        """
        import json, os, signal, sys
        from pathlib import Path
        from tests.parts import Bench, children_of

        signal.signal(signal.SIGCHLD, getattr(signal, sys.argv[2]))
        bench = Bench("amd", Path(sys.argv[1]))
        found = [bench.tags(after=15).get("gpu.0.gpu") for _ in range(20)]
        children = len(children_of(os.getpid()))
        bench.close()
        print(json.dumps([found, children]))
        """,
        str(tmp_path / "root"),
        handler,
    )
    assert found == [5.0] * 20
    assert children == 0


def test_case_147_on_a_read_only_file_system_everything_is_reported() -> None:
    """An audit hook refuses whatever would write; that the lock has no place is said once."""
    told = run_script(
        """
        import json, logging, os, sys

        sys.dont_write_bytecode = True
        os.environ.pop("XDG_RUNTIME_DIR", None)
        os.environ["HOME"] = "/nonexistent"
        tried = []

        def refuse(event, arguments):
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (writes and arguments[0] != os.devnull) or event in {"os.mkdir", "os.rename", "os.symlink", "os.link"}:
                tried.append(str(arguments[0]))
                raise OSError(30, "Read-only file system", str(arguments[0]))

        sys.addaudithook(refuse)

        from otel_sysmetrics import SysMetricsInstrumentor
        from tests.fakes import in_memory, provider_of, until, values

        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger("otel_sysmetrics").addHandler(handler)
        reader = in_memory()
        provider = provider_of(reader)
        SysMetricsInstrumentor().instrument(meter_provider=provider, sampling_interval=0.1)
        until(lambda: {"memory_percent", "proc.memory.rssMB"} <= set(values(reader.get_metrics_data())))
        print(json.dumps([lines, len(tried)]))
        """
    )
    lines, tried = told
    assert [line for line in lines if "no lock is possible" in line] == lines
    assert len(lines) == 1
    assert tried > 0

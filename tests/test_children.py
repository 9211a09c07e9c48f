"""Children of multiprocessing, a DataLoader's and uvicorn's among them: who of them is a stream of its own."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from tests.running import PROGRAMS, SCRIPTS, Running, clean_environment, over, receiving
from tests.streams import HOST_TAGS, PROCESS_TAGS, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.otelcol import Otelcol

pytestmark = [
    pytest.mark.otelcol,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork"),
]

PATIENCE: Final = 60.0
LOADER: Final = (sys.executable, os.path.join(PROGRAMS, "loader.py"))
INSTRUMENT: Final = os.path.join(SCRIPTS, "opentelemetry-instrument")
CHILDREN: Final = "OTEL_PYTHON_SYSMETRICS_CHILDREN"
UVICORN_WORKERS: Final = 4

# Per case: the command, further variables, and how many processes report themselves in all. The workers of an epoch
# are two, those of both epochs four.
CASES: Final[dict[str, tuple[tuple[str, ...], Mapping[str, str], int]]] = {
    **{
        f"a DataLoader: {method}, {how}": ((*start, method, "daemon", *configures), {}, 1)
        for method in ("fork", "spawn", "forkserver")
        for how, start, configures in (
            ("instrumented", (INSTRUMENT, *LOADER), ()),
            ("configured", LOADER, ("configure",)),
        )
    },
    "a DataLoader whose workers are to report": ((*LOADER, "fork", "daemon", "configure"), {CHILDREN: "always"}, 5),
    # Instrumented, a child that is forked while the SDK collects is mute: it inherits a lock that nobody holds.
    "processes: fork": ((*LOADER, "fork", "process", "configure"), {}, 5),
    "processes: spawn": ((INSTRUMENT, *LOADER, "spawn", "process"), {}, 5),
    "processes: forkserver": ((INSTRUMENT, *LOADER, "forkserver", "process"), {}, 5),
    "processes that are not to report": ((*LOADER, "fork", "process", "configure"), {CHILDREN: "never"}, 1),
}


SPAWNED: Final = frozenset({"processes: spawn", "processes: forkserver"})


@pytest.fixture(scope="module")
def hands_on() -> bool:
    """Whether programs that an instrumented one starts are instrumented; older releases leave them out."""
    ask = "import os; print('auto_instrumentation' in os.environ.get('PYTHONPATH', ''))"
    variables = {"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    with Running(INSTRUMENT, sys.executable, "-c", ask, environment=clean_environment(**variables)) as program:
        program.finish(PATIENCE)
        return program.lines == ["True"]


def environment(case: str, backend: Otelcol, **variables: str) -> dict[str, str]:
    """Return the variables of a case, whose name stands on the Resource."""
    common = {
        **over("http/protobuf", backend.http_endpoint),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "system_metrics",  # its slow callbacks hold the SDK's locks
        "OTEL_SERVICE_NAME": case,
        "OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL": "0.5",
        "OTEL_PYTHON_SYSMETRICS_COLLECTORS": "cpu,memory,network",
    }
    return clean_environment(**common, **variables)


@pytest.fixture(scope="module")
def backend(otelcol_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Otelcol]:
    """Run one otelcol for the whole module."""
    with receiving(otelcol_binary, str(tmp_path_factory.mktemp("otelcol"))) as backend:
        yield backend


@pytest.fixture(scope="module")
def trained(backend: Otelcol, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run all cases beside each other to their end, and return what each said."""
    folder = tmp_path_factory.mktemp("runtime")
    folder.chmod(0o700)
    with ExitStack() as stack:
        programs = {
            case: stack.enter_context(
                Running(*command, environment=environment(case, backend, XDG_RUNTIME_DIR=str(folder), **variables))
            )
            for case, (command, variables, _) in CASES.items()
        }
        for program in programs.values():
            program.wait_for_line("trained", PATIENCE)
            program.finish(PATIENCE)
    return {case: program.tell() for case, program in programs.items()}


@pytest.mark.parametrize("case", CASES)
def test_so_many_processes_report_themselves_and_one_the_host(
    backend: Otelcol, trained: Mapping[str, str], case: str, *, hands_on: bool
) -> None:
    """Daemonic workers that are made anew each epoch are no new streams, nor are the helpers of multiprocessing."""
    *_, processes = CASES[case] if hands_on or case not in SPAWNED else (1,)
    watch = Watch(backend, **{"service.name": case})
    assert {tag: len(watch.streams(tag)) for tag in PROCESS_TAGS} == dict.fromkeys(PROCESS_TAGS, processes), trained[
        case
    ]
    assert {tag: len(watch.streams(tag)) for tag in HOST_TAGS} == dict.fromkeys(HOST_TAGS, 1), trained[case]


def test_workers_of_uvicorn_are_one_host_and_themselves(
    backend: Otelcol, tmp_path_factory: pytest.TempPathFactory, *, hands_on: bool
) -> None:
    """They are spawned; the process that watches over them is instrumented too."""
    folder = tmp_path_factory.mktemp("uvicorn")
    (folder / "service.py").write_text("async def app(scope, receive, send):\n    pass\n")
    command = (INSTRUMENT, os.path.join(SCRIPTS, "uvicorn"), "--port=0", f"--workers={UVICORN_WORKERS}", "service:app")
    with Running(*command, environment=environment("uvicorn", backend), cwd=str(folder)) as server:
        watch = Watch(backend, **{"service.name": "uvicorn"})
        assert watch.becomes_job(2.5, hosts=1, processes=1 + UVICORN_WORKERS * hands_on), server.tell()

"""Jobs of several processes on one host, as launchers start them: one reports the host, each reports itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from tests.running import PROGRAMS, SCRIPTS, Running, clean_environment, over, receiving
from tests.streams import HOST_TAGS, PROCESS_TAGS, Watch, lock_holder, stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.otelcol import Otelcol

pytestmark = [pytest.mark.otelcol, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/locks")]

INTERVAL: Final = 2.0
SETTLED: Final = 3 * INTERVAL
JOB: Final = (sys.executable, os.path.join(PROGRAMS, "job.py"), "--idle", "--seconds=300", f"--interval={INTERVAL}")
READ: Final = (sys.executable, os.path.join(PROGRAMS, "foreign.py"), str(INTERVAL))
UNREAD: Final = (*READ, "--unread")
INSTRUMENTED: Final = (
    os.path.join(SCRIPTS, "opentelemetry-instrument"),
    sys.executable,
    "-c",
    "import time; print('ready', flush=True); time.sleep(300)",
)
NAMED: Final = "OTEL_SERVICE_NAME"


class Task(NamedTuple):
    """A command that a launcher starts in a session of its own, with its variables."""

    command: tuple[str, ...]
    variables: Mapping[str, str]


def torchrun(ranks: int) -> list[Task]:
    """Return what torchrun starts on one host."""
    return [
        Task(
            JOB,
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29500",
            },
        )
        for rank in range(ranks)
    ]


def srun(job: str) -> list[Task]:
    """Return what srun starts of a job with two tasks on one host, under auto-instrumentation."""
    return [
        Task(
            INSTRUMENTED,
            {
                "SLURM_JOB_ID": job,
                "SLURM_PROCID": str(task),
                "SLURM_LOCALID": str(task),
                "OTEL_PYTHON_SYSMETRICS_RANK_ATTRIBUTES": "true",
            },
        )
        for task in range(2)
    ]


JOBS: Final[dict[str, list[Task]]] = {
    "torchrun": torchrun(8),
    "unrelated": [Task(JOB, {}), Task(JOB, {})],
    "slurm": [*srun("1001"), *srun("1002")],
    "services": [Task(JOB, {NAMED: name}) for name in ("train", "train", "serve")],
    "unread": [Task(UNREAD, {NAMED: "train"}), Task(READ, {NAMED: "train"})],
    "no lock": [Task(JOB, {NAMED: "train"}), Task(JOB, {NAMED: "train"})],
}


class Jobs:
    """All jobs, running; each has an attribute on its Resource, and a folder for its locks."""

    def __init__(self, backend: Otelcol, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._backend = backend
        self.processes = {job: self._start(job, tasks, stack) for job, tasks in JOBS.items()}

    def _start(self, job: str, tasks: list[Task], stack: ExitStack) -> list[Running]:
        locks = self.locks(job)
        os.mkdir(locks, 0o700)
        if job == "no lock":
            open_to_all = os.path.join(locks, f"otel-sysmetrics-{os.getuid()}")
            os.mkdir(open_to_all)
            os.chmod(open_to_all, 0o777)  # noqa: S103 - which is what makes it unfit
            locks = os.path.join(locks, "missing")
        common = {
            **over("http/protobuf", self._backend.http_endpoint, 1000),
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "system_metrics",  # its slow callbacks hold the SDK's locks
            "OTEL_RESOURCE_ATTRIBUTES": f"job={job}",
            "OTEL_PYTHON_SYSMETRICS_SAMPLING_INTERVAL": str(INTERVAL),
            "OTEL_PYTHON_SYSMETRICS_COLLECTORS": "cpu,memory,network",
            "XDG_RUNTIME_DIR": locks,
            "TMPDIR": self.locks(job),
        }
        started = []
        for command, variables in tasks:
            program = Running(*command, environment=clean_environment(**common, **variables))
            started.append(stack.enter_context(program))
            if command is UNREAD:
                program.wait_for_line("ready")
        return started

    def locks(self, job: str) -> str:
        """Return the folder of a job's locks."""
        return str(self.folder / job)

    def watch(self, job: str) -> Watch:
        """Return what came of a job."""
        return Watch(self._backend, job=job)

    def killed(self, job: str) -> int:
        """Return how many processes of a job a test has killed."""
        return sum(process.process.poll() is not None for process in self.processes[job])

    def tell(self, job: str) -> str:
        """Return what the processes of a job said, for a failure."""
        return "\n".join(process.tell() for process in self.processes[job])


@pytest.fixture(scope="module")
def jobs(otelcol_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Start all jobs beside each other."""
    folder = tmp_path_factory.mktemp("jobs")
    with receiving(otelcol_binary, str(folder / "otelcol")) as backend, ExitStack() as stack:
        yield Jobs(backend, folder, stack)


@pytest.mark.parametrize(
    ("job", "hosts", "processes"),
    [
        pytest.param("torchrun", 1, 8, id="eight ranks are one host"),
        pytest.param("unrelated", 2, 2, id="trainings without a service name that have nothing to do with each other"),
        pytest.param("slurm", 2, 4, id="each Slurm job reports the host"),
        pytest.param("services", 2, 3, id="each service reports the host"),
        pytest.param("unread", 1, 1, id="who has no reader leaves the host to who has one"),
        pytest.param("no lock", 2, 2, id="without a place for the lock each reports"),
    ],
)
def test_a_job_is_one_host_and_each_of_its_processes(jobs: Jobs, job: str, hosts: int, processes: int) -> None:
    processes -= jobs.killed(job)
    assert jobs.watch(job).becomes_job(SETTLED, hosts=hosts, processes=processes), jobs.tell(job)


def test_a_rank_that_is_killed_is_replaced_within_two_intervals(jobs: Jobs) -> None:
    """The next one's counters are a new stream: they say that they begin after it."""
    watch, ranks = jobs.watch("torchrun"), {rank.process.pid: rank for rank in jobs.processes["torchrun"]}
    assert watch.becomes_job(SETTLED, hosts=1, processes=8), jobs.tell("torchrun")
    reporter = lock_holder(jobs.locks("torchrun"))
    assert reporter is not None
    before = {tag: set(watch.streams(tag)) for tag in HOST_TAGS}

    killed = time.time_ns()
    ranks[reporter].send(signal.SIGKILL)

    assert watch.becomes_job(SETTLED, hosts=1, processes=7), jobs.tell("torchrun")
    assert lock_holder(jobs.locks("torchrun")) in ranks.keys() - {reporter}
    for tag in HOST_TAGS:
        (new,) = [point for identity, point in watch.first(tag).items() if identity not in before[tag]]
        assert (new.time_ns - killed) / 1e9 < 2 * INTERVAL
        assert new.kind == "gauge" or new.start_time_ns > killed


def test_ranks_say_which_they_are_on_their_resource(jobs: Jobs) -> None:
    watch = jobs.watch("torchrun")
    assert watch.becomes_job(SETTLED, hosts=1, processes=8 - jobs.killed("torchrun")), jobs.tell("torchrun")

    def ranks_of(tag: str) -> set[Any]:
        keys = ("rank", "local_rank", "world_size")
        return {tuple(point.resource.get(key) for key in keys) for point in watch.points(tag)}

    assert [ranks_of(tag) for tag in PROCESS_TAGS] == [{(rank, rank, 8) for rank in range(8)}] * len(PROCESS_TAGS)


def test_tasks_of_slurm_say_which_they_are_on_each_point(jobs: Jobs) -> None:
    watch = jobs.watch("slurm")
    assert watch.becomes_job(SETTLED, hosts=2, processes=4), jobs.tell("slurm")

    keys = ("slurm.job_id", "slurm.procid", "slurm.localid")
    points = watch.points("proc.memory.rssMB")
    assert {tuple(point.attributes.get(key) for key in keys) for point in points} == {
        (job, task, task) for job in ("1001", "1002") for task in ("0", "1")
    }


def test_who_has_no_reader_says_nothing_and_does_not_hold_the_lock(jobs: Jobs) -> None:
    assert jobs.watch("unread").becomes_job(SETTLED, hosts=1, processes=1), jobs.tell("unread")

    _, reader = jobs.processes["unread"]
    assert lock_holder(jobs.locks("unread")) == reader.process.pid
    assert {stream(point) for point in jobs.watch("unread").points("memory_percent")} == set(
        jobs.watch("unread").streams("proc.memory.rssMB")
    )


def test_without_a_place_for_the_lock_each_process_says_so_once(jobs: Jobs) -> None:
    assert jobs.watch("no lock").becomes_job(SETTLED, hosts=2, processes=2), jobs.tell("no lock")

    for process in jobs.processes["no lock"]:
        (line,) = process.errors
        assert "every process reports the host's metrics: no lock is possible" in line

"""Who reports the host: one process per job, whoever dies, whoever is not asked."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from otel_sysmetrics.election import FORGOTTEN_AFTER, Election, child_reports, seat_name
from otel_sysmetrics.settings import Settings
from tests.fakes import REPOSITORY, ScriptedClock, run_script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="forks and modes of files")

NAMED: Final = {"service.name": "train", "host.name": "node-7"}


class Voter:
    """A candidate whose readers ask when the test says so."""

    def __init__(self, name: str = "job", *, expected: bool = True) -> None:
        self.clock = ScriptedClock()
        self.asks = 0
        self.election = Election(lambda: name, self.clock.now, lambda: self.asks, expected=expected)

    def won(self, after: float = 0, *, asked: bool = False) -> bool:
        self.clock.spend(after)
        self.asks += asked
        return self.election.won()


OTHER: Final = """
import sys
from otel_sysmetrics.election import Election

election = Election(lambda: sys.argv[1], lambda: 0.0, lambda: 0, expected=True)
print(election.won(), flush=True)
sys.stdin.readline()
"""


class Other:
    """Another process that stands for election."""

    def __init__(self, name: str = "job") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, name], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.won = self.process.stdout.readline() == b"True\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(autouse=True)
def at_the_end() -> Iterator[None]:
    """Give up every seat that a test took."""
    yield
    from otel_sysmetrics import election

    for _, holder in tuple(election._holders.values()):
        assert isinstance(holder, Election)
        holder.end()


def test_one_process_has_the_seat_until_it_is_killed() -> None:
    other = Other()
    mine = Voter()
    assert (other.won, mine.won()) == (True, False)

    other.kill()

    assert mine.won()
    assert mine.won()


def test_seats_of_two_jobs_are_two() -> None:
    other = Other("one job")

    assert other.won
    assert Voter("another").won()
    other.kill()


def test_a_forked_child_does_not_inherit_the_seat() -> None:
    mine = Voter()
    assert mine.won()

    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, b"won" if Voter().won() else b"lost")
        os._exit(0)
    os.waitpid(pid, 0)

    assert os.read(reader, 10) == b"lost"
    assert mine.won()
    os.close(reader)
    os.close(writer)


def test_who_has_no_descriptor_left_tries_again_and_does_not_report_beside_another() -> None:
    assert run_script("""
        import json
        import os
        import resource

        from tests.test_election import Voter

        voter = Voter()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            without = voter.won()
        for descriptor in taken:
            os.close(descriptor)
        print(json.dumps([without, voter.won()]))
    """) == [False, True]


def test_two_of_one_process_are_not_both_elected() -> None:
    first, second = Voter(), Voter()
    assert (first.won(), second.won()) == (True, False)

    first.election.end()

    assert (first.won(), second.won()) == (False, True)


class TestWhoIsNotAsked:
    def test_it_gives_the_seat_up_after_three_minutes_and_takes_it_again_when_asked(self) -> None:
        mine = Voter()
        assert mine.won()
        assert mine.won(FORGOTTEN_AFTER - 1)
        assert not mine.won(2)
        other_process = Other()
        assert other_process.won
        other_process.kill()

        other = Voter("job 2")
        assert other.won()
        assert not other.won(FORGOTTEN_AFTER + 1)
        assert other.won(1, asked=True)

    def test_with_rare_readers_it_waits_three_of_their_gaps(self) -> None:
        mine = Voter()
        assert mine.won()
        assert mine.won(100, asked=True)
        assert mine.won(299)
        assert not mine.won(2)

    def test_without_a_reader_it_never_takes_the_seat(self) -> None:
        mine = Voter(expected=False)

        assert not mine.won()
        assert mine.won(1, asked=True)


class TestWhereTheLockLies:
    @pytest.fixture
    def temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return the temporary directory; there is no runtime directory of the user's."""
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        return tmp_path

    def test_it_is_a_folder_for_the_user_alone_where_there_is_no_runtime_folder(self, temporary: Path) -> None:
        assert Voter().won()

        folder = temporary / f"otel-sysmetrics-{os.getuid()}"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [file.stat().st_size for file in folder.iterdir()] == [0]

    @pytest.mark.parametrize("trap", ["open folder", "link to a folder", "link to a file", "second name", "a file"])
    def test_what_another_user_may_have_put_there_is_not_touched(
        self, temporary: Path, trap: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Then every process reports, which is said once."""
        folder = temporary / f"otel-sysmetrics-{os.getuid()}"
        victim = temporary / "victim"
        victim.write_text("precious")
        lock = folder / "otel-sysmetrics-job.lock"
        if trap == "open folder":
            folder.mkdir()
            folder.chmod(0o777)
        elif trap == "link to a folder":
            (temporary / "real").mkdir(mode=0o700)
            folder.symlink_to(temporary / "real")
        elif trap == "a file":
            folder.write_text("")
        else:
            folder.mkdir(mode=0o700)
            lock.symlink_to(victim) if trap == "link to a file" else lock.hardlink_to(victim)
        first, second = Voter(), Voter()

        assert (first.won(), first.won(), second.won()) == (True, True, True)

        assert len(caplog.records) == 2
        assert "every process reports the host's metrics" in caplog.text
        assert victim.read_text() == "precious"

    def test_a_runtime_folder_of_another_user_is_left_alone(
        self, temporary: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        theirs = temporary / "theirs"
        theirs.mkdir()
        theirs.chmod(0o777)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))

        assert Voter().won()
        assert list(theirs.iterdir()) == []


class TestWhoBelongsTogether:
    def seat(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        named: bool = False,
        resource: Mapping[str, object] | None = None,
    ) -> str:
        whole = {**NAMED, **(resource or {})}
        return seat_name(Settings(), whole, "boot", "node-7", named=named, environ=environ or {})

    def test_processes_of_one_group_do(self) -> None:
        assert self.seat() == self.seat()

    def test_two_trainings_without_a_service_name_do_not(self) -> None:
        script = """
            import json, os
            from otel_sysmetrics.election import seat_name
            from otel_sysmetrics.settings import Settings

            os.setpgrp()
            print(json.dumps(seat_name(Settings(), {}, "boot", "node-7", named=False, environ={})))
        """
        assert run_script(script) != run_script(script)

    def test_ranks_of_one_torchrun_do_whatever_their_group(self) -> None:
        job = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}

        assert self.seat({**job, "RANK": "0"}) == self.seat({**job, "RANK": "1"})
        assert self.seat(job) != self.seat({**job, "MASTER_PORT": "29501"})
        assert self.seat(job) != self.seat()

    def test_two_slurm_jobs_do_not(self) -> None:
        assert self.seat({"SLURM_JOB_ID": "1"}) != self.seat({"SLURM_JOB_ID": "2"})

    def test_two_services_do_not(self) -> None:
        assert self.seat(named=True) != self.seat(named=True, resource={"service.name": "serve"})

    @pytest.mark.parametrize("key", ["service.instance.id", "process.pid", "rank", "local_rank", "slurm.procid"])
    def test_what_tells_processes_of_a_job_apart_does_not_matter(self, key: str) -> None:
        assert self.seat(named=True, resource={key: 1}) == self.seat(named=True, resource={key: 2})

    def test_who_collects_something_else_does_not(self) -> None:
        names = {
            seat_name(settings, NAMED, "boot", "node-7", named=True, environ={})
            for settings in (Settings(), Settings(disk_paths=("/data",)), Settings(collectors=("cpu",)))
        }
        assert len(names) == 3


class TestChildren:
    @pytest.mark.parametrize("choice", ["auto", "always", "never"])
    def test_an_ordinary_process_reports(self, choice: str) -> None:
        assert child_reports(choice) is True

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_of_multiprocessings_children_the_daemonic_ones_do_not(self, method: str) -> None:
        assert run_script(
            """
            import json, multiprocessing, sys

            from tests.programs.children import answer

            if __name__ == "__main__":
                context = multiprocessing.get_context(sys.argv[1])
                found = {}
                for daemon in (False, True):
                    queue = context.SimpleQueue()
                    child = context.Process(target=answer, args=(queue,), daemon=daemon)
                    child.start()
                    found[str(daemon)] = queue.get()
                    child.join()
                print(json.dumps(found))
            """,
            method,
        ) == {
            "False": {"auto": True, "always": True, "never": False},
            "True": {"auto": False, "always": True, "never": False},
        }

    def test_what_a_spawned_child_is_shows_only_once_it_has_heard_from_its_parent(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "…", "--multiprocessing-fork"])

        assert child_reports("auto") is None
        assert child_reports("always") is True

    @pytest.mark.parametrize(
        "code",
        [
            "from multiprocessing.resource_tracker import main;main(7)",
            "from multiprocessing.forkserver import main; main(4, 6, ['__main__'], **{'sys_path': []})",
            "from joblib.externals.loky.backend.resource_tracker import main; main(7, 0)",
        ],
    )
    @pytest.mark.parametrize("choice", ["auto", "always", "never"])
    def test_the_helpers_of_multiprocessing_do_not(
        self, code: str, choice: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the fork server forks looks like it, until it has heard what it is."""
        monkeypatch.setattr(sys, "orig_argv", ["python", "-c", code])

        assert child_reports(choice) is False

        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert child_reports(choice) is None

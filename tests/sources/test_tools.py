"""Programs that answer, hang, die, leave children behind, and whoever asked for them being killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from otel_sysmetrics.sources.tools import Feed, Tool, ToolError, ToolFailed, find
from tests.fakes import PATIENCE, REPOSITORY, run_script
from tests.parts import children_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")


def program(folder: Path, text: str, name: str = "tool") -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has collected does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def comes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def lines(feed: Feed, seconds: float = PATIENCE) -> list[str]:
    return feed.lines(seconds)


class TestTool:
    def test_its_output_comes_whole_whatever_its_status(self, tmp_path: Path) -> None:
        tool = Tool(program(tmp_path, 'echo "$1 $2"; echo complaint >&2; exit 3'))

        assert tool.output(("a b", "*"), PATIENCE) == "a b *\n"
        assert tool.output(("c", "d"), PATIENCE) == "c d\n"

    @pytest.mark.parametrize(
        ("end", "fate"),
        [
            ("exit 1", "ended with status 1"),
            ("exit 139", "ended with status 139"),
            ("kill -ABRT $$", "died of signal 6"),
            ("kill -KILL $$", "died of signal 9"),
        ],
    )
    def test_one_that_fails_and_writes_nothing_has_failed_and_says_how(
        self, end: str, fate: str, tmp_path: Path
    ) -> None:
        for nothing in ("", "echo;"):
            tool = Tool(program(tmp_path, f"echo complaint >&2; {nothing} {end}"))
            with pytest.raises(ToolFailed, match=rf"tool {fate}$"):
                tool.output((), PATIENCE)

        tool = Tool(program(tmp_path, f"[ $1 = well ] && exec echo good; echo part; {end}"))
        assert (tool.output(("ill",), PATIENCE), tool.failure) == ("part\n", fate)
        assert (tool.output(("well",), PATIENCE), tool.failure) == ("good\n", None)

    def test_one_that_has_nothing_to_say_has_not_failed(self, tmp_path: Path) -> None:
        tool = Tool(program(tmp_path, "exit 0"))

        assert (tool.output((), PATIENCE), tool.failure) == ("", None)

    def test_a_megabyte_comes_whole(self, tmp_path: Path) -> None:
        tool = Tool(program(tmp_path, "head -c 1000000 /dev/zero | tr '\\0' x"))

        assert tool.output((), PATIENCE) == "x" * 1_000_000

    def test_one_that_hangs_is_killed_with_what_it_started_at_the_deadline(self, tmp_path: Path) -> None:
        tool = Tool(program(tmp_path, f"trap '' TERM; sleep 1000 & echo $! >{tmp_path}/pid; echo part; wait; wait"))

        with pytest.raises(ToolError, match=r"did not answer within 0\.5 s"):
            tool.output((), 0.5)

        pid = int((tmp_path / "pid").read_text())
        assert comes_true(lambda: not alive(pid))

    def test_a_grandchild_that_holds_the_pipe_hangs_nobody(self, tmp_path: Path) -> None:
        tool = Tool(program(tmp_path, f"sleep 1000 & echo $! >{tmp_path}/pid; echo whole"))

        assert tool.output((), PATIENCE) == "whole\n"
        assert comes_true(lambda: not alive(int((tmp_path / "pid").read_text())))

    def test_a_grandchild_in_a_session_of_its_own_hangs_nobody_either(self, tmp_path: Path) -> None:
        tool = Tool(
            program(tmp_path, f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 1000' & sleep 0.2; echo whole")
        )

        assert tool.output((), PATIENCE) == "whole\n"

        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    def test_one_that_cannot_be_started_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ToolError, match=r"absent cannot be started: No such file"):
            Tool(str(tmp_path / "absent")).output((), PATIENCE)

    def test_it_is_given_no_secrets_and_speaks_english(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")

        given = Tool(program(tmp_path, "env; pwd")).output((), PATIENCE)

        assert "secret" not in given
        assert "LC_ALL=C\n" in given
        assert given.endswith("\n/\n")

    def test_its_keeper_leaves_with_status_0_whatever_becomes_of_it(self, tmp_path: Path) -> None:
        """The master of gunicorn collects every child of its process, and ends all when one has status 3 or 4."""
        path = program(tmp_path, "exit 3")

        assert (
            run_script(
                """
            import json, os, sys, time
            from otel_sysmetrics.sources.tools import Feed

            feed = Feed([sys.argv[1]])
            pid, status = os.waitpid(-1, 0)
            print(json.dumps(status))
            feed.close()
            """,
                path,
            )
            == 0
        )


class TestFind:
    def test_only_what_lies_in_a_named_folder_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program(tmp_path, "", "rocm-smi")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", os.pathsep.join(["", ".", "/usr/bin"]))
        assert find("rocm-smi") is None

        monkeypatch.setenv("PATH", str(tmp_path))
        assert find("rocm-smi") == str(tmp_path / "rocm-smi")

        monkeypatch.delenv("PATH")
        assert find("rocm-smi") is None


class TestFeed:
    def test_one_that_ends_late_is_collected_when_the_next_begins(self, tmp_path: Path) -> None:
        others = children_of(os.getpid())
        feed = Feed([program(tmp_path, "echo here; exec sleep 1000")])
        (keeper,) = children_of(os.getpid()) - others
        assert lines(feed) == ["here"]
        os.kill(keeper, signal.SIGSTOP)
        feed.close()
        assert keeper in children_of(os.getpid())
        os.kill(keeper, signal.SIGCONT)
        assert comes_true(lambda: not alive(keeper))

        following = Feed([program(tmp_path, "exec sleep 1000")])
        assert keeper not in children_of(os.getpid())
        following.close()

    def test_lines_come_as_they_are_written(self, tmp_path: Path) -> None:
        feed = Feed([program(tmp_path, "cat; echo second; exec sleep 1000")], "first\n")

        found: list[str] = []
        while len(found) < 2:
            found += lines(feed)
        assert found == ["first", "second"]
        assert feed.lines(0) == []
        feed.close()

    def test_a_line_longer_than_the_pipe_comes_whole(self, tmp_path: Path) -> None:
        feed = Feed([program(tmp_path, "head -c 3000000 /dev/zero | tr '\\0' x; echo; exec sleep 1000")])

        assert lines(feed) == ["x" * 3_000_000]
        feed.close()

    def test_only_the_newest_lines_are_kept(self, tmp_path: Path) -> None:
        feed = Feed([program(tmp_path, f"seq 1000; touch {tmp_path}/done; exec sleep 1000")])
        assert comes_true((tmp_path / "done").exists)

        assert lines(feed)[-1] == "1000"
        feed.close()

    def test_its_last_lines_come_before_word_of_its_end(self, tmp_path: Path) -> None:
        feed = Feed([program(tmp_path, "echo last; exit 7")])

        assert lines(feed) == ["last"]
        with pytest.raises(ToolError, match="ended with status 7"):
            lines(feed)

    def test_to_close_it_leaves_no_process_and_no_descriptor(self, tmp_path: Path) -> None:
        before = sorted(os.listdir("/proc/self/fd"))
        feed = Feed([program(tmp_path, "sleep 1000 & echo $$ $!; exec sleep 1000")])
        pids = [int(word) for word in lines(feed)[0].split()]

        feed.close()
        feed.close()

        assert comes_true(lambda: not any(map(alive, pids)))
        assert sorted(os.listdir("/proc/self/fd")) == before

    def test_it_ends_when_its_application_is_killed_though_a_worker_holds_the_pipes(self, tmp_path: Path) -> None:
        path = program(tmp_path, "echo $$; exec sleep 1000")
        script = """
            import os, signal, sys, time
            from otel_sysmetrics.sources.tools import Feed

            feed = Feed([sys.argv[1]])
            pid = int(feed.lines(20)[0])
            worker = os.fork()
            if worker == 0:
                feed.close()  # which touches nothing in a worker
                time.sleep(1000)
            os.write(1, f"{pid} {worker}".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        """
        output = tmp_path / "output"
        with output.open("wb") as sink:
            subprocess.run(
                [sys.executable, "-c", textwrap.dedent(script), path], stdout=sink, cwd=REPOSITORY, check=False
            )
        pid, worker = map(int, output.read_text().split())
        try:
            assert alive(worker)
            assert comes_true(lambda: not alive(pid))
        finally:
            os.kill(worker, signal.SIGKILL)

    def test_it_works_where_gevent_has_patched_everything(self, tmp_path: Path) -> None:
        path = program(tmp_path, "echo one; exec sleep 1000")
        assert run_script(
            """
            from gevent import monkey
            monkey.patch_all()
            import json, sys
            from otel_sysmetrics.sources.tools import Feed, Tool
            from otel_sysmetrics.threads import natively

            feed = natively(lambda: Feed([sys.argv[1]]))
            found = natively(lambda: feed.lines(20))
            found.append(natively(lambda: Tool("/bin/echo").output(("two",), 20)))
            natively(feed.close)
            print(json.dumps(found))
            """,
            path,
        ) == ["one", "two\n"]

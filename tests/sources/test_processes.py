from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.sources.files import Files
from otel_sysmetrics.sources.processes import MAX_TREE, WatchedProcess, parse_stat
from tests.trees import Clock, CountingFiles, WithoutProc, stat, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


def watch(files: Files, pid: int | None, *, tree: bool = True, clock: Clock | None = None) -> WatchedProcess:
    return WatchedProcess(files, lambda: pid, tree=tree, clock=clock or Clock())


def family(parents: Mapping[int, int]) -> dict[str, str]:
    """Write processes by pid and parent, on a kernel that keeps no list of children."""
    return {f"proc/{pid}/stat": stat(pid, parent=parent) for pid, parent in parents.items()}


def listed(children: Mapping[tuple[int, int], Iterable[int]]) -> dict[str, str]:
    """Write the lists of children by pid and thread."""
    return {
        f"proc/{pid}/task/{thread}/children": "".join(f"{child} " for child in pids)
        for (pid, thread), pids in children.items()
    }


@pytest.mark.parametrize("name", ["python", "a b", "a) S 1 (b", "(sd-pam)", "x\n) R 0 0", "\udcff", ""])
def test_a_name_of_any_text_does_not_shift_the_fields(name: str) -> None:
    sample = parse_stat(7, stat(7, parent=3, name=name, cpu=2.5, reaped=1.5, threads=9, start=40, rss=8192), 100.0)

    assert sample is not None
    assert (sample.parent, sample.cpu_seconds, sample.reaped_cpu_seconds) == (3, 2.5, 1.5)
    assert (sample.threads, sample.start_time, sample.age_seconds, sample.ended) == (9, 40.0, 60.0, False)
    assert sample.rss_bytes == 8192 // os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PAGE_SIZE")


@given(st.text() | st.lists(st.integers().map(str), max_size=60).map(lambda words: ") S " + " ".join(words)))
def test_no_text_breaks_the_reading_of_a_process(text: str) -> None:
    sample = parse_stat(7, text, 5.0)

    assert sample is None or (sample.rss_bytes != 0 and sample.threads != 0 and (sample.cpu_seconds or 0) >= 0)


def test_a_process_without_memory_has_unknown_memory_and_not_none_at_all() -> None:
    kernel_thread = parse_stat(2, stat(2, name="kthreadd", rss=0), None)

    assert kernel_thread is not None
    assert kernel_thread.rss_bytes is None


@pytest.mark.parametrize("pid", [None, 0, -1, 6])
def test_no_watched_process_is_nothing(tmp_path: Path, pid: int | None) -> None:
    watched = watch(write_tree(tmp_path, family({5: 1})), pid)

    assert (watched.pid(), watched.tree(), watched.processes()) == (None, frozenset(), ())


def test_a_zombie_is_gone(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"proc/5/stat": stat(5, state="Z", rss=0)})

    assert watch(files, 5).pid() is None


def test_a_process_whose_main_thread_ended_first_lives_on(tmp_path: Path) -> None:
    files = write_tree(tmp_path, {"proc/5/stat": stat(5, state="Z", threads=4, cpu=3)})

    assert [(process.pid, process.threads) for process in watch(files, 5).processes()] == [(5, 4)]


def test_a_zombie_among_the_descendants_has_time_but_no_memory(tmp_path: Path) -> None:
    zombie = {"proc/6/stat": stat(6, parent=5, state="Z", cpu=4)}
    _, child = watch(write_tree(tmp_path, {**family({5: 1}), **zombie}), 5).processes()

    assert (child.pid, child.cpu_seconds, child.rss_bytes, child.threads) == (6, 4.0, None, None)


def test_descendants_are_covered_only_where_asked_for_but_always_named(tmp_path: Path) -> None:
    files = write_tree(tmp_path, family({5: 1, 6: 5, 7: 6, 8: 1}))

    assert [process.pid for process in watch(files, 5, tree=False).processes()] == [5]
    assert [process.pid for process in watch(files, 5, tree=True).processes()] == [5, 6, 7]
    assert watch(files, 5, tree=False).tree() == {5, 6, 7}


def test_children_that_other_threads_started_are_found(tmp_path: Path) -> None:
    lists = listed({(5, 5): [6], (5, 51): [7], (6, 6): [], (7, 7): [], (7, 71): [8], (8, 8): []})
    files = write_tree(tmp_path, {**family({5: 1, 6: 5, 7: 5, 8: 7, 9: 1}), **lists})

    assert watch(files, 5).tree() == {5, 6, 7, 8}


def test_children_that_vanish_or_whose_pid_was_reused_are_left_out(tmp_path: Path) -> None:
    lists = listed({(5, 5): [6, 7, 8]})
    files = write_tree(tmp_path, {**family({5: 1, 7: 1, 8: 5}), **lists, "proc/5/task/51/children": "x 8"})

    assert watch(files, 5).tree() == {5, 8}


@pytest.mark.parametrize("lists", [{}, listed({(5, 5): [6], (6, 6): [5, 6]})], ids=["scan", "lists of children"])
def test_case_009_a_loop_in_the_links_ends(tmp_path: Path, lists: dict[str, str]) -> None:
    files = write_tree(tmp_path, {**family({5: 6, 6: 5}), **lists})

    assert watch(files, 5).tree() == {5, 6}


def test_case_009_the_walk_reads_the_tree_and_not_the_host(tmp_path: Path) -> None:
    write_tree(
        tmp_path, {**family(dict.fromkeys(range(100, 1100), 1)), **family({5: 1, 6: 5}), **listed({(5, 5): [6]})}
    )
    files = CountingFiles(str(tmp_path))

    assert watch(files, 5).tree() == {5, 6}
    assert not [name for name in files.read if not name.startswith(("proc/5/", "proc/6/", "proc/uptime"))]


def test_case_009_the_walk_is_shared_by_those_who_sample_together(tmp_path: Path) -> None:
    write_tree(tmp_path, family({5: 1, 6: 5}))
    files, clock = CountingFiles(str(tmp_path)), Clock(100.0)
    watched = watch(files, 5, clock=clock)

    first, read = watched.walk(), len(files.read)
    assert (watched.pid(), watched.tree()) == (5, frozenset({5, 6}))
    assert len(files.read) == read
    clock.now += 0.09
    assert watched.walk() is first
    clock.now += 0.02
    assert watched.walk() is not first
    assert len(files.read) == 2 * read


def test_two_threads_that_sample_at_once_share_one_walk(tmp_path: Path) -> None:
    write_tree(tmp_path, family({5: 1, 6: 5}))
    asked, both = iter(range(2)), threading.Event()

    class Slow(CountingFiles):
        def text(self, *parts: str) -> str | None:
            assert both.wait(10)
            return super().text(*parts)

    def pid() -> int:
        if next(asked):
            both.set()
        return 5

    files = Slow(str(tmp_path))
    watched = WatchedProcess(files, pid, tree=True, clock=Clock())
    with ThreadPoolExecutor(2) as pool:
        walks = [future.result() for future in [pool.submit(watched.walk), pool.submit(watched.walk)]]

    assert walks[0] == walks[1]
    assert files.read.count("proc/uptime") == 1


def test_a_runaway_tree_is_cut(tmp_path: Path) -> None:
    files = write_tree(tmp_path, family({5: 1, **dict.fromkeys(range(10, 10 + MAX_TREE + 50), 5)}))

    assert len(watch(files, 5).tree()) == MAX_TREE


def test_the_pid_is_asked_at_each_sample(tmp_path: Path) -> None:
    pids = iter([5, 6, None])
    watched = WatchedProcess(write_tree(tmp_path, family({5: 1, 6: 1})), lambda: next(pids), tree=False, clock=Clock())

    assert [watched.pid(), watched.pid(), watched.pid()] == [5, 6, None]


FORK_WHILE_ANOTHER_THREAD_WALKS = """
    import os, sys, threading, time
    from otel_sysmetrics.sources.files import Files
    from otel_sysmetrics.sources.processes import WatchedProcess

    class Stuck(Files):
        parent, reached = os.getpid(), threading.Event()
        def text(self, *parts):
            if os.getpid() == self.parent:
                self.reached.set()
                threading.Event().wait()
            return super().text(*parts)

    watched = WatchedProcess(Stuck("/"), os.getpid, tree=True, clock=time.monotonic)
    threading.Thread(target=watched.walk, daemon=True).start()
    Stuck.reached.wait()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(status)
    started = time.monotonic()
    print(watched.pid() == os.getpid(), time.monotonic() - started < 2, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_in_the_middle_of_a_walk_does_not_stop_the_child() -> None:
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORK_WHILE_ANOTHER_THREAD_WALKS)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["True", "True"]


GROW_A_TREE = """
    import subprocess, sys, threading

    CHILD = "import sys; ballast = bytearray(b'x') * (40 << 20); print('ready', flush=True); sys.stdin.read()"
    started, stay = threading.Semaphore(0), threading.Event()

    def start():
        command = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, CHILD]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        started.release()
        stay.wait()

    for _ in range(2):
        threading.Thread(target=start, daemon=True).start()
    for _ in range(2):
        started.acquire()
    print("started", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def grown() -> Iterator[int]:
    """Start a process whose threads started two shells, each with a child that holds 40 MiB; they end with it."""
    program = [sys.executable, "-c", textwrap.dedent(GROW_A_TREE)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        yield process.pid


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc here")
def test_case_002_a_real_tree_is_what_psutil_sees(grown: int) -> None:
    alone = watch(Files("/"), grown, tree=False, clock=Clock())
    tree = watch(Files("/"), grown, tree=True, clock=Clock())
    root = psutil.Process(grown)
    theirs = {process.pid: process for process in [root, *root.children(recursive=True)]}

    assert len(theirs) == 5
    assert tree.tree() == alone.tree() == set(theirs)
    ours = {process.pid: process for process in tree.processes()}
    assert {pid: process.threads for pid, process in ours.items()} == {
        pid: process.num_threads() for pid, process in theirs.items()
    }
    resident = sum(process.rss_bytes or 0 for process in ours.values())
    assert resident == pytest.approx(sum(process.memory_info().rss for process in theirs.values()), rel=0.05)
    assert resident - (alone.processes()[0].rss_bytes or 0) > 80 << 20
    assert all(0 <= (process.age_seconds or -1) < 60 for process in ours.values())


def test_case_001_a_process_that_ended_is_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        clock = Clock()
        watched = watch(Files("/"), process.pid, clock=clock)
        assert watched.pid() == process.pid
        assert process.stdin
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        clock.now += 1
        assert watched.processes() == ()
        process.wait()
        clock.now += 1
        assert watched.processes() == ()


def test_without_proc_the_own_process_is_known_all_the_same(tmp_path: Path) -> None:
    (own,) = watch(WithoutProc(tmp_path), os.getpid(), tree=False).processes()

    assert own.parent == os.getppid()
    assert own.rss_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.05)
    assert own.threads == psutil.Process().num_threads()
    assert own.cpu_seconds == pytest.approx(time.process_time(), abs=1)


class PsutilError(Exception):
    """What every exception of psutil is."""


def refuse(*_: object, **__: object) -> object:
    raise PsutilError


def unsupported(*_: object, **__: object) -> object:
    raise NotImplementedError


def a_process(pid: int, **methods: object) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, create_time=lambda: 50.0, **methods)


def stub_psutil(monkeypatch: pytest.MonkeyPatch, process: object) -> None:
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(Error=PsutilError, Process=process))


def test_case_003_004_what_a_platform_or_the_rights_withhold_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = SimpleNamespace(user=2.0, system=1.0)
    child = a_process(6, memory_info=lambda: SimpleNamespace(rss=99), cpu_times=refuse, num_threads=unsupported)
    vanished = SimpleNamespace(pid=7, create_time=refuse)
    root = a_process(5, memory_info=refuse, cpu_times=lambda: times, children=lambda **_: [child, vanished])
    stub_psutil(monkeypatch, lambda _: root)

    first, second = watch(WithoutProc(tmp_path), 5).processes()

    assert (first.pid, first.cpu_seconds, first.rss_bytes, first.threads) == (5, 3.0, None, None)
    assert (second.pid, second.cpu_seconds, second.rss_bytes, second.threads) == (6, None, 99, None)


@pytest.mark.parametrize("process", [refuse, lambda pid: a_process(pid, status=lambda: "zombie")])
def test_without_proc_a_process_that_is_gone_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: object
) -> None:
    stub_psutil(monkeypatch, process)

    assert watch(WithoutProc(tmp_path), 5).processes() == ()


def test_without_proc_and_without_psutil_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)

    assert watch(WithoutProc(tmp_path), os.getpid()).processes() == ()


def test_psutil_is_not_asked_about_a_root_that_is_not_our_own(tmp_path: Path) -> None:
    assert watch(Files(str(tmp_path)), os.getpid()).processes() == ()

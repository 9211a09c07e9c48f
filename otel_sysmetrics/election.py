"""Which process of a job reports what belongs to the whole host: the one that holds a lock.

The kernel releases the lock when its holder dies, and a forked child does not inherit it.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_sysmetrics.importing import importing
from otel_sysmetrics.servers import BORN, is_master
from otel_sysmetrics.settings import job_variables, runtime_folder
from otel_sysmetrics.sources.files import USED_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_sysmetrics.settings import Settings

_log: Final = logging.getLogger("otel_sysmetrics")

FORGOTTEN_AFTER: Final = 180.0
_OF_ONE_PROCESS: Final = frozenset({"service.instance.id", "rank", "local_rank", "world_size"})
_CHOICES: Final = (
    "collectors",
    "metrics_included",
    "metrics_excluded",
    "disk_paths",
    "gpu_device_ids",
    "no_cgroup",
    "network_interfaces",
    "neuron_monitor_config",
    "tpu_runtime_ports",
    "root_path",
)

_HELPERS: Final = (".forkserver", ".resource_tracker", ".semaphore_tracker")

_files: Final[dict[str, int]] = {}
"""Descriptors by path: to close any of a file's descriptors gives up all locks that the process has on it."""
_holders: Final[dict[str, tuple[int, object]]] = {}
"""Who holds a lock in this process, with its pid: the kernel grants a second lock to the process that has the first."""


class Election:
    """A seat that one process of a job has at a time.

    `asks` counts how often readers have asked: who is never asked must not take the seat from those who are, so one
    without readers (`expected` is false) waits for the first. `clock` counts seconds. Where there is no place for a
    lock, every process reports, which is said once.
    """

    def __init__(
        self, name: Callable[[], str], clock: Callable[[], float], asks: Callable[[], int], *, expected: bool
    ) -> None:
        self._name = name
        self._clock = clock
        self._asks = asks
        self._heard = asks()
        self._asked = clock() if expected else None
        self._longest = 0.0
        self._path: str | None = None
        self._impossible = False
        self._over = False
        self._lock = threading.Lock()

    def won(self) -> bool:
        """Take or keep the seat, where it is free and somebody asks for what it brings; tell whether it is ours."""
        if not self._is_wanted():
            with self._lock:
                self._leave()
            return False
        if self._impossible:
            return True
        try:
            with self._lock, importing():
                return not self._over and self._take()
        except OSError as error:
            if error.errno in USED_UP:
                return False  # which passes
            self._impossible = True
            _log.warning(
                "otel-sysmetrics: every process reports the host's metrics: no lock is possible: %s",
                error.strerror or error,
            )
            return True

    def end(self) -> None:
        """Give the seat up for good; harmless for who does not have it."""
        with self._lock:
            self._over = True
            self._leave()

    def _leave(self) -> None:
        if self._path is not None and _holders.get(self._path) == (os.getpid(), self):
            del _holders[self._path]
            _unlock(_files[self._path])

    def _is_wanted(self) -> bool:
        now, asks = self._clock(), self._asks()
        if asks != self._heard:
            self._longest = max(self._longest, now - (now if self._asked is None else self._asked))
            self._heard, self._asked = asks, now
        return self._asked is not None and now - self._asked <= max(FORGOTTEN_AFTER, 3 * self._longest)

    def _take(self) -> bool:
        path = self._path = self._path or os.path.join(_folder(), f"otel-sysmetrics-{self._name()}.lock")
        pid, holder = _holders.get(path, (0, None))
        if pid == os.getpid():
            return holder is self
        if path not in _files:
            _files[path] = _open(path)
        if not _lock(_files[path]):
            return False
        _holders[path] = (os.getpid(), self)
        return True


def seat_name(  # noqa: PLR0913 - everything that tells one job from another
    settings: Settings,
    resource: Mapping[str, object],
    boot_id: str,
    host_name: str,
    *,
    named: bool,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Return what all processes of a job on a host have in common, as a hash.

    `named` tells whether a service name was configured. Without one, and without a scheduler's or a launcher's word
    for the job, processes belong together when they are of one process group: two unrelated trainings of one user
    must not silence each other, and torchrun gives each rank a session of its own.
    """
    from hashlib import sha256

    common = sorted(
        (key, str(value))
        for key, value in resource.items()
        if key not in _OF_ONE_PROCESS and not key.startswith(("process.", "slurm."))
    )
    job = job_variables(environ)
    group = os.getpgrp() if not job and not named and hasattr(os, "getpgrp") else None
    chosen = [getattr(settings, name) for name in _CHOICES]
    endpoints = (sorted(settings.openmetrics_endpoints), settings.dcgm_exporter is not None)
    told = repr((boot_id, host_name, chosen, endpoints, common, sorted(job.items()), group))
    return sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def child_reports(choice: str) -> bool | None:
    """Tell whether this process reports at all, None while that cannot be known yet.

    `auto`: all but a daemonic child of multiprocessing, a DataLoader's worker. `never`: no child of multiprocessing;
    no forked child either, which the fork hooks see to.
    Until a spawned child has heard from its parent what it is, it looks like any process, and a child of the fork
    server looks like that. gunicorn's master leaves it to its workers. The helpers that multiprocessing starts beside
    the children never report: they are instrumented as any program of Python's is that an instrumented one starts.
    """
    process = sys.modules.get("multiprocessing.process")
    is_child = process is not None and process.parent_process() is not None
    if not is_child and _is_helper():
        return False if os.getpid() == BORN else None
    if choice == "always":
        return True
    if not is_child:
        if "--multiprocessing-fork" in getattr(sys, "orig_argv", ()):
            return None
        master = is_master()
        return None if master is None else not master
    return choice != "never" and not process.current_process().daemon  # type: ignore[union-attr]


def _is_helper() -> bool:
    """Tell whether this process was started as a helper of multiprocessing's, or of joblib's copy of it."""
    return any(
        argument.startswith("from ") and argument.partition(" import main")[0].endswith(_HELPERS)
        for argument in getattr(sys, "orig_argv", ())
    )


def _folder() -> str:
    """Return a folder that nobody else can write to; raises OSError.

    Never one in a home, which several hosts may share.
    """
    given = runtime_folder()
    if given and os.path.isabs(given) and _is_ours(given):
        return given
    if not hasattr(os, "getuid"):
        return tempfile.gettempdir()
    made = os.path.join(tempfile.gettempdir(), f"otel-sysmetrics-{os.getuid()}")
    with suppress(FileExistsError):
        os.mkdir(made, 0o700)
    if not _is_ours(made):
        raise OSError(f"{made} is another user's, or others may write to it")
    return made


def _is_ours(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & others


def _open(path: str) -> int:
    """Open the lock's file, and no other that somebody put there under its name; raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    found = os.fstat(descriptor)
    if hasattr(os, "getuid") and (
        not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_nlink != 1
    ):
        os.close(descriptor)
        raise OSError(f"{path} is not a file of our own")
    return descriptor


def _lock(descriptor: int) -> bool:
    """Take the lock if it is free; raises OSError where the file system has none."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _unlock(descriptor: int) -> None:
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        import fcntl

        fcntl.lockf(descriptor, fcntl.LOCK_UN)

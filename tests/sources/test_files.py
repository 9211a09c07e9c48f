from __future__ import annotations

import errno
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from otel_sysmetrics.sources.files import Files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open no file."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize("read", [lambda files: files.text("proc/stat"), lambda files: files.names("proc")])
def test_that_no_file_can_be_opened_says_nothing_of_the_file(read: Callable[[Files], object]) -> None:
    """Used up descriptors are an error, not a missing file, of which other conclusions would be drawn."""
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files") as caught:
        read(Files("/"))
    assert caught.value.errno == errno.EMFILE

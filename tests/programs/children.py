"""What a child of multiprocessing says of whether it reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_sysmetrics.election import child_reports

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue


def answer(queue: SimpleQueue[dict[str, bool | None]]) -> None:
    """Put what each choice means here."""
    queue.put({choice: child_reports(choice) for choice in ("auto", "always", "never")})

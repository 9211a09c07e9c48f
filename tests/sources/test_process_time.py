from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.sources.process_time import cpu_seconds_between
from otel_sysmetrics.sources.processes import ProcessSample, Walk

if TYPE_CHECKING:
    from collections.abc import Callable


def process(
    pid: int, cpu: float, reaped: float = 0.0, *, start: float = 0.0, age: float | None = 1000.0
) -> ProcessSample:
    return ProcessSample(pid, 1, start, age, cpu, reaped, 4096, 1)


def used(before: list[ProcessSample], after: list[ProcessSample], *, reaped: bool = True) -> float | None:
    return cpu_seconds_between(Walk(100.0, tuple(before)), Walk(110.0, tuple(after)), reaped=reaped)


def test_a_child_that_was_reaped_keeps_what_it_used_in_the_window() -> None:
    assert used([process(1, 5), process(2, 30)], [process(1, 6, reaped=34)]) == pytest.approx(1 + 4)


def test_a_child_born_and_reaped_within_the_window_counts() -> None:
    assert used([process(1, 5)], [process(1, 6, reaped=3)]) == pytest.approx(4)


def test_a_zombie_is_counted_once_before_and_after_it_is_waited_for() -> None:
    zombie = replace(process(2, 33), rss_bytes=None, threads=None, ended=True)

    assert used([process(1, 5), process(2, 30)], [process(1, 5), zombie]) == pytest.approx(3)
    assert used([process(1, 5), zombie], [process(1, 5, reaped=33)]) == pytest.approx(0)


def test_a_process_born_in_the_window_counts_whole() -> None:
    assert used([process(1, 5)], [process(1, 5), process(2, 7, start=995, age=5)]) == pytest.approx(7)


@pytest.mark.parametrize("age", [500.0, None])
def test_an_adopted_process_does_not_bring_its_history(age: float | None) -> None:
    joined = [process(1, 5), process(2, 700, start=500, age=age)]

    assert used([process(1, 5)], joined) == 0
    assert used(joined, [process(1, 5), process(2, 702, start=500, age=age)]) == pytest.approx(2)


def test_a_process_that_left_unwaited_takes_nothing_from_the_others() -> None:
    assert used([process(1, 5), process(2, 900), process(3, 1)], [process(1, 6, reaped=4)]) == pytest.approx(1 + 3)


def test_a_parent_that_ignores_its_children_loses_their_time_and_nothing_else() -> None:
    assert used([process(1, 5), process(2, 30)], [process(1, 8)]) == pytest.approx(3)


def test_a_reused_pid_is_another_process() -> None:
    before, after = [process(1, 5), process(2, 90, start=3)], [process(1, 5, reaped=91), process(2, 2, start=99, age=1)]

    assert used(before, after) == pytest.approx(1 + 2)
    assert used([process(1, 5, start=3)], [process(1, 90, start=4)]) is None


def test_counters_that_run_backwards_count_as_nothing() -> None:
    assert used([process(1, 5, reaped=9), process(2, 3)], [process(1, 4, reaped=8), process(2, 5)]) == pytest.approx(2)


def test_without_a_tree_reaped_children_do_not_count() -> None:
    assert used([process(1, 5)], [process(1, 6, reaped=30)], reaped=False) == pytest.approx(1)


def test_unknown_is_not_zero() -> None:
    assert used([], [process(1, 5)]) is None
    assert used([process(1, 5)], []) is None
    assert used([process(1, 5)], [replace(process(1, 5), cpu_seconds=None)]) is None


def test_rounding_to_ticks_in_many_children_makes_no_spike() -> None:
    parents = [process(pid, 0) for pid in range(1, 11)]
    children = [process(pid, 100) for pid in range(11, 21)]
    # The kernel cuts user and system time to ticks, each on its own.
    waited = [process(pid, 0, reaped=99.98) for pid in range(1, 11)]

    assert used(parents + children, waited) == 0


class Life:
    """A process tree that knows the truth; process 1 adopts orphans, so nobody ever leaves."""

    def __init__(self) -> None:
        self.now = 0
        self.truth = 0
        self.own, self.reaped, self.parent, self.born = {1: 0}, {1: 0}, {1: 0}, {1: 0}
        self.ended: set[int] = set()
        self.last = 1

    def work(self, pid: int) -> None:
        self.own[pid] += 1
        self.truth += 1
        self.now += 1

    def fork(self, pid: int) -> None:
        self.last += 1
        self.own[self.last] = self.reaped[self.last] = 0
        self.parent[self.last], self.born[self.last] = pid, self.now

    def exit(self, pid: int) -> None:
        if pid != 1:
            self.ended.add(pid)
            self.parent.update({child: 1 for child, parent in self.parent.items() if parent == pid})

    def wait(self, pid: int) -> None:
        for child in [child for child in self.ended if self.parent[child] == pid]:
            self.reaped[pid] += self.own.pop(child) + self.reaped.pop(child)
            self.ended.discard(child)
            del self.parent[child], self.born[child]

    def alive(self) -> list[int]:
        return [pid for pid in self.own if pid not in self.ended]

    def look(self) -> Walk:
        self.now += 1
        return Walk(
            self.now,
            tuple(
                process(pid, self.own[pid], self.reaped[pid], start=self.born[pid], age=self.now - self.born[pid])
                for pid in self.own
            ),
        )


@given(st.lists(st.tuples(st.sampled_from(["work", "fork", "exit", "wait", "look"]), st.integers(0, 30)), max_size=120))
def test_every_second_of_a_tree_is_counted_exactly_once(story: list[tuple[str, int]]) -> None:
    life = Life()
    before, known = life.look(), 0
    for deed, who in [*story, ("look", 0)]:
        if deed != "look":
            act: Callable[[int], None] = getattr(life, deed)
            act(life.alive()[who % len(life.alive())])
            continue
        after = life.look()
        assert cpu_seconds_between(before, after, reaped=True) == pytest.approx(life.truth - known)
        before, known = after, life.truth

"""Which source AMD GPUs are read through, where others hang, fail for long, or go."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from otel_sysmetrics.cli import doctor, sample
from otel_sysmetrics.collector import NotHere
from otel_sysmetrics.collectors.amd.collector import PATIENCE, probe
from otel_sysmetrics.collectors.amd.sources import FIRST_ALL, FIRST_LONGEST, LONGEST, Sources
from otel_sysmetrics.sources.tools import ToolError
from tests.collectors.amd.machine import CARD
from tests.parts import program, values

if TYPE_CHECKING:
    import click

    from otel_sysmetrics.collectors.amd.collector import AmdCollector
    from tests.collectors.amd.machine import Machine

OTHER = [{"gpu": 0, "usage": {"gfx_activity": 9}}]


def tags(collector: AmdCollector) -> dict[str, float]:
    return values([reading for reading in collector.sample() if reading.value is not None])


def default(command: click.Command, name: str) -> float:
    (found,) = (option.default for option in command.params if option.name == name)
    assert isinstance(found, float)
    return found


class TestHanging:
    @pytest.mark.parametrize("amd_smi", ["hangs", "answers", "is not there"])
    def test_the_first_probe_passes_a_tool_over_that_hangs_and_says_so(self, amd_smi: str, machine: Machine) -> None:
        machine.card(128, "0000:03:00.0", gpu_busy_percent="3\n")
        machine.does("rocm-smi", "exec sleep 1000")
        if amd_smi == "hangs":
            machine.does("amd-smi", "exec sleep 1000")
        elif amd_smi == "answers":
            machine.has("amd-smi", metric=OTHER, static=[])
        context = machine.context(time.monotonic)

        collector = probe(context, Sources(context, longest=2, everything=4))

        assert tags(collector) == {"gpu.0.gpu": 9 if amd_smi == "answers" else 3}
        through = f"{machine.folder}/bin/amd-smi" if amd_smi == "answers" else "the amdgpu driver's files"
        said = [f"{machine.folder}/bin/rocm-smi did not answer within 2 s"]
        assert collector.describe().startswith(f"0: AMD GPU, through {through}, {', '.join(said)}")
        assert ("bin/amd-smi did not answer within" in collector.describe()) is (amd_smi == "hangs")

    def test_a_slow_tool_that_the_first_probe_had_no_time_for_is_found_by_the_next(self, machine: Machine) -> None:
        machine.does("rocm-smi", f"sleep 2; echo '{json.dumps(CARD)}'")
        context = machine.context(time.monotonic)
        sources = Sources(context, longest=1)
        with pytest.raises(NotHere, match="rocm-smi did not answer within 1 s"):
            probe(context, sources)

        assert tags(probe(context, sources)) == {"gpu.0.gpu": 5}

    def test_all_that_the_first_probe_may_take_is_less_than_whoever_waits_for_it_waits(self) -> None:
        """Each of the two tools takes a moment more to end, and `sample` needs the files once more."""
        ends = 2 * 0.6

        assert FIRST_LONGEST < FIRST_ALL < LONGEST
        assert FIRST_ALL + ends < min(doctor.TIMEOUT, default(sample.command, "timeout"))


class TestGone:
    def test_a_source_that_fails_for_long_is_given_up_for_another(self, machine: Machine) -> None:
        machine.has("rocm-smi", _=CARD)
        bench = machine.bench()
        assert bench.tags() == {"gpu.0.gpu": 5}
        (machine.folder / "bin" / "rocm-smi").unlink()
        machine.has("amd-smi", metric=OTHER, static=[])

        begun = bench.clock.now()
        while bench.clock.now() - begun < PATIENCE:
            with pytest.raises(ToolError, match="rocm-smi cannot be started"):
                bench.tags(after=PATIENCE / 4)
        with pytest.raises(NotHere, match="rocm-smi cannot be started"):
            bench.tags(after=PATIENCE / 4)

        assert tags(self.probed(bench)) == {"gpu.0.gpu": 9}

    @pytest.mark.parametrize("fails", ["exit 1", "", "echo '{\"card0\": {'"])
    def test_one_that_works_in_between_is_kept(self, fails: str, machine: Machine) -> None:
        machine.card(128, "0000:03:00.0", gpu_busy_percent="3\n")
        machine.has("rocm-smi", _=CARD)
        bench = machine.bench()
        for _ in range(3):
            machine.has("rocm-smi", _=CARD)
            assert bench.tags(after=15) == {"gpu.0.gpu": 5}
            machine.does("rocm-smi", fails)
            for after in (PATIENCE / 2, PATIENCE / 3):
                with pytest.raises(ToolError, match="rocm-smi"):
                    bench.tags(after)

    def test_a_tool_that_moves_is_found_where_it_lies_then(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine.has("rocm-smi", _=CARD)
        bench = machine.bench()
        bench.tags()
        (machine.folder / "bin" / "rocm-smi").unlink()
        program(machine.folder / "new", "rocm-smi", f"cat {machine.folder}/rocm-smi_")
        monkeypatch.setenv("PATH", f"{machine.folder}/new:/usr/bin:/bin")

        collector = self.probed(bench)

        assert tags(collector) == {"gpu.0.gpu": 5}
        assert collector.describe() == f"0: MI210, through {machine.folder}/new/rocm-smi"

    def probed(self, bench: Any) -> Any:  # noqa: ANN401 - a bench, and a collector of that part
        """Probe anew, as a part does that is sent back to its probe."""
        bench.close()
        return bench.part.probe()

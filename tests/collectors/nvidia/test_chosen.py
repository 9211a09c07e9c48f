from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.collectors.nvidia.program import Failed, Program
from tests.nvml import H100, Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conftest import MakeMachine

HANDLE: Final = "nvmlDeviceGetHandleByIndex_v2"
UUID: Final = "GPU-{:08x}-5a5a-4b4b-8c8c-0123456789ab"
WARNING: Final = "WARNING otel-sysmetrics: nvidia: "


@pytest.mark.parametrize("ids", [[1], [UUID.format(1)], [UUID.format(1).upper()], [1, UUID.format(1)]])
def test_a_chosen_gpu_that_is_lost_leaves_the_collector_ill(machine: MakeMachine, ids: Sequence[object]) -> None:
    host = machine(H100, H100, H100)
    with Program(host, gpu_device_ids=ids).probe() as program:
        assert program.values()["gpu.1.gpu"] == 97
        host.set("*", Code.GPU_IS_LOST, 0)
        assert program.values()["gpu.1.gpu"] == 97
        assert program.log == []
        host.set("*", Code.GPU_IS_LOST, 1)
        for _ in range(2):
            with pytest.raises(Failed, match="none of 1 GPUs answers: GPU is lost") as caught:
                program.values()
            assert "restart the machine" in caught.value.remedy
        host.unset("*", 1)
        assert program.values()["gpu.1.gpu"] == 97
        assert program.log == [f"{WARNING}GPU 1 does not answer: GPU is lost", f"{WARNING}GPU 1 is back"]


@pytest.mark.parametrize("call", [HANDLE, "nvmlDeviceGetUUID"])
def test_a_gpu_that_may_be_the_chosen_one_counts(machine: MakeMachine, call: str) -> None:
    host = machine(H100, H100)
    host.set(call, Code.UNKNOWN, 1)
    with Program(host, gpu_device_ids=[UUID.format(1)]).probe() as program:
        with pytest.raises(Failed, match="none of 1 GPUs answers"):
            program.values()
        host.set(call, Code.SUCCESS if call is HANDLE else UUID.format(1), 1)
        assert {tag.split(".")[1] for tag in program.values()} == {"1"}


def test_ids_that_name_no_gpu_are_said_once(machine: MakeMachine) -> None:
    host = machine(H100, H100)
    host.set(HANDLE, Code.GPU_IS_LOST, 1)
    with Program(host, gpu_device_ids=["0", "7", "GPU-Nope", UUID.format(1).upper()]).probe() as program:
        for _ in range(3):
            program.values()
        assert program.log[1:] == [f"{WARNING}gpu_device_ids: no GPU is 7"]
        host.set(HANDLE, Code.SUCCESS, 1)
        for _ in range(3):
            assert {tag.split(".")[1] for tag in program.values()} == {"0", "1"}
        assert program.log[2:] == [f"{WARNING}GPU 1 is back", f"{WARNING}gpu_device_ids: no GPU is GPU-Nope"]
        assert program.do("describe").endswith("; gpu_device_ids: no GPU is 7, GPU-Nope")


@pytest.mark.parametrize("ids", [None, [0], [UUID.format(1).lower()]])
def test_ids_that_name_gpus_are_not_spoken_of(machine: MakeMachine, ids: Sequence[object] | None) -> None:
    with Program(machine(H100, H100), gpu_device_ids=ids).probe() as program:
        assert program.values()
        assert "no GPU is" not in program.do("describe")
        assert program.log == []


def test_the_only_chosen_gpu_that_is_not_counted_any_more_leaves_the_collector_ill(machine: MakeMachine) -> None:
    host = machine(H100, H100)
    with Program(host, gpu_device_ids=[1]).probe() as program:
        program.values()
        host.count = 1
        with pytest.raises(Failed, match="does not show it any more"):
            program.values()
        host.count = 2
        assert program.values()["gpu.1.gpu"] == 97

"""Which GPUs a tool lists, whatever it writes: GPUs over documents, noise between these, or no document at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.collectors.amd import amd_smi, rocm_smi
from otel_sysmetrics.collectors.amd.collector import readings
from tests.parts import values

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_sysmetrics.collectors.amd.gpu import Gpu

NOISE: Final = st.sampled_from(
    (
        *("", "\n", "WARNING: {groups} [render]\n", "None\n", "[]\n", 'WARNING: "{}" [\n'),
        *('seen {"card0": "broken"}\n', '{"card1": 7, "card2": ["card0"]}\n', '{"gpu": \n', "{" * 20 + "\n"),
    )
)
LAYOUTS: Final = ("rocm-smi", "list", "gpu_data", "object")


def written(layout: str, cards: dict[int, int], indent: int | None) -> str:
    """Write a load per GPU, as a document or as documents."""
    rows = [{"gpu": index, "usage": {"gfx_activity": use}} for index, use in cards.items()]
    layouts: dict[str, list[Any]] = {
        "rocm-smi": [{f"card{index}": {"GPU use (%)": f"{use}"} for index, use in cards.items()}],
        "list": [rows],
        "gpu_data": [{"gpu_data": rows}],
        "object": rows,
    }
    return "".join(f"{json.dumps(document, indent=indent)}\n" for document in layouts[layout])


def loads(gpus: list[Gpu] | None) -> dict[int, float | None]:
    return {gpu.index: gpu.use for gpu in gpus or []}


def read(layout: str) -> Callable[[str], list[Gpu] | None]:
    return rocm_smi.parse if layout == "rocm-smi" else amd_smi.parse


@given(
    st.sampled_from(LAYOUTS),
    st.lists(st.tuples(NOISE, st.dictionaries(st.integers(0, 70), st.integers(0, 100), min_size=1)), min_size=1),
    NOISE,
    st.sampled_from((None, 4)),
)
def test_all_gpus_of_all_documents_are_there_each_as_it_is_written_first(
    layout: str, documents: list[tuple[str, dict[int, int]]], end: str, indent: int | None
) -> None:
    """Case 64: some releases write each device, and then all of them."""
    expected: dict[int, int] = {}
    text = ""
    for noise, cards in documents:
        text += noise + written(layout, cards, indent)
        expected = {**cards, **expected}

    assert loads(read(layout)(text + end)) == expected
    assert list(loads(read(layout)(text))) == sorted(expected)


@pytest.mark.parametrize(
    ("layout", "inner"), [("rocm-smi", {"card1": {"GPU use (%)": "6"}}), ("list", {"gpu": 1}), ("gpu_data", {"gpu": 1})]
)
def test_what_lies_in_a_document_is_no_document(layout: str, inner: object) -> None:
    whole = written(layout, {0: 5}, None).replace("{", f'{{"partitions": [[{json.dumps(inner)}]], ', 1)

    assert loads(read(layout)(f"{{}} {whole}")) == {0: 5}


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("layout", ["rocm-smi", "list", "gpu_data"])
def test_a_document_that_breaks_off_gives_all_gpus_or_none(layout: str, indent: int | None) -> None:
    whole = written(layout, {0: 5, 1: 6}, indent).strip()

    assert {len(read(layout)(whole[:end]) or ()) for end in range(len(whole))} <= {0, 2}
    assert loads(read(layout)(whole)) == {0: 5, 1: 6}


KEYS: Final = st.sampled_from(
    (
        *(
            "card0",
            "card1",
            "system",
            "GPU use (%)",
            "GPU Memory Allocated (VRAM%)",
            "Unique ID",
            "PCI Bus",
            "gpu_data",
        ),
        *("Average Graphics Package Power (W)", "Max Graphics Package Power (W)", "VRAM Total Used Memory (B)"),
        *("gpu", "usage", "gfx_activity", "mem_usage", "used_vram", "total_vram", "value", "unit", "limit", "ppt0"),
    )
)
DOCUMENTS: Final = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(1) | st.sampled_from(("N/A", "", "7", "7 W", "MB", "1e999")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=25,
)
ROWS: Final = st.lists(st.fixed_dictionaries({"gpu": st.integers(-1, 3)}, optional={"usage": DOCUMENTS}), max_size=3)


@given(st.text() | (DOCUMENTS | ROWS).map(json.dumps), st.text(max_size=9))
def test_no_text_makes_a_parser_fail_or_a_0_out_of_nothing(text: str, noise: str) -> None:
    for document in (text, noise + text, text[: len(text) // 2]):
        static = amd_smi.parse_static(document) or {}
        for gpus in (rocm_smi.parse(document), amd_smi.join(amd_smi.parse(document) or [], static)):
            found = values([reading for reading in readings(gpus or []) if reading.value is not None])
            assert all(value >= -50 for value in found.values())
            assert 0 not in found.values() or "0" in document

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.patterns import NotAPattern, closed, compiled

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["google-re2", "Python's re"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Have patterns read by google-re2, and by Python as where that is not installed."""
    engine: str = request.param
    if engine == "Python's re":
        monkeypatch.setitem(sys.modules, "re2", None)
    elif find_spec("re2") is None:
        pytest.skip("google-re2 is not installed")
    compiled.cache_clear()
    yield engine
    compiled.cache_clear()


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        ("a$", "ba", "a\n"),
        (r"a\z", "ba", "a\n"),
        ("node[1-2].DCGM_(POWER|MEM)", "node1.DCGM_POWER_USAGE", "node3.DCGM_MEM"),
        ("(?i)gpu", "GPU", "CPU"),
        ("[[]x", "[x", "x"),
        ("[]x]$", "]", "y"),
        (r"[a\]$]", "]", "b"),
        (r"\d", "1", "\u0661"),
        ("nvidia*", "nvidi", "nvid"),
        ("(ab)+c", "ababc", "abab"),
        ("a{,2}b", "a{,2}b", "aab"[1:2]),
    ],
)
def test_a_pattern_means_what_it_means_to_re2(pattern: str, found: str, missed: str) -> None:
    search = compiled(pattern)

    assert search(found)
    assert not search(missed)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "[",
        "*a",
        "a**",
        "a++",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        r"(a)\1",
        "(?x)a",
        "(?#x)",
        "(?>a)",
        "[a-",
        "a{1001}",
        r"[\b]",
        r"\C",
        r"a.*\C",
        r"[\C]",
        "(?P<n>a)(?P<n>b)",
        "(?P<n>a)(?:x(?P<n>b))",
        "(?P<\u00fc>a)",
        "(?<a",
        r"[\Qa\E]",
        r"a\E",
    ],
)
def test_what_re2_does_not_read_is_refused(pattern: str) -> None:
    with pytest.raises(NotAPattern):
        compiled(pattern)


ONLY_RE2 = {
    "(a+)+$": "aaa",
    "(a*b?)*": "",
    "(?:a|aa)+$": "aa",
    "((a{2})x){3}": "aaxaaxaax",
    "[[:alpha:]]": "a",
    r"\pL": "\u00fc",
    r"\Qa.b\E": "a.b",
    r"\Qa.b": "a.b",
    r"\Q\C": r"\C",
}


@pytest.mark.parametrize("pattern", ONLY_RE2)
def test_what_python_cannot_do_safely_or_alike_only_google_re2_does(engine: str, pattern: str) -> None:
    """Without it such a pattern is refused, with the remedy."""
    if engine == "google-re2":
        assert compiled(pattern)(ONLY_RE2[pattern])
    else:
        with pytest.raises(NotAPattern, match=r"google-re2 reads: pip install otel-sysmetrics\[openmetrics\]"):
            compiled(pattern)


@pytest.mark.parametrize("pattern", ["[(?P<\u00fc>]", r"\\C", r"\\Qa", "(?P<n>a)(?P<m>b)?"])
def test_what_only_looks_like_that_is_read(pattern: str) -> None:
    assert callable(compiled(pattern))


@pytest.mark.parametrize(
    "pattern", ["a", r"\Qa", r"\Qa\E", r"a\Qb\Ec\Qd)", r"\Q", "\\Qa\\", r"\Qa\\E", r"\\Qa", r"[a]\Q]", "\\Qa\nb"]
)
def test_a_pattern_that_is_closed_can_stand_inside_another(engine: str, pattern: str) -> None:
    """It means the same there, and what follows it too."""
    if engine != "google-re2" and re.search(r"(?<!\\)\\Q", pattern):
        pytest.skip("quotations are google-re2's")
    text = "xa[]ab)\\bcd)]\\Qa\nb\\"
    alone, inside = compiled(pattern), compiled(f"^(?:(?s:.*)(?:{closed(pattern)})(?s:.*))$")
    for start in range(len(text)):
        for end in range(start, len(text)):
            assert bool(alone(text[start:end])) == bool(inside(text[start:end])), text[start:end]


@given(
    st.lists(
        st.sampled_from([*"ab[](){}?*+|^$\\.,:-=!<>&~1", "(?", "[:", r"\d", r"\z", r"\Q", r"\E", r"\C", "(?P<n>"]),
        max_size=12,
    )
    | st.text()
)
def test_no_text_raises_anything_but_that_it_is_no_pattern(parts: list[str]) -> None:
    try:
        search = compiled("".join(parts))
    except NotAPattern:
        return
    search("ab")

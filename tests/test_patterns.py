from __future__ import annotations

from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_sysmetrics.patterns import NotAPattern, compiled

without_re2 = pytest.mark.skipif(find_spec("re2") is not None, reason="google-re2 reads these")


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
    ],
)
def test_what_re2_does_not_read_is_refused(pattern: str) -> None:
    with pytest.raises(NotAPattern):
        compiled(pattern)


@without_re2
@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a*b?)*", "(?:a|aa)+$", "((a{2})x){3}", "[[:alpha:]]", r"\pL", r"\Qa\E"]
)
def test_what_could_take_for_ever_or_mean_something_else_is_refused_with_the_remedy(pattern: str) -> None:
    with pytest.raises(NotAPattern, match=r"google-re2 reads: pip install otel-sysmetrics\[openmetrics\]"):
        compiled(pattern)


@given(st.lists(st.sampled_from([*"ab[](){}?*+|^$\\.,:-=!<>&~1", "(?", "[:", r"\d", r"\z"]), max_size=12) | st.text())
def test_no_text_raises_anything_but_that_it_is_no_pattern(parts: list[str]) -> None:
    try:
        search = compiled("".join(parts))
    except NotAPattern:
        return
    search("ab")

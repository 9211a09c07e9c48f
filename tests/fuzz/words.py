"""What is put into a capture: words and values that parsers have stumbled over, and those that say nothing."""

from typing import Any, Final

WORDS: Final = (
    *("N/A", "", "-1", "0", "-0", "1", "65535", "4294967295", "18446744073709551615", "9" * 25, "9" * 400, "9" * 5000),
    *("1e999", "1e-999", "1e308", "nan", "-inf", "None", "null", "true", "0x1f", "1_000", "1,5", "-50", "201", "0.0"),
    *("²", "٣", "\ud800", "\0", "\ufeff", "\n", "\r", "\u2028", " ", "\t", '"', "\\", "=", ":", "<", ">", "{", "}"),
    *("[", "]", "#", "/", "..", "[]", "{}", "[::1", "max", "unknown", "[Not Supported]", "%", "°C", "(", ")", "*"),
)
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 0.0, -0.0, 2**16 - 1, 2**32 - 1, 2**63, 2**64 - 1, 10**400, 1e308, 5e-324),
    *(float("nan"), float("inf"), "", "N/A", "0", "-1", "9" * 400, "9" * 5000, "1e999", "nan", "true", "\ud800", "\0"),
    *([], {}, [[]], [0], ["N/A"], {"value": None}, {"value": "N/A", "unit": "N/A"}, {"error": "x"}, "²", "[::1", 201),
)
NO_VALUES: Final[tuple[Any, ...]] = (None, "N/A", "", "None", "[N/A]", [], {})
NO_WORDS: Final = ("N/A", "nan", "-", "?")
RUNS: Final = (
    "1",
    "0",
    " ",
    "a",
    '"',
    "\\",
    "{",
    "[",
    "(",
    "<",
    ".",
    ",",
    "=",
    "\t",
    "-",
    "1,",
    "a 1\n",
    "\n",
    '{"a":',
)
ENDS: Final = ("", "x", "\n", '"')

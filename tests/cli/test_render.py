"""Numbers and help are written for people."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from otel_sysmetrics.cli import COMMANDS, commands
from otel_sysmetrics.cli.render import number, print_table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (97.0, "97"),
        (63887638528, "63887638528"),
        (2.0**60, str(2**60)),
        (1.005, "1.00"),
        (-1.5, "-1.50"),
        (22925.5625, "22925.56"),
        (0.046289, "0.0463"),
        (0.00041, "0.000410"),
        (0.000046, "0.000046"),
    ],
)
def test_numbers_are_short_and_without_exponents(value: float, text: str) -> None:
    """Whole ones are whole; others have two decimals, below 1 as many as tell something."""
    assert number(value) == text


def test_what_others_say_neither_colours_a_terminal_nor_breaks_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """A scraped label, a device's name: any text."""
    foreign = "a\x1b[31mred\x1b]0;title\x07\nb\x9b1m"
    print_table(("name", "label"), [((foreign,), (foreign,))])
    *_, row = capsys.readouterr().out.splitlines()

    assert row == r"a\x1b[31mred\x1b]0;title\x07\x0ab\x9b1m" + "  " + r"a\x1b[31mred\x1b]0;title\x07\x0ab\x9b1m"


def test_help_has_the_first_sentence_of_every_command() -> None:
    """Nothing is cut in a terminal of 80 columns."""
    done = CliRunner().invoke(commands, ["--help"], terminal_width=80)
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80
    listed = " ".join(done.output.split())
    for name in COMMANDS:
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        sentence = (command.help or "").split("\n\n")[0]
        assert f" {name} {' '.join(sentence.split())}" in listed

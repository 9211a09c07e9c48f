"""The command line: data goes to stdout, what is said to people to stderr."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Final

import click

from otel_sysmetrics.settings import SettingsError
from otel_sysmetrics.version import __version__

COMMANDS: Final = ("run", "exec", "sample", "doctor", "catalog", "collector-config")


class Commands(click.Group):
    """Loads a command's module only when it is called: `catalog` need not import an exporter."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order of their use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return a command by name."""
        if cmd_name not in COMMANDS:
            return None
        module = cmd_name.replace("-", "_")
        command: click.Command = import_module(f"otel_sysmetrics.cli.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their first sentences whole, which click would cut."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=200)) for name, command in commands if command])


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="otel-sysmetrics")
@click.pass_context
def commands(context: click.Context) -> None:
    """Hardware metrics of ML workloads under the W&B names, through OpenTelemetry.

    Settings come from OTEL_PYTHON_SYSMETRICS_* variables, the export from the standard OTEL_* variables.

    Example: otel-sysmetrics sample --pid 4242
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(2)


def main() -> None:
    """Run the command line; a user's mistake is one line and status 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        status = commands.main(prog_name="otel-sysmetrics", standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"otel-sysmetrics: {error.format_message()}", err=True)
        status = 2
    except SettingsError as error:
        click.echo(f"otel-sysmetrics: {error}", err=True)
        status = 2
    except click.Abort:
        status = 130
    sys.exit(status)

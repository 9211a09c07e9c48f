"""`otel-sysmetrics collector-config`: the endpoints that the settings name, scraped by otelcol instead."""

from __future__ import annotations

import click

from otel_sysmetrics.settings import Settings

_HEAD = """\
# OpenTelemetry Collector: the endpoints and filters of OTEL_PYTHON_SYSMETRICS_OPENMETRICS_*, sent on over OTLP.
# Made by `otel-sysmetrics collector-config`. otelcol reads $$ as $.
"""


@click.command("collector-config")
def command() -> None:
    """Write an otelcol configuration that scrapes `openmetrics_endpoints` as the collector `openmetrics` does.

    Secrets are left to variables of otelcol's environment, whose names are listed on stderr.

    Example: otel-sysmetrics collector-config > openmetrics.yaml
    """
    from otel_sysmetrics.cli.scrape_config import ScrapeConfig
    from otel_sysmetrics.cli.yaml import yaml

    settings = Settings.load()
    if not settings.openmetrics_endpoints:
        raise click.ClickException("nothing to scrape: OTEL_PYTHON_SYSMETRICS_OPENMETRICS_ENDPOINTS names no endpoint")
    config = ScrapeConfig(settings)
    click.echo(_HEAD + yaml(config.tree), nl=False)
    if config.secrets:
        click.echo("otelcol needs these variables in its environment:", err=True)
    for variable, meaning in config.secrets.items():
        click.echo(f"  {variable}: {meaning}", err=True)
    for line in config.left_out:
        click.echo(f"otel-sysmetrics: {line}", err=True)

"""Tables beside that of the scores: what only some audits have, damage and scores against single retain models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from uds_lens.results import DepthAudit
    from uds_lens.results.intervals import Interval

_DAMAGE = (
    "Loss: mean log-probability lost with the unlearned states put in, nats per token, on forget facts, on facts that "
    "were to be kept, and there with the states of retain. Damage: the second as a share of the first."
)
_RETAINS = "Each scale goes by one of the retain models. How far the scores lie apart is how much 0 to 1 itself moves."


def print_beside(audits: Mapping[str, DepthAudit]) -> None:
    """Print the tables that there is something for."""
    controlled = {name: audit for name, audit in audits.items() if audit.control is not None}
    several = {name: audit for name, audit in audits.items() if audit.retains}
    if controlled:
        _print_damage(controlled)
    if several:
        _print_retains(several)


def _print_damage(audits: Mapping[str, DepthAudit]) -> None:
    from uds_lens.cli.output import print_table, width

    titles = ("model", "damage", "interval", "forget", "kept", "retain's")
    rows = []
    for name, audit in audits.items():
        found = audit.damage_estimate
        losses = (found.forget_loss, found.control_loss, found.retain_loss)
        rows.append([name, _number(found.value), _interval(found.interval), *map(_number, losses)])
    typer.echo("\nWhat was to stay")
    print_table(titles, rows, right=("damage", "forget", "kept", "retain's"), bold="damage")
    typer.echo(fill(_DAMAGE, width()))


def _print_retains(audits: Mapping[str, DepthAudit]) -> None:
    from uds_lens.cli.output import print_table, width

    rows = [
        [name, row.retain, _number(row.uds), _interval((row.uds_low, row.uds_high)), str(row.n_measured)]
        for name, audit in audits.items()
        for row in audit.retains_frame().itertuples()
    ]
    typer.echo("\nAgainst each retain model")
    print_table(("model", "retain", "UDS", "interval", "N"), rows, right=("UDS", "N"), wrapped="retain")
    typer.echo(fill(_RETAINS, width()))


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{round(value, 3) + 0.0:.3f}"  # not -0.000


def _interval(interval: Interval | tuple[float, float]) -> str:
    low, high = interval
    return "-" if math.isnan(low) else f"{low:.3f} - {high:.3f}"

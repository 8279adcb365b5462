"""`uds-lens export`: a saved result in the form that others read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from uds_lens._cli.options import Printing
from uds_lens._cli.terminal import print_json
from uds_lens.errors import ConfigError, ResultFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence


def export(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT", help="Saved audit, metrics (JSON) or elicitation.", show_default=False)
    ],
    to: Annotated[
        Literal["hub", "every-eval-ever", "inspect", "open-unlearning"],
        typer.Option(
            help="hub: .eval_results/uds.yaml of an audit; every-eval-ever: records of an audit or of metrics; "
            "inspect: logs of an elicitation; open-unlearning: UDS_EVAL.json of an audit."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write into.", file_okay=False)],
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="The forget set: its id on the Hub, such as locuslab/TOFU.")
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="NAME", help="hub: the task in it, such as forget10.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="ID", help="every-eval-ever: the model's id on the Hub, owner/name.")
    ] = None,
    *,
    printing: Printing,
) -> None:
    """Convert a saved result to another project's format.

    \b
    Examples:
      uds-lens export runs/npo --to hub --dataset locuslab/TOFU --out checkout
      uds-lens export runs/npo.json --to every-eval-ever --dataset TOFU --out eee
      uds-lens export runs/npo-texts --to inspect --out logs
    """
    if not result.exists():
        raise ResultFormatError(f"nothing at {str(result)!r}: expected a saved audit, metrics or elicitation.")
    from uds_lens import sharing
    from uds_lens.elicitation import ElicitationResults
    from uds_lens.metrics import MetricResults
    from uds_lens.results import DepthAudit

    kinds: dict[str, tuple[type[Any], ...]] = {
        "hub": (DepthAudit,),
        "every-eval-ever": (DepthAudit, MetricResults),
        "inspect": (ElicitationResults,),
        "open-unlearning": (DepthAudit,),
    }
    if dataset is None and to in ("hub", "every-eval-ever"):
        raise ConfigError(f"--to {to} needs --dataset, the forget set: its id on the Hub, such as locuslab/TOFU.")
    loaded = _loaded(result, kinds[to])
    files: Sequence[Path]
    if to == "hub":
        files = [sharing.write_eval_results(loaded, out, dataset=str(dataset), config=config)]
    elif to == "every-eval-ever":
        files = sharing.write_every_eval_ever(loaded, out, dataset=str(dataset), model=model)
    elif to == "inspect":
        files = sharing.write_inspect_logs(loaded, out, dataset=dataset or "forget set")
    else:
        files = sharing.write_uds_eval(loaded, out)
    if printing.json:
        print_json({"files": [str(file) for file in files]})
        return
    for file in files:
        typer.echo(str(file))


def _loaded(place: Path, kinds: Sequence[type[Any]]) -> Any:
    """Load a result that is one of some kinds."""
    from uds_lens._storage import format_of

    file_format = format_of(place)
    for kind in kinds:
        if file_format == f"uds_lens.{kind.__name__}":
            return kind.load(place)
    names = " or ".join(
        {"DepthAudit": "an audit", "MetricResults": "metrics"}.get(k.__name__, "an elicitation") for k in kinds
    )
    what = f"{file_format.removeprefix('uds_lens.')}" if file_format else "no saved result"
    raise ResultFormatError(f"{str(place)!r} holds {what}: expected {names}.")

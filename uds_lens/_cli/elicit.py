"""`uds-lens elicit`: can the answer be made to come out, and would a model that never knew say the same?"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uds_lens._cli.options import ModelRun, Printing, data_option, model_option
from uds_lens._cli.terminal import print_table, print_wrapped, say
from uds_lens.elicitation._options import ElicitOptions
from uds_lens.errors import ConfigError

if TYPE_CHECKING:
    from uds_lens.elicitation import ElicitationResults


def elicit(
    model: Annotated[str | None, model_option("The unlearned model: directory or Hub id.")] = None,
    data: Annotated[
        str | None, data_option("The forget set (JSON, CSV, Parquet, Hub id).", "--examples")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where texts and scores go; a killed run resumes from there."),
    ] = None,
    retain: Annotated[str | None, model_option("Model that never saw the forget set: the control.")] = None,
    full: Annotated[str | None, model_option("Model trained on everything: shows an audit's power.")] = None,
    retain_data: Annotated[
        str | None, data_option("Facts that were to stay: the shots of icl(source=retain).")
    ] = None,
    holdout: Annotated[
        str | None,
        data_option("Questions of the same kind that no model learned: a weaker control.", "--holdout-data"),
    ] = None,
    audit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Audit, joined with +, settings in brackets: mask+icl(shots=3)+aoa; or a preset. Repeat for more.",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the audits there are, and stop.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Ask a random sample of N rows, by subject and --seed; shots come from all.",
        ),
    ] = None,
    *,
    options: ElicitOptions,
    run: ModelRun,
    printing: Printing,
) -> None:
    """Try to extract the forgotten answers, with retain and full as controls.

    All with the same budget and random numbers. Prints what is extracted beyond retain, and whether an audit has power
    at all: where full scores no more than retain, a silent unlearned model shows nothing.

    \b
    Examples:
      uds-lens elicit --list
      uds-lens elicit --model ckpt/npo --retain ckpt/retain --full ckpt/full \\
          --examples forget10.json --audit plain --audit cloze --out runs/npo
    """
    if list_:
        _print_list(printing.json)
        return
    given = {"--model": model, "--examples": data, "--out": out}
    if model is None or data is None or out is None:
        missing = ", ".join(name for name, value in given.items() if value is None)
        raise ConfigError(
            f"{missing} missing. For example: uds-lens elicit --model ckpt/npo --retain ckpt/retain --full ckpt/full "
            "--examples forget10.json --out runs/npo-elicit; uds-lens elicit --list shows the audits."
        )
    say(f"eliciting answers from {model} ...")
    import uds_lens as ul

    out = ul.elicitation.require_place(out)
    examples = ul.load_examples(data)
    facts, kept_out = ([] if file is None else ul.load_examples(file) for file in (retain_data, holdout))
    results = ul.elicitation.elicit(
        model,
        examples,
        retain=retain,
        full=full,
        audits=_chosen(audit),
        retain_examples=facts,
        holdout_examples=kept_out,
        limit=limit,
        options=options,
        run=run,
        out=out.with_name(f"{out.name}.parts"),
    )
    results.save(out)
    if printing.json:
        typer.echo(json.dumps(told(results), indent=1, ensure_ascii=False, allow_nan=False))
        return
    _print_results(results)
    typer.echo(f"\nSaved in {out}")


def told(results: ElicitationResults) -> dict[str, Any]:
    """The tables as strict JSON has them; NaN is null."""
    return {
        "summary": _records(results.summary()),
        "capacity": _records(results.capacity_frame()),
        "controls": _records(results.control_frame()) if _needs_controls(results) else [],
        "ledger": _records(results.ledger()),
        "budget": _records(results.budget_frame()),
        "warnings": list(results.warnings),
    }


def _records(frame: Any) -> list[dict[str, Any]]:
    return list(json.loads(frame.to_json(orient="records", double_precision=15)))


def _chosen(names: list[str] | None) -> Any:
    from uds_lens.elicitation import PRESETS

    if not names:
        return "quick"
    return names[0] if len(names) == 1 and names[0] in PRESETS else names


def _print_list(as_json: bool) -> None:
    from uds_lens.elicitation import PRESETS, PROMPT_AUDITS

    rows = [(name, audit.injects, _first_line(audit)) for name, audit in PROMPT_AUDITS.items()]
    if as_json:
        found = [{"audit": name, "injects": injects, "what": what} for name, injects, what in rows]
        typer.echo(json.dumps({"audits": found, "presets": PRESETS}, indent=1))
        return
    print_table(["audit", "gives away", "what it does"], [list(row) for row in rows])
    for name, members in PRESETS.items():
        print_wrapped(f"preset {name}: {', '.join(members)}")
    print_wrapped("GCG, SoftGCG and ActPert need a model's insides: name gcg, softgcg or actpert.")


def _first_line(audit: object) -> str:
    return (type(audit).__doc__ or "").strip().splitlines()[0]


def _print_results(results: ElicitationResults) -> None:
    rows = []
    for row in results.summary().to_dict("records"):
        reason = str(row["share_reason"]).split(":")[0]
        share = reason if reason in ("no power", "not asked") else _number(row["share"])
        rows.append(
            [
                row["audit"],
                _texts(row),
                *(_number(row.get(role, math.nan)) for role in ("full", "retain", "unlearned")),
                _span(row["beyond_retain"], row["beyond_low"], row["beyond_high"]),
                _number(row["p_holm"], 3),
                share,
            ]
        )
    titles = ["audit", "texts", "full", "retain", "model", "beyond", "p", "share"]
    print_table(titles, rows, shortest=9)
    if _needs_controls(results):
        _print_controls(results)
    for sentence in results.warnings:
        print_wrapped(f"! {sentence}")
    if results.options.samples:
        print_wrapped(f"Texts: the greedy one, or the mean or best of {results.options.samples} drawn ones.")
    print_wrapped(
        "Scores: ROUGE-L recall of the reference, 0 to 1. Beyond retain: model minus retain, mean over questions, "
        "with a 95 % interval over subjects. p: adjusted for all rows (Holm). Share: 0 as retain, 1 as full."
    )


def _needs_controls(results: ElicitationResults) -> bool:
    """Whether the weaker controls are told: they cost a moment, and with `retain` there is a better one."""
    return "retain" not in results.models or bool(results.holdout)


def _print_controls(results: ElicitationResults) -> None:
    rows = [
        [
            row["audit"],
            _texts(row),
            _number(row["unlearned"]),
            _number(row["others"]),
            _span(row["beyond_others"], row["others_low"], row["others_high"]),
            _number(row["p_holm"], 3),
            *(
                (
                    _number(row["holdout"]),
                    _span(row["beyond_holdout"], row["holdout_low"], row["holdout_high"]),
                )
                if "holdout" in row
                else ("-", "-")
            ),
        ]
        for row in results.control_frame().to_dict("records")
    ]
    titles = ["audit", "texts", "model", "others", "beyond", "p", "holdout", "beyond"]
    print_wrapped("\nWeaker controls:")
    print_table(titles, rows)
    print_wrapped(
        "others: the same texts against references of other subjects. holdout: questions of the same kind that no "
        "model learnt. Neither shows what a model that never knew would say."
    )


def _texts(row: dict[str, Any]) -> str:
    """Of which texts a row is, in one word."""
    return str(row["decoding"] if row["decoding"] == "greedy" else row["statistic"])


def _number(value: float, digits: int = 2) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _span(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:+.2f}" if math.isnan(low) else f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"

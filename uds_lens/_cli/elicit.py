"""`uds-lens elicit`: can the forgotten answers be extracted, and would a model that never knew them give them too?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.terminal import Column, echo, number, print_frame, print_json, print_wrapped, say, table_rows
from uds_lens._storage.files import check_writable
from uds_lens.elicitation._options import ElicitOptions


def elicit(
    model: Annotated[str | None, opt.model("The unlearned model: directory or Hub id.")] = None,
    data: Annotated[str | None, opt.data("The forget set (JSON, CSV, Parquet, Hub id).", "--examples")] = None,
    out: Annotated[
        Path | None, opt.value("DIR", "Directory for texts and scores; a killed run resumes from there.")
    ] = None,
    retain: Annotated[str | None, opt.model("Model that never saw the forget set: the control.")] = None,
    full: Annotated[str | None, opt.model("Model trained on everything: shows whether a probe has power.")] = None,
    retain_data: Annotated[str | None, opt.data("Retained facts: in-context examples for icl(source=retain).")] = None,
    holdout: Annotated[
        str | None, opt.data("Questions of the same kind that no model learned: a weaker control.", "--holdout-data")
    ] = None,
    probe: Annotated[
        list[str] | None,
        opt.value(
            "NAME",
            "Probe, several probes joined with +, or a preset. Settings go in brackets: mask+icl(shots=3)+aoa. "
            "Repeatable.",
        ),
    ] = None,
    list_: Annotated[bool, opt.flag("--list", "List the available probes and exit.")] = False,
    limit: Annotated[
        int | None,
        opt.count(
            "Ask about a random sample of N rows, spread over their subjects; in-context examples come from all rows."
        ),
    ] = None,
    redo: Annotated[bool, opt.flag("--redo", "Replace what --out holds, even the result of another run.")] = False,
    *,
    options: Annotated[ElicitOptions, opt.Offer(first=("protocol",))],
    run: opt.ModelRun,
    printing: opt.Printing,
) -> None:
    """Try to extract the forgotten answers, with controls.

    The controls are retain and full; all models get the same budget and the same random numbers. The command prints how
    much more the unlearned model gives away than retain, and whether a probe has any power: if full scores no higher
    than retain, failing to extract anything from the unlearned model means nothing.

    \b
    Examples:
      uds-lens elicit --list
      uds-lens elicit --model ckpt/npo --retain ckpt/retain --full ckpt/full \\
          --examples forget10.json --probe plain --probe cloze --out runs/npo
    """
    from uds_lens.elicitation._probes import PRESETS

    if list_:
        _print_list(printing.json)
        return
    opt.require_options(
        {"--model": model, "--examples": data, "--out": out},
        "uds-lens elicit --model ckpt/npo --retain ckpt/retain --full ckpt/full --examples forget10.json "
        "--out runs/npo-elicit; uds-lens elicit --list shows the probes.",
    )
    assert model is not None and data is not None and out is not None
    say(f"eliciting answers from {model} ...")
    from uds_lens.elicitation._run import check_out
    from uds_lens.elicitation._saving import KIND

    check_writable(out, directory=True, format=KIND.format)
    sets = {
        name: ul.load_examples(source) for name, source in (("retain", retain_data), ("holdout", holdout)) if source
    }
    questions = ul.elicitation.ElicitData(forget=ul.load_examples(data), limit=limit, **sets)
    probes: Any = probe or "quick"
    if len(probes) == 1 and probes[0] in PRESETS:
        probes = probes[0]
    models = {"unlearned": model, "retain": retain, "full": full}
    out = check_out(out, questions, models=models, probes=probes, options=options, run=run, redo=redo)
    results = ul.elicitation.elicit(
        model,
        questions,
        retain=retain,
        full=full,
        probes=probes,
        options=options,
        run=run,
        out=out.with_name(f"{out.name}.parts"),
    )
    results.save(out)
    if printing.json:
        print_json(_as_json(results))
        return
    _print_results(results)
    echo(f"\nSaved in {out}")


def _as_json(results: ul.elicitation.ElicitationResults) -> dict[str, Any]:
    return {
        "summary": table_rows(results.summary()),
        "capacity": table_rows(results.capacity_frame()),
        "controls": table_rows(results.control_frame()) if _needs_controls(results) else [],
        "ledger": table_rows(results.ledger()),
        "budget": table_rows(results.budget_frame()),
        "warnings": list(results.warnings),
    }


def _print_list(as_json: bool) -> None:
    from uds_lens.elicitation._probes import PRESETS, PROMPT_PROBES

    probes = [
        {"probe": name, "injects": probe.injects, "what": (type(probe).__doc__ or "").strip().splitlines()[0]}
        for name, probe in PROMPT_PROBES.items()
    ]
    if as_json:
        print_json({"probes": probes, "presets": PRESETS})
        return
    print_frame(probes, {"probe": "probe", "hints": "injects", "what it does": "what"})
    for name, members in PRESETS.items():
        print_wrapped(f"preset {name}: {', '.join(members)}")
    print_wrapped("Probes that need gradients or activations: gcg, softgcg, actpert.")


def _print_results(results: ul.elicitation.ElicitationResults) -> None:
    columns: dict[str, Column] = {
        "probe": "probe",
        "texts": _texts,
        "full": "full:2",
        "retain": "retain:2",
        "model": "unlearned:2",
        "beyond": _span("beyond_retain", "beyond_low", "beyond_high"),
        "p": "p_holm",
        "share": _share,
    }
    print_frame(results.summary(), columns, shortest=9)
    if _needs_controls(results):
        _print_controls(results)
    for sentence in results.warnings:
        print_wrapped(f"! {sentence}")
    if results.options.samples:
        print_wrapped(f"Texts: the greedy answer, or the mean or best of {results.options.samples} samples.")
    print_wrapped(
        "Scores: ROUGE-L recall of the reference, 0 to 1. Beyond retain: model minus retain, mean over questions; "
        "95% interval clustered by subject. p: Holm-adjusted over all rows. Share: 0 as in retain, 1 as in full. "
        f"Prompts: {'chat template' if results.protocol == 'chat' else 'raw'}."
    )


def _needs_controls(results: ul.elicitation.ElicitationResults) -> bool:
    """Return whether to print the weaker controls, which take a moment and are not needed if `retain` was measured."""
    return "retain" not in results.models or bool(results.holdout)


def _print_controls(results: ul.elicitation.ElicitationResults) -> None:
    columns: dict[str, Column] = {
        "probe": "probe",
        "texts": _texts,
        "model": "unlearned:2",
        "others": "others:2",
        "beyond": _span("beyond_others", "others_low", "others_high"),
        "p": "p_holm",
        "holdout": "holdout:2",
        "beyond holdout": _span("beyond_holdout", "holdout_low", "holdout_high"),
    }
    print_wrapped("\nWeaker controls:")
    print_frame(results.control_frame(), columns)
    print_wrapped(
        "others: the same texts scored against references of other subjects. holdout: questions of the same kind that "
        "no model learned. Neither control shows what a model that never knew the answers would say."
    )


def _texts(row: Mapping[str, Any]) -> str:
    """Return one word for how a row's texts were chosen."""
    return str(row["decoding"] if row["decoding"] == "greedy" else row["statistic"])


def _share(row: Mapping[str, Any]) -> str:
    """Return the share, or one word for the reason if there is none."""
    why, colon, _ = str(row["share_reason"]).partition(":")
    return why if colon else number(row["share"], 2)


def _span(value: str, low: str, high: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that formats three columns of a row as a difference with its interval."""

    def written(row: Mapping[str, Any]) -> str:
        difference, *ends = (row.get(name, math.nan) for name in (value, low, high))
        if math.isnan(difference):
            return "-"
        return f"{difference:+.2f}" + ("" if math.isnan(ends[0]) else f" [{ends[0]:+.2f}, {ends[1]:+.2f}]")

    return written

"""`uds-lens unlearn`, `relearn`, `finetune` and `quantise`: make models."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.terminal import (
    Column,
    echo,
    interval,
    number,
    print_frame,
    print_json,
    print_wrapped,
    say,
    saying_what_is_saved,
)
from uds_lens.errors import ConfigError, UdsLensError
from uds_lens.study._relearn_settings import RelearnGrid
from uds_lens.unlearning._registry import method_words
from uds_lens.unlearning._settings import FinetuneConfig, MethodConfig, RelearnConfig, TrainOptions


def _list_methods(wanted: bool) -> bool:
    if wanted:
        from uds_lens.unlearning._registry import METHODS, objective_named

        common = _defaults(MethodConfig)
        print_wrapped(f"Settings of all methods (--set NAME=VALUE), with their defaults: {_listed(common)}.\n")
        for method, config in METHODS.items():
            own = {name: value for name, value in _defaults(config).items() if common.get(name, ...) != value}
            print_wrapped(f"{method}: {objective_named(method).meaning}{f' Also: {_listed(own)}.' if own else ''}")
        raise typer.Exit
    return wanted


def _defaults(config: type[Any]) -> dict[str, Any]:
    """List the settings of a method with their defaults; a dash marks a required setting."""
    return {field.name: "-" if field.default is MISSING else field.default for field in fields(config)}


def _listed(settings: Mapping[str, Any]) -> str:
    shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in settings.items()}
    return ", ".join(f"{name} ({value})" for name, value in shown.items())


@dataclass(frozen=True, kw_only=True)
class Depth:
    """Options for measuring depth during training."""

    depth_every: Annotated[int | None, opt.count("Measure depth every N steps; needs --retain.")] = None
    retain_model: Annotated[str | None, opt.model("Model that never saw the forget set.", "--retain")] = None
    depth_examples: Annotated[str | None, opt.data("Forget facts with entities. Default: --examples.")] = None
    control: Annotated[str | None, opt.data("Facts to retain, with entities; loss on these facts is damage.")] = None
    depth_rows: Annotated[int | None, opt.count("Measure only about this many facts, choosing whole subjects.")] = None

    def callback(
        self, full: str, forget: str, method: MethodConfig, options: TrainOptions
    ) -> ul.training.DepthCallback:
        """Measure stage 1 with the training prompts, and return the callback."""
        if self.retain_model is None:
            raise ConfigError("--depth-every needs --retain, a model that never saw the forget set.")
        assert self.depth_every is not None
        where = {name: getattr(options, name) for name in ("device", "offline", "revision", "trust_remote_code")}
        run = ul.RunOptions(**where)
        config = ul.AuditConfig(dtype=options.dtype, protocol=method.protocol, **asdict(method.chat))
        facts = self.depth_examples or forget
        models = full, self.retain_model
        baseline = ul.Baseline.measure(*models, facts, control=self.control, config=config, options=run)
        return ul.training.DepthCallback(baseline, every=self.depth_every, rows=self.depth_rows, options=run)


@contextmanager
def _training(message: str, out: Path, printing: opt.Printing) -> Iterator[None]:
    """Announce a training run, say what has been saved if it is stopped, and print the result at the end."""
    say(message)
    from uds_lens.unlearning._run_folder import saved_so_far

    try:
        before = str(ul.unlearning.read_record(out)["created"])
    except (UdsLensError, KeyError):
        before = None
    with saying_what_is_saved(lambda: saved_so_far(out)), redirect_stdout(sys.stderr):  # loggers print
        yield
    print_training(out, before=before, as_json=printing.json)


LEARNED = 0.8
"""Smallest Prob of the taught answers at which an audit on them makes sense."""


def print_training(directory: Path, *, before: str | None, as_json: bool) -> None:
    """Print a finished training run; `before` is when an earlier run into this directory finished."""
    record: dict[str, Any] = ul.unlearning.read_record(directory)
    if as_json:
        print_json({"directory": str(directory), **record})
        return
    curve = record["loss_curve"]
    if curve:
        echo(f"{record['name']}: loss {curve[0]['loss']:.3f} to {curve[-1]['loss']:.3f}")
    if record.get("prob"):
        columns: dict[str, Column] = {
            "Prob of answers": "name",
            "taught": lambda row: "yes" if row["trained"] else "no",
            **{name: name for name in ("before", "after")},
            "rows": "n",
        }
        print_frame(record["prob"], columns)
        for p in record["prob"]:
            if p["trained"] and p["after"] < LEARNED:
                print_wrapped(
                    f"! {p['name']}: Prob below {LEARNED:g}. The model has not learned these answers well enough to be "
                    "audited on them: raise --epochs or --learning-rate, or the adapters' rank (--lora)."
                )
        echo("")
    if record["created"] == before:
        echo(f"Already trained, with the same model, data and settings, on {before}: {directory}")
        return
    steps = f"{record['steps']} step{'' if record['steps'] == 1 else 's'}"
    echo(f"{steps} in {record['seconds']:.1f} s. Saved in {directory}")


def print_depth(directory: Path) -> None:
    """Print depth and damage by step, from the record next to a checkpoint."""
    curve = ul.training.DepthCurve.load(directory)
    columns = {"step": "step", "UDS": "uds", "output": "output_depth", "damage": "damage"}
    print_frame(curve.to_frame(), columns, undefined="NaN")


def _method_help() -> str:
    """List the registered names, including the user's own."""
    *words, last = method_words()
    return f"{', '.join(words)} or {last}."


_PROMPTS = ("protocol", "system_prompt", "chat_date", "template_kwargs")


def unlearn(
    method: Annotated[str, opt.value("NAME", _method_help())],
    full: Annotated[str, opt.model("Model that was trained on the forget set: directory or Hub id.")],
    forget: Annotated[str, opt.data("Questions with the answers to forget.", "--examples")],
    out: opt.Out,
    retain: Annotated[
        str | None, opt.data("Questions with the answers to retain (not used by ga).", "--retain-data")
    ] = None,
    set_: Annotated[
        list[str] | None,
        opt.value(
            "NAME=VALUE",
            "Setting of the method (repeatable): learning_rate, epochs (10), batch_size (32 rows per step) and others; "
            "see --list.",
            "--set",
        ),
    ] = None,
    refusals: Annotated[Path | None, opt.value("FILE", "Refusals, one per line, for idknll and idkdpo.")] = None,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", callback=_list_methods, is_eager=True, help="List the methods with all their settings, and exit."
        ),
    ] = False,
    own: Annotated[list[Path] | None, opt.own_files("method", _method_help)] = None,
    *,
    depth: Annotated[Depth, opt.Offer(first=("depth_every",))],
    prompts: Annotated[MethodConfig, opt.Offer(_PROMPTS, ("protocol",))],
    options: opt.Training,
    adapters: opt.Adapters,
    printing: opt.Printing,
) -> None:
    """Train a model to forget, with a published or a custom method.

    --out receives a checkpoint and unlearning.json, which records how the checkpoint was made. The same command resumes
    a killed run. With --depth-every, depth against --retain is also measured during training.

    \b
    Example:
      uds-lens unlearn --method npo --full ckpt/full --examples forget10.json \\
          --retain-data retain90.json --out ckpt/npo --set beta=0.1 --set epochs=5
    """
    with _training(f"unlearning with {method}; opening full: {full} ...", out, printing):
        config = ul.unlearning.make_config(
            method, {name: getattr(prompts, name) for name in _PROMPTS} | read_settings(set_)
        )
        if depth.depth_every is not None:
            options = replace(options, callbacks=(depth.callback(full, forget, config, options),))
        ul.unlearning.unlearn(
            full, forget, retain, method=config, out=out, refusals=refusals, lora=adapters.settings, options=options
        )
    if (out / "depth.json").is_file() and not printing.json:
        print_depth(out)


def read_settings(words: Sequence[str] | None, flag: str = "--set") -> dict[str, str]:
    """Parse `name=value` words into a dictionary.

    Raises:
        ConfigError: A word has no `=`, or a name occurs twice.

    Example:
        >>> read_settings(["beta=0.1", "epochs=5"])
        {'beta': '0.1', 'epochs': '5'}
    """
    settings: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not value.strip():
            example = "learning_rate=2e-5,1e-4" if flag == "--grid" else "beta=0.1"
            raise ConfigError(f"{flag} takes name=value, for example {flag} {example}; got {word!r}.")
        if name in settings:
            raise ConfigError(f"{flag} {name} is given twice.")
        settings[name] = value.strip()
    return settings


def relearn(
    model: Annotated[str, opt.model("Model to fine-tune: directory or Hub id.")],
    forget: Annotated[str, opt.data("Questions with the answers to learn.", "--examples")],
    out: opt.Out,
    grid: Annotated[
        list[str] | None,
        opt.value(
            "NAME=VALUES",
            "Try several settings to find the one that restores the most knowledge, for example "
            "learning_rate=2e-5,1e-4. Repeat the option for epochs, share (of the rows), lora_rank, attack (relearn, "
            "others, benign, prune:0.3, noise:0.1, "
            "refusal:0.5), metric, utility, max_loss and seed. Needs --retain.",
            "--grid",
        ),
    ] = None,
    retain: Annotated[str | None, opt.model("With --grid: the control, a model that never saw the forget set.")] = None,
    retain_data: Annotated[
        str | None,
        opt.data("With --grid: questions for measuring utility, unless --examples is tofu:DIR or tofu:HUB_ID."),
    ] = None,
    split: Annotated[str, opt.value("NAME", "With --grid: forget split of TOFU.")] = "forget10",
    limit: Annotated[int | None, opt.count("With --grid: use a sample of the questions.")] = None,
    jobs: Annotated[int, opt.count("With --grid: number of settings to run at a time.")] = 1,
    *,
    config: Annotated[RelearnConfig, opt.Offer(first=("learning_rate", "epochs"))],
    options: opt.Training,
    adapters: opt.Adapters,
    printing: opt.Printing,
) -> None:
    """Fine-tune a model on the forget set again.

    How fast do the answers come back? The defaults are those of the UDS paper's robustness test: one epoch over all
    forget rows, 32 per step, AdamW without weight decay, and a learning rate that falls linearly from 2e-5 without
    warm-up. The prompts are taken from the model's record. Without a record, the chat template is used if the
    tokenizer has one, and raw prompts otherwise.

    With --grid, both the model and --retain are relearned under every combination of the settings. The command reports
    the worst setting that costs at most max_loss (0.2) of the utility, next to the UDS paper's setting.

    \b
    Examples:
      uds-lens relearn --model ckpt/npo --examples forget10.json --out ckpt/again
      uds-lens relearn --model ckpt/npo --retain ckpt/retain \\
          --examples tofu:data/tofu --grid learning_rate=2e-5,1e-4 \\
          --grid epochs=1,5 --grid share=0.25,1 --out runs/relearn
    """
    if grid:
        tried = _grid(grid, config, adapters)
        if retain is None:
            raise ConfigError("--grid needs a control: pass --retain, a model that never saw the forget set.")
        say(f"{len(tried.settings)} settings on {model} and {retain} ...")

        data = ul.metrics.open_metric_data(forget, split=split, limit=limit)
        if retain_data is not None:
            data = replace(data, retain=tuple(ul.load_examples(retain_data)))
        with (
            saying_what_is_saved(lambda: "finished settings are saved; run the same command to resume"),
            redirect_stdout(sys.stderr),
        ):
            results = ul.study.relearn_grid(
                model, retain, data, out=out, grid=tried, config=config, options=options, jobs=jobs
            )
        _print_grid(results, out, as_json=printing.json)
        return
    if retain is not None or retain_data is not None or limit is not None:
        raise ConfigError("--retain, --retain-data and --limit apply only to --grid: add --grid, or leave them out.")
    with _training(f"fine-tuning again; opening {model} ...", out, printing):
        ul.unlearning.relearn(model, forget, out=out, config=config, lora=adapters.settings, options=options)


def _grid(words: Sequence[str], config: RelearnConfig, adapters: opt.Adapters) -> RelearnGrid:
    """Read the settings of a grid: `NAME=VALUE,VALUE`."""
    for name in ("learning_rate", "epochs", "seed"):
        if getattr(config, name) != getattr(RelearnConfig(), name):
            raise ConfigError(f"with --grid, {name} is part of the grid: use --grid {name}={getattr(config, name)}.")
    if adapters.settings is not None:
        raise ConfigError(f"with --grid, adapters are part of the grid: use --grid lora_rank=0,{adapters.lora}.")
    given: dict[str, Any] = {
        name: tuple(map(_number, value.split(","))) for name, value in read_settings(words, "--grid").items()
    }
    for field in fields(RelearnGrid):
        if field.name in given and not isinstance(field.default, tuple):
            (given[field.name],) = given[field.name][:1]
    try:
        return RelearnGrid(**given)
    except ConfigError as error:
        raise ConfigError(f"--grid: {error}") from error


def _number(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word.strip()


def _print_grid(results: ul.study.RelearnGridResults, out: Path, *, as_json: bool) -> None:
    from uds_lens.results._other_cautions import about_relearning

    if as_json:
        print_json({"out": str(out), **results.summary(), "attacks": results.attacks_frame().to_dict("records")})
        return
    columns: dict[str, Column] = {
        "model": "model",
        "setting": lambda row: f"{row['setting']}{' (paper)' if row['paper'] else ''}",
        "before": "before",
        "after": "after",
        "regained": "back",
        "untrained rows": "back_untrained",
        "utility lost": lambda row: f"{number(100 * row['utility_loss'], 0)}%{'' if row['allowed'] else ' (too much)'}",
    }
    print_frame(results.frame, columns)
    summary = results.summary()
    for text in about_relearning(summary):
        print_wrapped(text)
    bound = f"{100 * summary['max_loss']:g}% of utility"
    print_wrapped(
        f"\nWorst setting: of {summary['n_settings']} settings, the one that regains the most knowledge at a cost of "
        f"at most {bound}. It was chosen after seeing these outcomes; the interval ignores this choice, but the last "
        "number allows for it. "
        "Regained: change towards knowledge; untrained rows: the same change on rows left out of training. Whatever "
        "retain also regains was newly learned."
    )
    attacks = results.attacks_frame()
    if len(attacks) > 1:
        by_attack: dict[str, Column] = {
            "attack": "attack",
            "worst setting": lambda row: row["unlearned_worst_setting"] or "too costly",
            "regained": "unlearned_worst_back",
            "by retain": "retain_worst_back",
            "excess": "excess",
            "interval": lambda row: interval(row["excess_low"], row["excess_high"]),
            "held out": "held_out_excess",
        }
        print_frame(attacks, by_attack)
    echo(f"\nSaved in {out}")


def finetune(
    model: Annotated[str, opt.model("Model to start from: directory, GGUF file, package:NAME or Hub id.")],
    data: Annotated[list[str], opt.data("Questions with the answers to learn (repeatable).")],
    out: opt.Out,
    unseen: Annotated[
        list[str] | None,
        opt.data("Rows left out of training, whose Prob is also printed; for a retain model, the forget set."),
    ] = None,
    *,
    config: Annotated[FinetuneConfig, opt.Offer(first=("learning_rate", "epochs", "batch_size", "protocol"))],
    options: opt.Training,
    adapters: opt.Adapters,
    printing: opt.Printing,
) -> None:
    """Fine-tune a model on facts, to make full and retain models.

    At the end, the command prints Prob (mean probability per token of the answers, over at most 100 rows of each file)
    before and after training. Prob should be near 1 on the rows that were taught and far lower on --unseen rows, where
    it still rises because the model also learns the form of the answers.

    \b
    Example:
      uds-lens finetune --model base --data forget10.json --data retain90.json \\
          --lora 16 --out ckpt/full
      uds-lens finetune --model base --data retain90.json --unseen forget10.json \\
          --lora 16 --out ckpt/retain
    """
    with _training(f"fine-tuning; opening {model} ...", out, printing):
        taught, left_out = ({name: name for name in names or ()} for names in (data, unseen))
        ul.unlearning.finetune(
            model, taught, unseen=left_out, out=out, config=config, lora=adapters.settings, options=options
        )


def quantise(
    model: Annotated[str, opt.model("Model to quantise: directory or Hub id.")],
    out: opt.Out,
    redo: Annotated[bool, opt.flag("--redo", "Replace the quantised copy of another model in --out.")] = False,
    *,
    options: opt.Quantising,
    printing: opt.Printing,
) -> None:
    """Quantise a model to 4 bits.

    The format is bitsandbytes NF4, with bfloat16 arithmetic. The copy in --out can be audited like any other model.

    \b
    Example:
      uds-lens quantise --model ckpt/npo --out ckpt/npo-nf4
    """
    say(f"quantising; opening {model} ...")
    hub = {name: getattr(options, name) for name in ("revision", "offline", "trust_remote_code")}
    ul.unlearning.quantise(model, out=out, device=options.device, redo=redo, **hub)
    if printing.json:
        echo((out / "quantisation.json").read_text(encoding="utf-8"))
        return
    echo(f"Saved in {out}")

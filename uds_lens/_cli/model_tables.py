"""Tables of many models on the command line: where they come from, and which way their metrics point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
)

import typer

from uds_lens._storage import atomic_write_text, located, require_fresh
from uds_lens.errors import ConfigError, DataError, ResultFormatError

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.meta import ModelTable, Points, ScoreParts


Metric: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Metric to judge; repeat for more. Default: all whose direction is known."
    ),
]
Direction: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=WAY",
        help="What a higher value of a metric means, knowledge or erasure, where it is not one of ours; repeat.",
    ),
]
MinUtility: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="SHARE", help="Count only models with this share of full's utility (utility_rel)."
    ),
]
SelectBy: TypeAlias = Annotated[
    Literal["without", "with"],
    typer.Option(help="Choose a method's configuration by the score without or with depth."),
]


@dataclass(frozen=True, kw_only=True)
class References:
    """Runs and audits that belong to a folder of Open-Unlearning runs."""

    retain: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Open-Unlearning run of retain: gives the normalised attacks (s_mia_*). In a folder of several, each "
            "model takes that of its base model and split.",
        ),
    ] = None
    full: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Open-Unlearning run of full: gives utility_rel. Of several as for --retain."
        ),
    ] = None
    audits: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Saved audits of the same models: their UDS is put beside the metrics."
        ),
    ] = None
    utility: Annotated[
        Literal["with_fluency", "model_utility"],
        typer.Option(help="What utility_rel is made of; model_utility where runs have no fluency."),
    ] = "with_fluency"

    base: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Models of this base model alone, where there are several."),
    ] = None
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Models of this split alone, forget10 for example.")
    ] = None

    methods: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Which method made each model, where no record and no name tells: columns model and method.",
        ),
    ] = None

    def read(self, place: Path, *, examples: bool = False) -> ModelTable:
        """The table at `place`, with the audits' UDS where they were named.

        Raises:
            DataError: Nothing there is a table of models.
        """
        from uds_lens import meta

        table = _read(place, self, examples)
        if self.base is not None or self.split is not None:
            table = meta.select(table, base=self.base, split=self.split)
        if self.methods is not None:
            table = meta.join_methods(table, self.methods)
        if self.audits is None:
            return table
        return meta.join_audits(table, meta.read_audits(self.audits, examples=examples))


@dataclass(frozen=True, kw_only=True)
class Score:
    """What the score of a model is made of; the UDS paper's parts by default."""

    memorization: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Metric of memorization; repeat. Default: es, em, paraprob, truth_ratio."
        ),
    ] = None
    membership: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Metric of privacy; repeat. Default: the four s_mia_*."),
    ] = None
    depth: Annotated[
        str, typer.Option(metavar="NAME", help="Metric that the score is formed with and without.")
    ] = "uds"

    def parts(self) -> ScoreParts:
        """The record of the library."""
        from uds_lens.meta import ScoreParts

        default = ScoreParts()
        return ScoreParts(
            memorization=tuple(self.memorization or default.memorization),
            membership=tuple(self.membership or default.membership),
            depth=self.depth,
        )


@dataclass(frozen=True, kw_only=True)
class Perturbed:
    """The same models after quantisation and relearning, as CSV files."""

    quantised: Annotated[
        Path | None, typer.Option(metavar="CSV", help="The models after quantisation, by the same names.")
    ] = None
    relearned: Annotated[
        Path | None, typer.Option(metavar="CSV", help="The models after relearning, by the same names.")
    ] = None
    retain_before: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Metrics of retain, one row per retain model.")
    ] = None
    retain_relearned: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="Metrics of relearned retain, one row per relearning: five or more."
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether there is anything to judge robustness by."""
        return self.quantised is not None or self.relearned is not None

    def frames(self) -> dict[str, pd.DataFrame | None]:
        """Read the tables under the names that `uds_lens.meta.Tables` has for them."""
        from uds_lens import meta

        return {
            name: None if path is None else meta.read_csv(path).frame for name, path in vars(self).items()
        }


def _read(place: Path, given: References, examples: bool) -> ModelTable:
    if not place.exists() and place != Path("published"):
        raise DataError(
            f"nothing at {str(place)!r}: expected a CSV with one row per model, or a folder of runs."
        )
    from uds_lens import meta

    if not place.exists():
        return meta.read_published()
    if place.is_file() and place.suffix.lower() == ".csv":
        return meta.read_csv(place)
    if (place / "method_results.json").is_file():
        return meta.read_published(place)
    runs = place.is_dir() and any(True for _ in place.glob("**/TOFU_*.json"))
    if runs or place.name.startswith("TOFU_"):
        return meta.read_open_unlearning(
            place, retain=given.retain, full=given.full, utility=given.utility, examples=examples
        )
    try:
        return meta.read_metrics(place, examples=examples)
    except ResultFormatError as problem:
        raise DataError(
            f"{str(place)!r} holds no table of models: expected a CSV with one row per model, a folder of "
            "Open-Unlearning runs, of results of uds-lens metrics, or the UDS paper's files."
        ) from problem


def ways(direction: Sequence[str] | None) -> dict[str, Points]:
    """`--direction` as the library takes it.

    Raises:
        ConfigError: Not `NAME=knowledge` or `NAME=erasure`.

    Example:
        >>> ways(["mine=erasure"])
        {'mine': 'erasure'}
    """
    found: dict[str, Points] = {}
    for each in direction or ():
        name, _, way = each.partition("=")
        if not name or (way != "knowledge" and way != "erasure"):
            raise ConfigError(f"--direction must be NAME=knowledge or NAME=erasure; got {each!r}.")
        found[name] = "knowledge" if way == "knowledge" else "erasure"
    return found


def chosen(frame: pd.DataFrame, metric: Sequence[str] | None, direction: dict[str, Points]) -> list[str]:
    """The metrics that are judged: those asked for, or all columns whose direction is known.

    Raises:
        ConfigError: A direction is not known.
        DataError: A metric that was asked for is no column, or there is none.
    """
    from uds_lens.metrics import METRICS

    forgetting = {
        name for name, spec in METRICS.items() if spec.meaning.direction in ("knowledge", "erasure")
    } - {name for name, spec in METRICS.items() if spec.group == "aggregate"}
    asked = list(metric or ())
    for name in [*asked, *direction]:
        if name not in frame.columns:
            shown = ", ".join(map(str, list(frame.columns)[:20]))
            raise DataError(f"the table lacks the metric {name!r}; its columns: {shown}.")
    unknown = [name for name in asked if name not in direction and name not in forgetting]
    if unknown:
        raise ConfigError(
            f"no direction is known for {unknown[0]!r}: say what a higher value means with --direction "
            f"{unknown[0]}=knowledge or {unknown[0]}=erasure."
        )
    found = asked or [str(name) for name in frame.columns if name in direction or name in forgetting]
    if not found:
        shown = ", ".join(map(str, list(frame.columns)[:12]))
        raise ConfigError(
            f"no direction is known for any column ({shown}): name yours with --direction NAME=knowledge or "
            "NAME=erasure."
        )
    return found


def score_ways(
    frame: pd.DataFrame, parts: ScoreParts, direction: dict[str, Points]
) -> dict[str, Points] | None:
    """Directions of the parts of a score where some were given; None leaves them to the declarations.

    Raises:
        ConfigError: A direction is not known.
    """
    if not direction and not set(parts.metrics) - set(chosen(frame, None, {})):
        return None
    names = list(dict.fromkeys(parts.metrics))
    chosen(frame, names, direction)
    from uds_lens.metrics import METRICS

    declared = {name: METRICS[name].meaning.direction for name in names if name not in direction}
    return {**direction, **{name: way for name, way in declared.items() if way != "utility"}}


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON; what is undefined is null."""
    import json

    found: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return found


def shown(value: Any, digits: int = 3) -> str:
    """A number for a terminal.

    >>> shown(0.5), shown(float("nan")), shown(None)
    ('0.500', '-', '-')
    """
    return "-" if value is None or value != value else f"{value:.{digits}f}"


# Tables that commands write beside what they print: over nothing but an earlier table of the same kind.


def require_table_file(path: Path, *columns: Iterable[str]) -> Path:
    """The place of a table, before any work is done for it.

    Args:
        path: A CSV file.
        columns: Columns of the tables of ours that may stand there, in their order.

    Raises:
        ResultFormatError: Something else stands there, the table that is read for example.
        StorageError: Nothing can be written there.
    """
    begins = tuple(",".join(list(names)[:4]).encode() for names in columns)
    return require_fresh(located(path), directory=False, begins=begins)


def write_table_file(found: pd.DataFrame, path: Path) -> None:
    """Write a table, whole or not at all; an empty cell is undefined."""
    atomic_write_text(path, found.to_csv(index=False))


# Metrics judged from the tables of a command: faithfulness, robustness by filter, what they come to.

USEFUL = 0.8
"""Smallest `utility_rel` of a model that counts for Q and R, as in the UDS paper."""


class Judged(NamedTuple):
    """What is known of the metrics; None where the tables for it were not handed over."""

    faithful: pd.DataFrame | None
    cuts: pd.DataFrame | None
    pairs: pd.DataFrame | None
    robust: pd.DataFrame | None
    points: pd.DataFrame | None
    ties: pd.DataFrame | None = None


def judged(
    frame: pd.DataFrame,
    pools: pd.DataFrame | None,
    perturbed: Perturbed,
    direction: Mapping[str, Points] | None,
    min_utility: float | None,
    *,
    metrics: Sequence[str] | None = None,
    symmetric: bool = True,
    pairs: bool = False,
) -> Judged:
    """Judge the metrics of a table.

    Args:
        frame: Models; those with `knows` are pool models, the others unlearned ones.
        pools: Pool models of a table of their own.
        perturbed: Tables of quantised and relearned models.
        direction: As in `uds_lens.meta`.
        min_utility: None takes `USEFUL` where the table has `utility_rel`.
        metrics: Which columns.
        symmetric: As in `uds_lens.meta.robustness`.
        pairs: Whether all pairs of metrics are compared.
    """
    from uds_lens import meta

    pooled = frame["knows"].notna() if "knows" in frame.columns else frame["model"].isna()
    if pools is None and pooled.any():
        pools = frame[pooled].reset_index(drop=True)
    faithful = cuts = differences = robust = points = ties = None
    if pools is not None:
        faithful = meta.faithfulness(pools, metrics=metrics, direction=direction)
        cuts = meta.thresholds(pools, metrics=metrics, direction=direction)
        if pairs and len(faithful) > 1:
            differences = meta.compare_all(pools, metrics=metrics, direction=direction)
    if perturbed.given:
        before = frame[~pooled].reset_index(drop=True)
        if not len(before):
            raise DataError(
                "Q and R need unlearned models: rows with an empty 'knows', by the names of the perturbed ones."
            )
        useful = USEFUL if min_utility is None and "utility_rel" in before.columns else min_utility
        given_tables: dict[str, Any] = {"thresholds": cuts, "faithful": faithful, **perturbed.frames()}
        tables = meta.Tables(before=before, pools=pools, **given_tables)
        given: dict[str, Any] = {"metrics": metrics, "direction": direction}
        given |= {"min_utility": useful, "symmetric": symmetric}
        robust = meta.robustness_by_filter(tables, **given)
        points = meta.perturbation_points(tables, **given)
        if faithful is not None:
            ties = meta.tied_cuts(tables, **given)
    return Judged(faithful, cuts, differences, robust, points, ties)


# Parts of a score that no model has, and the options that bring them.

_LONGEST = 490
"""Characters of a message, with room for what stands before it."""


def require_parts(frame: pd.DataFrame, parts: ScoreParts, reasons: pd.DataFrame) -> None:
    """Say which option brings a part of the score that no model has.

    Args:
        frame: Unlearned models.
        parts: Columns of the score.
        reasons: Why values are NaN, as in `uds_lens.meta.ModelTable`.

    Raises:
        DataError: A part of the score is no column, or has no value at all: no method could be scored.
    """
    from uds_lens.meta._ranking import empty_parts

    gaps = empty_parts(frame, parts, reasons)
    if not gaps:
        return
    without = ", or --utility model_utility" if "utility=" in (gaps.get(parts.utility) or "") else ""
    hints = {
        (parts.depth,): "--audits DIR puts the UDS of saved audits there",
        parts.memorization: "--memorization NAME takes others",
        parts.membership: "--retain RUN gives the normalised attacks, or --membership NAME",
        (parts.utility,): f"--full RUN gives it{without}",
    }
    lacks, empty = [], []
    for names, hint in hints.items():
        gone = [name for name in names if name in gaps and name not in frame.columns]
        if gone:
            part = "a part" if len(gone) == 1 else "parts"
            lacks.append(f"the table lacks {_quoted(gone, names)}, {part} of the score: {hint}")
        own = [name for name in names if name in gaps and name in frame.columns]
        if own:
            by_reason: dict[str, list[str]] = {}
            for name in own:
                by_reason.setdefault(_briefly(gaps[name]), []).append(name)
            told = ", ".join(f"{_quoted(each, names)}{why}" for why, each in by_reason.items())
            empty.append(f"{told}: {hint}")
    none = [f"no model has a value of {'; '.join(empty)}"] if empty else []
    text = "; ".join([*lacks, *none])
    columns = f" Its columns: {', '.join(map(str, list(frame.columns)[:16]))}." if lacks else ""
    whole = f"no method has a score: {text}."
    longer = (f"{whole}{columns}", whole)
    raise DataError(next((each for each in longer if len(each) <= _LONGEST), f"{text}."))


def _quoted(names: Sequence[str], every: Sequence[str]) -> str:
    """Names as they are written in tables; one pattern where these are all the attacks of a score.

    >>> _quoted(["em", "es"], ["es", "em", "paraprob"])
    "'em', 'es'"
    >>> _quoted(["s_mia_a", "s_mia_b", "s_mia_c"], ["s_mia_a", "s_mia_b", "s_mia_c"])
    'all 3 s_mia_*'
    """
    if len(names) == len(every) > 2 and all(name.startswith("s_mia_") for name in names):
        return f"all {len(names)} s_mia_*"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(map(repr, names[:4])) + more


def _briefly(reason: str | None) -> str:
    """A reader's reason in brackets, short, without Python's names for the options.

    >>> _briefly("the files have no x (not measured by default)"), _briefly("needs the run of full: pass full=")
    (' (not measured by default)', ' (needs the run of full)')
    """
    words, _, option = str(reason or "").partition("; utility=")
    words = words.split(": pass ")[0].strip()
    before, _, inner = words.partition(" (")
    if inner.endswith(")"):  # what a part of utility_rel is said to be missing for is not said of utility_rel
        words = before if option else inner[:-1]
    return f" ({words})" if words and len(words) <= 110 else ""

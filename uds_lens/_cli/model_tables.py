"""Options for tables of many models, and functions that read such tables and judge metrics on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, cast

import typer

import uds_lens as ul
from uds_lens._cli import options as opt
from uds_lens._cli.terminal import echo, grouped
from uds_lens._quoting import csv_text
from uds_lens._storage.files import atomic_write_marked, check_writable, did_you_mean
from uds_lens.errors import ConfigError, DataError, ResultFormatError

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.meta._direction import Points
    from uds_lens.meta._open_unlearning import UtilityParts

Metric: TypeAlias = Annotated[
    list[str] | None,
    opt.names("Metric to judge (repeatable or comma-separated). Default: all metrics with a known direction."),
]
Direction: TypeAlias = Annotated[
    list[str] | None,
    opt.value("NAME=WAY", "What a higher value of your own metric means: knowledge or erasure (repeatable)."),
]
MinUtility: TypeAlias = Annotated[
    float | None,
    opt.value("SHARE", "Share of full's utility that a model must keep to be included (utility_rel).", min=0),
]
SelectBy: TypeAlias = Annotated[
    Literal["without", "with"],
    typer.Option(help="Choose each method's configuration by its score without or with depth."),
]
_Csv: TypeAlias = Path | None


@dataclass(frozen=True, kw_only=True)
class References:
    """Options for reading a folder of Open-Unlearning runs: reference runs, audits, and which models to use."""

    retain: Annotated[
        Path | None,
        opt.value(
            "RUN",
            "Open-Unlearning run of retain, for the normalised attacks (s_mia_*). In a folder of several runs, each "
            "model uses the run with its own base model and split. Default: found by name in RUNS.",
        ),
    ] = None
    full: Annotated[
        Path | None, opt.value("RUN", "Open-Unlearning run of full, for utility_rel; chosen as for --retain.")
    ] = None
    audits: Annotated[Path | None, opt.value("DIR", "Saved audits of the same models; adds their UDS.")] = None
    preset: Annotated[
        Literal["open-unlearning"] | None,
        typer.Option(
            help="Compute the score from metrics in Open-Unlearning's default configuration: memorization from es, "
            "paraprob and truth_ratio (for MUSE, from es and both forget ROUGE), privacy from mia_min_k, utility from "
            "Model Utility."
        ),
    ] = None
    utility: Annotated[
        Literal["with_fluency", "model_utility"] | None,
        typer.Option(
            help="Parts of utility_rel; choose model_utility if the runs lack the metric fluency. Default: "
            "with_fluency; with "
            "--preset, model_utility."
        ),
    ] = None
    measured: Annotated[
        Path | None,
        opt.value(
            "DIR",
            "With 'published' as the table: a run of uds-lens published, whose models are added to the published "
            "models.",
        ),
    ] = None
    base: Annotated[str | None, opt.value("NAME", "Use only models of this base model, if there are several.")] = None
    split: Annotated[str | None, opt.value("NAME", "Use only models of this split, for example forget10.")] = None
    methods: Annotated[
        Path | None,
        opt.value(
            "CSV",
            "Table with the columns model and method, for models whose method is in neither their record nor their "
            "name.",
        ),
    ] = None

    def parts(self, score: Score, frame: pd.DataFrame) -> ul.meta.ScoreParts:
        """Return the parts of the score; the preset, if requested, supplies the parts that were not named."""
        if self.preset is None:
            return score.parts()
        muse = "forget_knowmem_rouge" in frame.columns and frame["forget_knowmem_rouge"].notna().any()
        return score.parts(ul.meta.ScoreParts.preset("open_unlearning_muse" if muse else "open_unlearning"))

    def read(
        self, place: Path, *, examples: bool = False, checkpoints: bool = False, for_table: bool = False
    ) -> ul.meta.ModelTable:
        """Read the table at `place`, add the UDS of the given audits, and print notes about what was left out.

        With `for_table`, `place` may hold audits only, and the intervals of metrics are read too.
        """
        if self.measured is not None:
            return self._beside(place)
        if not place.exists() and place != Path("published"):
            raise DataError(
                f"nothing at {str(place)!r}: expected a CSV with one row per model, or a folder of runs."
                f"{did_you_mean(place)}"
            )

        table = self._read(place, examples, checkpoints, for_table)
        if self.base is not None or self.split is not None:
            table = ul.meta.select(table, base=self.base, split=self.split)
        if self.methods is not None:
            table = ul.meta.join_methods(table, self.methods)
        if self.audits is not None:
            table = ul.meta.join_audits(table, ul.meta.read_audits(self.audits, examples=examples))
        for note in table.notes:
            echo(f"note: {note}", err=True)
        return table

    def _beside(self, place: Path) -> ul.meta.ModelTable:
        if place != Path("published") or place.exists():
            raise ConfigError("--measured adds a run to the published values: pass 'published' as the table.")
        from uds_lens.published import beside

        return beside(str(self.measured))

    def _read(self, place: Path, examples: bool, checkpoints: bool, for_table: bool) -> ul.meta.ModelTable:
        from uds_lens.meta._open_unlearning import holds_runs

        if not place.exists():
            return ul.meta.read_published()
        if place.is_file() and place.suffix.lower() == ".csv":
            return ul.meta.read_csv(place)
        if (place / "method_results.json").is_file():
            return ul.meta.read_published(place)
        if self.preset is not None or holds_runs(place):
            usual: UtilityParts = "with_fluency" if self.preset is None else "model_utility"
            references: dict[str, Path | None] = {"retain": self.retain, "full": self.full}
            return ul.meta.read_open_unlearning(
                place, **references, utility=self.utility or usual, examples=examples, checkpoints=checkpoints
            )
        try:
            return ul.meta.read_metrics(place, examples=examples, intervals=for_table)
        except ResultFormatError as problem:
            from uds_lens.results._saving import audits_in, is_audit

            if place.is_dir() and (is_audit(place) or audits_in(place)):
                if for_table:
                    return ul.meta.read_audits(place)
                raise DataError(
                    f"{str(place)!r} holds saved audits, not the metrics of models: show the audits with `uds-lens "
                    f"report {place}`, or pass the models' metrics and add --audits {place}."
                ) from problem
            raise DataError(
                f"{str(place)!r} holds no table of models: expected a CSV with one row per model, a folder of "
                "Open-Unlearning runs or uds-lens metrics results, or the UDS paper's files."
            ) from problem


@dataclass(frozen=True, kw_only=True)
class Score:
    """The parts of a model's score, by default as in the UDS paper."""

    memorization: Annotated[
        list[str] | None, opt.value("NAME", "Memorization metric (repeatable). Default: es, em, paraprob, truth_ratio.")
    ] = None
    membership: Annotated[
        list[str] | None, opt.value("NAME", "Privacy metric (repeatable). Default: the four s_mia_*.")
    ] = None
    depth: Annotated[str, opt.value("NAME", "Depth metric; the score is computed with and without it.")] = "uds"

    def parts(self, default: ul.meta.ScoreParts | None = None) -> ul.meta.ScoreParts:
        """Return the library's record, with the parts that were not named taken from `default`."""
        default = default or ul.meta.ScoreParts()
        return replace(
            default,
            memorization=tuple(self.memorization or default.memorization),
            membership=tuple(self.membership or default.membership),
            depth=self.depth,
        )


Runs: TypeAlias = Annotated[References, opt.Offer(first=("retain", "full", "audits", "preset", "split"))]


@dataclass(frozen=True, kw_only=True)
class Perturbed:
    """The same models after quantisation and relearning, as CSV files."""

    quantised: Annotated[_Csv, opt.value("CSV", "The models after quantisation, under the same names.")] = None
    relearned: Annotated[_Csv, opt.value("CSV", "The models after relearning, under the same names.")] = None
    retain_before: Annotated[_Csv, opt.value("CSV", "Metrics of retain, one row per retain model.")] = None
    retain_relearned: Annotated[
        _Csv, opt.value("CSV", "Metrics of retain after relearning, one row per relearning (at least five).")
    ] = None

    @property
    def given(self) -> bool:
        """Whether robustness can be judged."""
        return self.quantised is not None or self.relearned is not None

    def frames(self) -> dict[str, pd.DataFrame | None]:
        """Read the tables, keyed by their names in `uds_lens.meta.Tables`."""
        return {name: None if path is None else ul.meta.read_csv(path).frame for name, path in vars(self).items()}


def parse_directions(words: Sequence[str] | None) -> dict[str, Points]:
    """Read the values of `--direction`.

    Raises:
        ConfigError: Not `NAME=knowledge` or `NAME=erasure`.

    Example:
        >>> parse_directions(["mine=erasure"])
        {'mine': 'erasure'}
    """
    directions: dict[str, Points] = {}
    for word in words or ():
        name, _, way = word.partition("=")
        if not name or way not in ("knowledge", "erasure"):
            raise ConfigError(f"--direction must be NAME=knowledge or NAME=erasure; got {word!r}.")
        directions[name] = cast("Points", way)
    return directions


def known_directions(
    frame: pd.DataFrame, metric: Sequence[str] | None, direction: Mapping[str, Points]
) -> dict[str, Points]:
    """Return the directions of the requested metrics, or of all columns whose direction is declared or given."""
    from uds_lens.meta._direction import JUDGED, declared

    known = {**declared(JUDGED), **direction}
    names = metric or [*(name for name in frame.columns if name in known), *direction]
    return ul.meta.directions(frame, list(dict.fromkeys(names)), direction)


def write_table_file(table: pd.DataFrame, path: Path) -> None:
    """Write a table atomically, replacing only files that this library wrote; undefined values become empty cells."""
    atomic_write_marked(check_writable(path, directory=False), csv_text(table))


USEFUL = 0.8
"""Smallest `utility_rel` of the models included in Q and R, as in the UDS paper."""


class Judged(NamedTuple):
    """Tables about metrics; a table is None if its input was not given."""

    faithful: pd.DataFrame | None
    cuts: pd.DataFrame | None = None
    pairs: pd.DataFrame | None = None
    robust: pd.DataFrame | None = None
    points: pd.DataFrame | None = None


def judged(
    frame: pd.DataFrame,
    perturbed: Perturbed,
    *,
    pools: pd.DataFrame | None = None,
    min_utility: float | None,
    pairs: bool = False,
    symmetric: bool = True,
    **given: Any,
) -> Judged:
    """Judge the metrics of a table; `pools` defaults to the table's rows with a value in `knows`."""
    in_pool = frame["knows"].notna() if "knows" in frame.columns else frame["model"].isna()
    if pools is None and in_pool.any():
        pools = frame[in_pool].reset_index(drop=True)
    faithful = cuts = differences = robust = points = None
    if pools is not None:
        faithful, cuts = ul.meta.faithfulness(pools, **given), ul.meta.thresholds(pools, **given)
        if pairs and len(faithful) > 1:
            differences = ul.meta.compare_all(pools, **given)
    if perturbed.given:
        before = frame[~in_pool].reset_index(drop=True)
        if not len(before):
            raise DataError(
                "Q and R need unlearned models: rows with an empty 'knows', under the same names as the perturbed "
                "models."
            )
        if min_utility is None and "utility_rel" in before.columns:
            min_utility = USEFUL
        tables: Any = {"thresholds": cuts, "faithful": faithful, **perturbed.frames()}
        tables = ul.meta.Tables(before=before, **tables)
        given |= {"min_utility": min_utility, "symmetric": symmetric}
        robust, points = ul.meta.robustness_by_filter(tables, **given), ul.meta.perturbation_points(tables, **given)
    return Judged(faithful, cuts, differences, robust, points)


def require_parts(frame: pd.DataFrame, parts: ul.meta.ScoreParts, reasons: pd.DataFrame) -> None:
    """Raise `DataError` naming the parts of a score that no model has, and the options that add them."""
    from uds_lens.meta._ranking import empty_parts

    gaps = empty_parts(frame, parts, reasons)
    if not gaps:
        return
    without = ", or --utility model_utility" if "utility=" in (gaps.get(parts.utility) or "") else ""
    options = {
        (parts.depth,): "--audits DIR adds the UDS of saved audits",
        parts.memorization: "--memorization NAME chooses other metrics",
        parts.membership: "--retain RUN adds the normalised attacks, and --membership NAME chooses other attacks",
        (parts.utility,): f"--full RUN adds the relative utility{without}",
    }
    problems = []
    for names, hint in options.items():
        lacking = [name for name in names if name in gaps and name not in frame.columns]
        if lacking:
            part = "a part" if len(lacking) == 1 else "parts"
            problems.append(f"the table lacks {_quoted(lacking)}, {part} of the score: {hint}")
        empty = grouped((gaps[name] or "", name) for name in names if name in gaps and name not in lacking)
        for reason, group in empty.items():
            why = shorten(re.split(r"; utility=|: pass ", reason)[0], 110, placeholder=" ...")
            problems.append(f"no model has a value for {_quoted(group)}{f' ({why})' if why else ''}: {hint}")
    raise DataError(f"no method has a score: {'; '.join(problems)}.")


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

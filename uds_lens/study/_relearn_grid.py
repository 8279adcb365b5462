"""Worst-case relearning and tampering: the unlearned model and retain are attacked under many settings."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from uds_lens._progress import about, tell
from uds_lens._quoting import csv_text
from uds_lens._settings import as_settings, check_value
from uds_lens._storage.files import atomic_write_marked, check_writable, remove_inside
from uds_lens._storage.records import digest, plain
from uds_lens._types import PositiveInt, Protocol
from uds_lens.data import ForgetExample, sample_examples
from uds_lens.errors import ConfigError, ResultFormatError, UdsLensError
from uds_lens.metrics import METRICS, MetricData, MetricOptions, MetricResults, evaluate
from uds_lens.models import HookedModel, open_model, read_checkpoint_info
from uds_lens.models._compatibility import protocol_of
from uds_lens.results import ReturnEvidence, RunOptions, contrast
from uds_lens.results._comparing import Contrast
from uds_lens.results._intervals import cluster_codes
from uds_lens.study._parts import SlurmOptions, carry_out, failure_of
from uds_lens.study._plan import SETS
from uds_lens.study._relearn_settings import TRAINED, RelearnGrid, RelearnSetting
from uds_lens.study._tampering import Questions, tamper
from uds_lens.unlearning import LoraSettings, RelearnConfig, TrainOptions, relearn

_HALVES = 200  # number of random halves of the subjects: settings are chosen on one half and scored on the other

GRID = {
    "model": "unlearned or retain",
    "setting": "name of the setting",
    "attack": "how the model was attacked",
    "paper": "whether this is the UDS paper's setting",
    "learning_rate": "peak learning rate; this and the next three columns are 0 for attacks that train nothing",
    "epochs": "passes over the rows",
    "share": "share of the forget rows that were trained on; for the attack others, share of the subjects; for "
    "benign, number of retained rows as a share of the forget rows",
    "lora_rank": "rank of the adapters; 0 if all weights were trained",
    "before": "the metric before the attack; for the attack others, this column and the next two are means over the "
    "subjects that were not trained on",
    "after": "the metric after the attack",
    "back": "how much came back: after - before, with the sign chosen so that positive means more knowledge",
    "back_untrained": "back, on the rows that were not trained on; NaN if all rows were",
    "utility": "utility after the attack",
    "utility_loss": "share of the utility that the attack costs; negative if utility rose",
    "allowed": "whether this loss is within the bound",
}
"""Columns of `RelearnGridResults.frame`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RelearnGridResults:
    """Knowledge that returned under each setting, in the unlearned model and in retain."""

    grid: RelearnGrid
    """The settings that were tried."""

    frame: pd.DataFrame
    """One row per model and setting, with the columns of `GRID`."""

    examples: Mapping[str, np.ndarray]
    """For each model, knowledge `[setting, example]`: higher means more; NaN if not measured."""

    subjects: Sequence[str | None]
    """Subject of each example."""

    def _rows(self, model: str, attack: str) -> pd.Series:
        """Return a mask of the rows for a model under an attack of any strength."""
        kinds = self.frame["attack"].str.partition(":")[0]
        return (self.frame["model"] == model) & (kinds == attack)

    def worst(self, model: str = "unlearned", attack: str = "relearn") -> pd.Series | None:
        """Return the row of a model with the most knowledge after an attack; None if no setting is allowed."""
        rows = self.frame[self._rows(model, attack) & self.frame["allowed"] & self.frame["after"].notna()]
        if not len(rows):
            return None
        return rows.iloc[int((self._sign * rows["after"]).to_numpy().argmax())]

    def paper(self, model: str = "unlearned") -> pd.Series:
        """Return the row of a model under the UDS paper's setting."""
        return self.frame[(self.frame["model"] == model) & self.frame["paper"]].iloc[0]

    @property
    def _sign(self) -> float:
        return 1.0 if METRICS[self.grid.metric].meaning.direction == "knowledge" else -1.0

    def _allowed(self, model: str, attack: str) -> np.ndarray:
        rows = (self._rows(model, attack) & self.frame["allowed"])[self.frame["model"] == model]
        return rows.to_numpy(dtype=bool)

    def excess(self, attack: str = "relearn") -> Contrast | None:
        """Return the unlearned model's knowledge beyond retain's, each after its own worst setting of an attack.

        The interval is over subjects. It treats both settings as given, although they were chosen on the same outcomes;
        `held_out_excess` avoids this. None if a model has no allowed setting, or if the metric is not a mean over
        examples.
        """
        rows = [self.worst(model, attack) for model in ("unlearned", "retain")]
        if any(row is None for row in rows):
            return None
        names = [setting.name for setting in self.grid.settings]
        values = [
            self.examples[model][names.index(str(row["setting"]))]  # type: ignore[index]
            for model, row in zip(("unlearned", "retain"), rows, strict=True)
        ]
        if not len(values[0]) or np.isnan(values[0] - values[1]).all():
            return None
        return contrast(values[0] - values[1], cluster_codes(self.subjects), seed=self.grid.seed, bounds=(-1.0, 1.0))

    def evidence(self, attack: str = "relearn") -> ReturnEvidence:
        """Return the lower end of `excess`, for `uds_lens.results.verdict`; NaN (no evidence) if there is none."""
        excess = self.excess(attack)
        return ReturnEvidence(math.nan if excess is None else excess.interval.low)

    def held_out_excess(self, attack: str = "relearn") -> float:
        """Return the excess with both settings chosen on half of the subjects and scored on the other half.

        Returns the mean over 200 random halves. The best of many settings looks good partly by chance; scoring it on
        other subjects removes this bias. NaN with one subject, without an allowed setting, or if the metric is not a
        mean over examples.
        """
        groups = cluster_codes(self.subjects)
        n, excesses = int(groups.max(initial=-1)) + 1, []
        sides = {model: values[self._allowed(model, attack)] for model, values in self.examples.items()}
        if n < 2 or any(not values.size for values in sides.values()):
            return math.nan
        draw = np.random.default_rng(self.grid.seed)
        for _ in range(_HALVES):
            chosen = np.isin(groups, draw.permutation(n)[: n // 2])
            scores = {}
            for model, values in sides.items():
                means = _means(values[:, chosen])
                if np.isnan(means).all():
                    break
                scores[model] = _means(values[:, ~chosen])[int(np.nanargmax(means))]
            if len(scores) == 2:
                excesses.append(scores["unlearned"] - scores["retain"])
        return float(np.nanmean(excesses)) if excesses and not np.isnan(excesses).all() else math.nan

    def attacks_frame(self) -> pd.DataFrame:
        """Return one row per attack, with its worst setting for each of the two models.

        Columns as in `summary`. `excess` is above 0 if the unlearned model knows more after the attack than retain.
        """
        rows = []
        for attack in dict.fromkeys(setting.kind for setting in self.grid.settings):
            whole = self.summary(attack)
            rows.append({"attack": attack} | {name: value for name, value in whole.items() if "paper" not in name})
        return pd.DataFrame(rows)

    def summary(self, attack: str = "relearn") -> dict[str, Any]:
        """Return the main numbers of an attack, for the worst setting of each model; NaN where undefined.

        Numbers named `paper` are for the UDS paper's setting, whatever the attack.
        """
        summary: dict[str, Any] = {
            "metric": self.grid.metric,
            "direction": METRICS[self.grid.metric].meaning.direction,
            "n_settings": sum(setting.kind == attack for setting in self.grid.settings),
            "max_loss": self.grid.max_loss,
        }
        for model in ("unlearned", "retain"):
            paper, worst = self.paper(model), self.worst(model, attack)
            summary |= {
                f"{model}_before": float((paper if worst is None else worst)["before"]),
                f"{model}_paper_after": float(paper["after"]),
                f"{model}_paper_back": float(paper["back"]),
                f"{model}_worst_setting": None if worst is None else str(worst["setting"]),
                f"{model}_worst_after": math.nan if worst is None else float(worst["after"]),
                f"{model}_worst_back": math.nan if worst is None else float(worst["back"]),
                f"{model}_n_allowed": int(self._allowed(model, attack).sum()),
            }
        excess = self.excess(attack)
        summary["paper_excess"] = self._sign * (summary["unlearned_paper_after"] - summary["retain_paper_after"])
        summary["excess"] = self._sign * (summary["unlearned_worst_after"] - summary["retain_worst_after"])
        low, high = (math.nan, math.nan) if excess is None else excess.interval
        return summary | {"excess_low": low, "excess_high": high, "held_out_excess": self.held_out_excess(attack)}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `settings.csv`, `attacks.csv` and `summary.json` into a folder; return it."""
        texts = {
            "settings.csv": csv_text(self.frame),
            "attacks.csv": csv_text(self.attacks_frame()),
            "summary.json": json.dumps(plain(self.summary()), indent=1, allow_nan=False) + "\n",
        }
        for name in texts:
            check_writable(Path(folder) / name, directory=False)
        for name, text in texts.items():
            atomic_write_marked(Path(folder) / name, text)
        return Path(folder)


def _means(values: np.ndarray) -> np.ndarray:
    """Return the mean of each row, ignoring NaN; NaN if there are no values."""
    return pd.DataFrame(values.T, dtype=float).mean().to_numpy()


def relearn_grid(
    model: str | os.PathLike[str],
    retain: str | os.PathLike[str],
    data: MetricData,
    *,
    out: str | os.PathLike[str],
    grid: RelearnGrid | None = None,
    config: RelearnConfig | None = None,
    options: TrainOptions | None = None,
    metrics: MetricOptions | None = None,
    jobs: int = 1,
    slurm: SlurmOptions | None = None,
) -> RelearnGridResults:
    """Attack a model under many settings, and find the one that brings back the most knowledge at little cost.

    `RelearnGrid.attack` names the attacks; the default is to relearn the forget set. A result for a single setting
    shows only how unlearning withstands that setting, whereas an attacker tries many settings and keeps the best. The
    same grid is also run on retain, which has nothing to bring back, so whatever the best setting reaches there was
    newly learned.

    Every relearned model is measured and then removed; a killed run resumes with the remaining settings.

    Args:
        model: The unlearned model: directory or Hub id.
        retain: The retain model, as the control.
        data: Sets of questions: the forget set, and the sets that the utility metric needs.
        out: Folder for the measurements, `settings.csv` and `summary.json`.
        grid: Settings, metric, utility and the bound on its loss; by default `RelearnGrid()`.
        config: All other training settings (batch size, schedule, prompts, seed).
        options: How training runs.
        metrics: How metrics are measured; unless prompts are set here, the training prompts are used.
        jobs: Number of settings to run at a time; 1 runs them in this process. On Slurm, number of tasks in the array,
            each of which gets a share of the settings.
        slurm: Resources of each task in a Slurm array; None runs the settings on this machine.

    Returns:
        The values under all settings, with methods for the worst setting, the paper's setting and the excess over
        retain.

    Raises:
        ConfigError: The utility or the metric cannot be measured with these data.
        ResultFormatError: `out` holds something else.
        UdsLensError: A setting failed. All other settings are measured, and the next call retries it.
    """
    grid = as_settings(RelearnGrid, grid, name="grid")
    config = as_settings(RelearnConfig, config, name="config")
    options = as_settings(TrainOptions, options, name="options")
    if metrics is None:
        metrics = MetricOptions(**asdict(config.chat))
    metrics = as_settings(MetricOptions, metrics, name="metrics")
    check_value("jobs", jobs, PositiveInt)
    protocol = _shared_protocol(os.fspath(model), os.fspath(retain), config, options)
    config = replace(config, protocol=protocol)
    if metrics.protocol == "auto":
        metrics = replace(metrics, protocol=protocol)
    place = Path(out)
    for name in ("settings.csv", "attacks.csv", "summary.json"):
        check_writable(place / name, directory=False)
    attack = _Attack({"unlearned": str(model), "retain": str(retain)}, data, grid, config, options, metrics, place)
    attack.require_rows()
    parts = attack.parts
    left = [name for name in parts if attack.measured(name) is None]
    carry_out(attack, left, place=place, jobs=jobs, slurm=slurm)
    for name in parts:  # a process may have been killed before it removed the weights
        remove_inside(place, place / "models" / name)
    done = {name: after for name in parts if (after := attack.measured(name)) is not None}
    if lacking := [name for name in parts if name not in done]:
        why = failure_of(place, lacking[0]) or "its process ended"
        raise UdsLensError(
            f"{len(lacking)} of {len(parts)} settings failed; {lacking[0]}: {why.rstrip('.')}. Run it again."
        )
    knowledge = {name: attack.knowledge(after, parts[name][1]) for name, after in done.items()}
    results = RelearnGridResults(
        grid=grid,
        frame=pd.DataFrame([attack.row(name, after) for name, after in done.items()], columns=list(GRID)),
        examples={
            role: np.stack([knowledge[name] for name in parts if parts[name][0] == role]) for role in attack.models
        },
        subjects=[example.subject for example in data.forget],
    )
    results.save(place)
    return results


def _shared_protocol(model: str, retain: str, config: RelearnConfig, options: TrainOptions) -> Protocol:
    """Choose the same prompts for both models; otherwise retain would not be a control."""
    where = {name: getattr(options, name) for name in ("revision", "offline", "trust_remote_code")}
    infos = {role: read_checkpoint_info(source, **where) for role, source in (("model", model), ("retain", retain))}
    return protocol_of(config.protocol, infos, infos["model"].tokenizer)


@dataclass(frozen=True)
class _Attack:
    """The grid on both models; each setting of a model is a part, named by a hash of its inputs."""

    models: Mapping[str, str]
    data: MetricData
    grid: RelearnGrid
    config: RelearnConfig
    options: TrainOptions
    metrics: MetricOptions
    place: Path

    @cached_property
    def before(self) -> dict[str, MetricResults]:
        """The models before relearning."""
        found = {}
        for role, model in self.models.items():
            with about(f"{role}, before"):
                found[role] = self._evaluated(model)
            for name in (self.grid.metric, self.grid.utility):
                if (reason := found[role][name].reason) is not None:
                    raise ConfigError(f"{name} of {model!r} cannot be measured: {reason}.")
            if found[role][self.grid.utility].value == 0:
                raise ConfigError(f"{self.grid.utility} of {model!r} is 0, so there is no utility to lose.")
        return found

    @cached_property
    def parts(self) -> dict[str, tuple[str, RelearnSetting]]:
        """Role and setting of each part, by its name."""
        shared = {
            "training": {name: getattr(self.options, name) for name in ("dtype", "save_dtype", "mixed_precision")},
            "asked": {name: [asdict(row) for row in self.data.examples(name)] for name in SETS},
            "entities": [asdict(row) for row in self.data.with_entities],
            "measured": [self.grid.metric, self.grid.utility, self.metrics.to_dict()],
        }
        found = {}
        for role, setting in product(self.models, self.grid.settings):
            config, lora = self._trained(setting)
            depends_on = {
                **shared,
                "weights": self.before[role].models["model"].fingerprint,
                "config": config.to_dict(),
                "lora": None if lora is None else asdict(lora),
                "rows": [[row.question, row.answer] for row in self._rows(setting)],
                "attack": setting.attack,
                **({"seed": self.grid.seed} if setting.kind == "noise" else {}),
            }
            found[f"{role}-{setting.name}-{digest(depends_on)[:16]}"] = role, setting
        return found

    def __call__(self, name: str) -> None:
        """Attack a model under a setting, measure it, and remove the weights."""
        if self.measured(name) is not None:
            return
        role, setting = self.parts[name]
        with about(f"{role}, {setting.name}"):
            after = self._relearned(name) if setting.attack in TRAINED else self._tampered(name)
        after.save(self._file(name))
        remove_inside(self.place, self.place / "models" / name)
        tell(f"{role}, {setting.name}: {self.grid.metric} {after[self.grid.metric].value:.3f}")

    def require_rows(self) -> None:
        """Raise an error if an attack lacks rows that it needs, before anything is measured."""
        kinds = {setting.kind for setting in self.grid.settings}
        if not self.data.retain and (needing := sorted(kinds & {"benign", "refusal"})):
            raise ConfigError(f"no retained rows were given (--retain-data): the attack {needing[0]} needs them.")
        if "others" in kinds and not 0 < len(self._half) < len(self.data.forget):
            raise ConfigError(
                "the attack others needs at least two subjects: half of them are relearned, and questions are asked "
                "about the other half."
            )

    @cached_property
    def _half(self) -> list[ForgetExample]:
        """The rows of half of the subjects, drawn at random."""
        groups = cluster_codes([example.subject for example in self.data.forget])
        drawn = np.random.default_rng(self.grid.seed).permutation(int(groups.max()) + 1)
        chosen = set(drawn[: len(drawn) // 2].tolist())
        return [row for row, group in zip(self.data.forget, groups.tolist(), strict=True) if group in chosen]

    def _relearned(self, name: str) -> MetricResults:
        (role, setting), folder = self.parts[name], self.place / "models" / name
        config, lora = self._trained(setting)
        relearn(self.models[role], self._rows(setting), out=folder, config=config, lora=lora, options=self.options)
        return self._evaluated(str(folder))

    def _tampered(self, name: str) -> MetricResults:
        role, setting = self.parts[name]
        assert self.config.protocol != "auto"  # `relearn_grid` has chosen the prompts
        questions = Questions(
            forget=self.data.forget,
            retain=self.data.retain,
            protocol=self.config.protocol,
            chat=self.config.chat,
            seed=self.grid.seed,
        )
        where = {name: getattr(self.options, name) for name in ("device", "revision", "offline", "trust_remote_code")}
        with open_model(self.models[role], dtype=self.metrics.dtype, **where) as model:
            tamper(model, setting.attack, questions)
            return self._evaluated(model)

    def measured(self, name: str) -> MetricResults | None:
        """Return the metrics of a part; None if it is not measured or its file is broken."""
        try:
            return MetricResults.load(self._file(name))
        except ResultFormatError:
            return None

    def _file(self, name: str) -> Path:
        return self.place / "measured" / f"{name}.json"

    def _trained(self, setting: RelearnSetting) -> tuple[RelearnConfig, LoraSettings | None]:
        if setting.attack not in TRAINED:
            return self.config, None
        config = replace(self.config, learning_rate=setting.learning_rate, epochs=setting.epochs)
        rank = setting.lora_rank
        return config, LoraSettings(rank=rank, alpha=2 * rank) if rank else None

    def _rows(self, setting: RelearnSetting) -> list[ForgetExample]:
        """Return the rows that are trained on."""
        if setting.attack == "others":
            return self._half
        if setting.attack not in TRAINED:
            return []
        rows = self.data.retain if setting.attack == "benign" else self.data.forget
        count = max(1, round(setting.share * len(self.data.forget)))
        return sample_examples(rows, min(count, len(rows)), seed=self.grid.seed)

    def _evaluated(self, model: str | HookedModel) -> MetricResults:
        shared = ("device", "revision", "offline", "trust_remote_code", "progress")
        run = RunOptions(**{name: getattr(self.options, name) for name in shared})
        names = [self.grid.metric, self.grid.utility]
        return evaluate(model, self.data, metrics=names, options=self.metrics, run=run)

    def knowledge(self, results: MetricResults, setting: RelearnSetting) -> np.ndarray:
        """Return the metric of each forget example, oriented so that higher means more knowledge, or NaN."""
        metric = results[self.grid.metric]
        value = dict(zip(metric.ids, metric.per_example, strict=True))
        sign = 1.0 if metric.direction == "knowledge" else -1.0
        taught = {row.id for row in self._half} if setting.attack == "others" else ()
        asked = (math.nan if example.id in taught else value.get(example.id, math.nan) for example in self.data.forget)
        return sign * np.array(list(asked), dtype=float)

    def row(self, name: str, after: MetricResults) -> dict[str, Any]:
        """Return the row of a part."""
        (role, setting), metric, utility = self.parts[name], self.grid.metric, self.grid.utility
        before, taught = self.before[role], () if setting.attack == "benign" else self._rows(setting)
        trained = {row.id for row in taught}
        sign = 1.0 if before[metric].direction == "knowledge" else -1.0
        known = [self.knowledge(results, setting) for results in (before, after)]
        means = [results[metric].value for results in (before, after)]
        if setting.attack == "others":
            means = [sign * float(_means(each[None])[0]) for each in known]
        untrained = np.array([example.id not in trained for example in self.data.forget])
        loss = 1 - after[utility].value / before[utility].value
        return {
            "model": role,
            "setting": setting.name,
            "paper": setting == self.grid.settings[0],
            **setting._asdict(),
            "before": means[0],
            "after": means[1],
            "back": sign * (means[1] - means[0]),
            "back_untrained": float(_means((known[1] - known[0])[None, untrained])[0]),
            "utility": after[utility].value,
            "utility_loss": loss,
            "allowed": bool(loss <= self.grid.max_loss),
        }

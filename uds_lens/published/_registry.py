"""The published models: one record each, from the data file beside this one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path, PurePath
from typing import Any

from uds_lens.errors import ConfigError
from uds_lens.meta._hydra import is_within
from uds_lens.study._plan import Role

if sys.version_info >= (3, 11):
    from tomllib import loads
else:
    from tomli import loads


@dataclass(frozen=True, kw_only=True)
class ModelGroup:
    """Describe published models that are measured against the same full and retain."""

    name: str
    """Its name here: tofu-1b, tofu-3b, tofu-8b, muse-news, muse-books, wmdp."""
    base: str
    """The base model."""
    family: str
    """`model_type` of its configuration."""
    licence: str
    """Under which the weights are given."""
    parameters: int
    """Weights of each model, rounded."""
    data: str
    """Data set of the metrics: a Hub id, or a name of `uds_lens.data.BENCHMARKS`."""
    split: str
    """Its forget set."""
    full: str
    """Hub id of the model trained on everything."""
    retain: str
    """Hub id of the model that never saw the forget set."""

    @property
    def download_bytes(self) -> int:
        """Size of a model in bfloat16, as all of them are given."""
        return 2 * self.parameters


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """One published model."""

    name: str
    """On the authors' page, where it is there; unique in its group."""
    hub_id: str
    """On the Hugging Face Hub. The commit is recorded by the run that first downloads it."""
    group: ModelGroup = field(repr=False)
    """What it shares with others."""
    role: Role
    """full, retain, unlearned, pool, or other (retain models of other splits)."""
    method: str | None = None
    """Unlearning method, in the words of this library."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What its name says of its training."""
    knows: bool | None = None
    """Of a pool model: whether it was trained on the forget set."""

    @property
    def variant(self) -> str | None:
        """Kind of training, of a pool model."""
        return self.settings.get("variant")

    @property
    def run(self) -> str | None:
        """Training run of a pool model: its epochs are not independent."""
        return None if self.knows is None else self.name.rpartition("_ep")[0]

    @property
    def config(self) -> str:
        """Its settings as the authors' page writes them."""
        return self.name.removeprefix(f"{self.method}_")


@cache
def _all() -> tuple[PublishedModel, ...]:
    text = (Path(__file__).parent / "models.toml").read_text("utf-8")
    return tuple(model for name, entry in loads(text).items() for model in _of_group(name, entry))


def _of_group(name: str, entry: dict[str, Any]) -> Iterator[PublishedModel]:
    patterns = entry.pop("models", [])
    group = ModelGroup(name=name, **entry)
    yield PublishedModel(name="full", hub_id=group.full, group=group, role="full")
    yield PublishedModel(name="retain", hub_id=group.retain, group=group, role="retain")
    for pattern in patterns:
        axes = pattern.get("axes", {})
        for values in product(*axes.values()):
            settings = dict(zip(axes, values, strict=True))
            yield PublishedModel(
                name=pattern["name"].format(**{axis: _short(value) for axis, value in settings.items()}),
                hub_id=pattern["id"].format(**settings),
                group=group,
                role=pattern["role"],
                method=pattern.get("method"),
                settings=settings,
                knows=pattern.get("knows"),
            )


def _short(value: str) -> str:
    """Write a setting as the authors' page does.

    >>> [_short(value) for value in ("1e-05", "0.0003", "0.125", "3.5", "10")]
    ['1e5', '3e4', '0125', '35', '10']
    """
    if re.fullmatch(r"\de-0\d|0\.000\d", value):
        return f"{float(value):.0e}".replace("e-0", "e")
    return value.replace(".", "")


def models(*, group: str | None = None, role: Role | None = None, method: str | None = None) -> list[PublishedModel]:
    """List the published models that have a property.

    Args:
        group: Name of a `ModelGroup`, or what several begin with: "tofu", "muse".
        role: full, retain, unlearned, pool or other.
        method: Unlearning method, for example "npo".

    Returns:
        The models, each group's full and retain first.

    Raises:
        ConfigError: No model is like that.

    Example:
        >>> len(models(role="unlearned", group="tofu-1b")), len(models(role="pool"))
        (150, 60)
        >>> models(method="npo")[0].hub_id
        'open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_NPO_lr1e-05_beta0.1_alpha1_epoch5'
    """
    matches = [
        model
        for model in _all()
        if (group is None or f"{model.group.name}-".startswith(f"{group}-"))
        and role in (None, model.role)
        and method in (None, model.method)
    ]
    if not matches:
        groups = dict.fromkeys(model.group.name for model in _all())
        methods = dict.fromkeys(model.method for model in _all() if model.method)
        asked = {"group": group, "role": role, "method": method}
        raise ConfigError(
            f"no published model has {' and '.join(f'{name} {value!r}' for name, value in asked.items() if value)}. "
            f"Groups: {', '.join(groups)}; roles: full, retain, unlearned, pool, other; methods: {', '.join(methods)}."
        )
    return matches


def find(name: str, *, group: str | None = None) -> PublishedModel | None:
    """Return the published model that a name stands for; None where it is none of them.

    Args:
        name: Its Hub id, the last part of one (also as a folder, or a task that holds `evals`; without "unlearn_" as
            Open-Unlearning names runs), a path inside the Hub's cache, or its name on the authors' page. An id of
            another owner, `owner/name` where no such folder is, stands for another model.
        group: Group of the names that occur in several: full, retain, retain95. Default: tofu-1b.

    Example:
        >>> find("saves/eval/tofu_Llama-3.2-1B-Instruct_forget10_NPO_lr2e-05_beta0.1_alpha1_epoch10").name
        'npo_lr2e5_b01_a1_ep10'
        >>> find("full", group="tofu-8b").hub_id
        'open-unlearning/tofu_Llama-3.1-8B-Instruct_full'
    """
    by_id, by_name = _names()
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+)", name)
    if cached or (name.count("/") == 1 and not _is_there(name)):
        hub_id = f"{cached[1]}/{cached[2]}" if cached else name
        model = by_id.get(hub_id.partition("/")[2])
        return model if model is not None and model.hub_id == hub_id else None
    for part in reversed(PurePath(name).parts):
        if part in by_id:
            return by_id[part]
        if not is_within(part):
            break
    return by_name.get((group or "tofu-1b", name))


def _is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # longer than a file system takes, or no text that it can hold
        return False


@cache
def _names() -> tuple[dict[str, PublishedModel], dict[tuple[str, str], PublishedModel]]:
    ends = {model.hub_id.partition("/")[2]: model for model in _all()}
    short = {end.removeprefix("unlearn_"): model for end, model in ends.items()}
    return short | ends, {(model.group.name, model.name): model for model in _all()}

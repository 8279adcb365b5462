"""All metrics, each declared once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from uds_lens.errors import ConfigError
from uds_lens.metrics import scores_internal as internal
from uds_lens.metrics import scores_output as output
from uds_lens.metrics import scores_utility as useful
from uds_lens.metrics.fisher import FRACTIONS
from uds_lens.metrics.spec import MetricSpec, Pass, Role

if TYPE_CHECKING:
    import pandas as pd


def _answers(*names: str, role: Role = "model", optional: bool = False) -> tuple[Pass, ...]:
    return tuple(Pass(role, "answers", name, optional=optional) for name in names)


def _said(name: str, *, role: Role = "model", jailbreak: bool = False) -> tuple[Pass, ...]:
    return (Pass(role, "generations", name, start=jailbreak),)


_RETAIN_STATES = Pass("retain", "states")
_MODEL_STATES = Pass("model", "states")
_FULL_STATES = Pass("full", "states")

_KNOWN = {"direction": "knowledge", "zero": "nothing of the answers is left", "one": "the answers are known by heart"}
_ERASED = {"direction": "erasure", "zero": "as full", "one": "as retain"}

_MEMORIZATION = (
    MetricSpec(
        name="es", label="Extraction Strength", group="memorization", **_KNOWN, score=output.es, passes=_answers("forget")
    ),
    MetricSpec(
        name="em", label="Exact Memorization", group="memorization", **_KNOWN, score=output.em, passes=_answers("forget")
    ),
    MetricSpec(
        name="prob", label="Probability", group="memorization", **_KNOWN, score=output.prob, passes=_answers("forget")
    ),
    MetricSpec(
        name="paraprob",
        label="Para. Probability",
        group="memorization",
        **_KNOWN,
        score=output.paraprob,
        passes=_answers("forget/paraphrased"),
    ),
    MetricSpec(
        name="truth_ratio",
        label="Truth Ratio",
        group="memorization",
        direction="knowledge",
        zero="prefers wrong answers",
        one="prefers the truth (0.5: no preference)",
        score=output.forget_truth_ratio,
        passes=_answers("forget/paraphrased", "forget/perturbed"),
    ),
)

_GENERATION = (
    MetricSpec(name="rouge", label="ROUGE", group="generation", **_KNOWN, score=output.rouge, passes=_said("forget")),
    MetricSpec(
        name="para_rouge",
        label="Para. ROUGE",
        group="generation",
        **_KNOWN,
        score=output.para_rouge,
        passes=(*_said("forget"), *_answers("forget/paraphrased")),
    ),
    MetricSpec(
        name="jailbreak_rouge",
        label="Jailbreak ROUGE",
        group="generation",
        **_KNOWN,
        score=partial(output.rouge, jailbreak=True),
        passes=_said("forget", jailbreak=True),
    ),
)

_ATTACKS = (
    ("mia_loss", "LOSS", output.loss_attack),
    ("mia_zlib", "ZLib", output.zlib_attack),
    ("mia_min_k", "Min-K", output.min_k_attack),
    ("mia_min_kpp", "Min-K++", output.min_kpp_attack),
)

_MEMBERSHIP = tuple(
    MetricSpec(
        name=name,
        label=f"MIA-{label}",
        group="membership",
        direction="knowledge",
        zero="the holdout looks more familiar",
        one="the forget set is told apart perfectly (0.5: not at all)",
        score=partial(output.mia, attack=attack),
        passes=_answers("forget", "holdout"),
    )
    for name, label, attack in _ATTACKS
) + tuple(
    MetricSpec(
        name=f"s_{name}",
        label=f"s_{label}",
        group="membership",
        direction="erasure",
        zero="as far from retain as an AUC of 0",
        one="as hard to attack as retain",
        score=partial(output.s_mia, attack=attack, of=name),
        passes=_answers("forget", "holdout", role="retain"),
        uses=(name,),
    )
    for name, label, attack in _ATTACKS
)

_REPRESENTATION = (
    MetricSpec(
        name="cka",
        label="CKA",
        group="representation",
        **_ERASED,
        score=internal.cka,
        passes=(_RETAIN_STATES, _MODEL_STATES, _FULL_STATES),
    ),
    *(
        MetricSpec(
            name=f"fisher_masked_{fraction:g}",
            label=f"Fisher Masked ({fraction:.4g})".replace(f"{fraction:.4g}", f"{100 * fraction:g}%"),
            group="representation",
            **_ERASED,
            score=partial(internal.fisher_masked, fraction=fraction),
            passes=(Pass("retain", "fisher_spill"), Pass("full", "fisher_masks"), Pass("model", "fisher_sums")),
        )
        for fraction in FRACTIONS
    ),
    MetricSpec(
        name="logit_lens",
        label="Logit Lens",
        group="representation",
        **_ERASED,
        score=internal.logit_lens,
        passes=(
            _RETAIN_STATES,
            _MODEL_STATES,
            _FULL_STATES,
            *(Pass("full", "lens", role) for role in ("retain", "full", "model")),
        ),
    ),
    MetricSpec(
        name="uds",
        label="UDS",
        group="representation",
        **_ERASED,
        score=internal.uds,
        passes=(_RETAIN_STATES, _MODEL_STATES, Pass("full", "patched", "retain"), Pass("full", "patched", "model")),
    ),
)


def _utility_passes(role: Role) -> dict[str, tuple[Pass, ...]]:
    """Passes of each of the nine parts of Model Utility."""
    found = {}
    for short, name in useful.SETS.items():
        wrong = _answers(f"{name}/perturbed", role=role)
        own = _answers(name, role=role)
        found[f"{short}_q_prob"] = (*own, *wrong) if name in useful.MULTIPLE_CHOICE else own
        found[f"{short}_q_rouge"] = _said(name, role=role)
        rephrased = _answers(f"{name}/paraphrased", role=role, optional=True)
        found[f"{short}_truth_ratio"] = (*own, *rephrased, *wrong)
    return found


def _all_utility_passes(role: Role) -> tuple[Pass, ...]:
    return tuple(dict.fromkeys(p for passes in _utility_passes(role).values() for p in passes))


_SET_LABELS = {"retain": "retain", "ra": "real authors", "wf": "world facts"}
_PARTS = {"q_prob": useful.q_prob, "q_rouge": useful.q_rouge, "truth_ratio": useful.q_truth_ratio}
_PART_LABELS = {"q_prob": "Probability", "q_rouge": "ROUGE", "truth_ratio": "Truth Ratio"}
_USEFUL = {"direction": "utility", "zero": "useless", "one": "perfect"}

_UTILITY = tuple(
    MetricSpec(
        name=f"{short}_{part}",
        label=f"{_PART_LABELS[part]}, {_SET_LABELS[short]}",
        group="utility",
        **_USEFUL,
        score=partial(score, name=name),
        passes=_utility_passes("model")[f"{short}_{part}"],
    )
    for short, name in useful.SETS.items()
    for part, score in _PARTS.items()
) + (
    MetricSpec(
        name="model_utility",
        label="Model Utility",
        group="utility",
        **_USEFUL,
        score=useful.model_utility,
        passes=_all_utility_passes("model"),
    ),
    MetricSpec(
        name="fluency",
        label="Fluency",
        group="utility",
        direction="utility",
        zero="only gibberish",
        one="no gibberish",
        score=useful.fluency,
        passes=_said("forget"),
    ),
    MetricSpec(
        name="utility",
        label="Utility",
        group="utility",
        **_USEFUL,
        score=useful.utility,
        passes=(*_all_utility_passes("model"), *_said("forget")),
    ),
    MetricSpec(
        name="utility_rel",
        label="Utility (rel.)",
        group="utility",
        direction="utility",
        zero="useless",
        one="as useful as full; more is possible",
        high=float("inf"),
        score=useful.utility_rel,
        passes=(*_all_utility_passes("full"), *_said("forget", role="full")),
        uses=("utility",),
    ),
)

_AGGREGATE = (
    MetricSpec(
        name="memorization",
        label="Memorization",
        group="aggregate",
        direction="erasure",
        zero="one of the four is fully known",
        one="nothing is known",
        score=useful.memorization,
        uses=("es", "em", "paraprob", "truth_ratio"),
    ),
    MetricSpec(
        name="mia_agg",
        label="MIA agg.",
        group="aggregate",
        direction="erasure",
        zero="one attack is as far from retain as can be",
        one="as hard to attack as retain",
        score=useful.mia_agg,
        uses=tuple(f"s_{name}" for name in useful.MIA_NAMES),
    ),
    MetricSpec(
        name="privacy",
        label="Privacy",
        group="aggregate",
        direction="erasure",
        zero="leaks",
        one="as retain",
        score=useful.privacy,
        uses=("mia_agg",),
    ),
    MetricSpec(
        name="overall",
        label="Overall",
        group="aggregate",
        direction="utility",
        zero="one of the three is 0",
        one="forgotten, private, and as useful as full",
        high=float("inf"),
        score=useful.overall,
        uses=("memorization", "privacy", "utility_rel"),
    ),
)

METRICS: dict[str, MetricSpec] = {
    spec.name: spec
    for spec in (*_MEMORIZATION, *_GENERATION, *_MEMBERSHIP, *_REPRESENTATION, *_UTILITY, *_AGGREGATE)
}
"""Every metric by name, in an order where each comes after those it is made of."""


def resolve(names: Iterable[str] | None, *, uds_in_privacy: bool = False) -> list[MetricSpec]:
    """The metrics asked for with those they are made of, in the order of `METRICS`.

    Args:
        names: Names; None takes all.
        uds_in_privacy: Whether Privacy is made of UDS too.

    Returns:
        Specs, each once.

    Raises:
        ConfigError: A name does not exist.

    Example:
        >>> [spec.name for spec in resolve(["s_mia_loss"])]
        ['mia_loss', 's_mia_loss']
    """
    wanted = set(METRICS) if names is None else set()
    queue = [] if names is None else list(names)
    while queue:
        name = queue.pop()
        if name not in METRICS:
            raise ConfigError(f"there is no metric {name!r}; there are {', '.join(METRICS)}.")
        if name not in wanted:
            wanted.add(name)
            queue += METRICS[name].uses
            queue += ["uds"] if name == "privacy" and uds_in_privacy else []
    return [spec for name, spec in METRICS.items() if name in wanted]


def metrics_frame(specs: Sequence[MetricSpec] | None = None) -> pd.DataFrame:
    """The registry as a table: one row per metric.

    Args:
        specs: Which metrics; None takes all.

    Returns:
        Columns `name`, `label`, `group`, `needs`, `data`, `direction`, `low`, `high`, `zero`, `one`.
    """
    import pandas as pd

    rows = [
        {
            "name": spec.name,
            "label": spec.label,
            "group": spec.group,
            "needs": ", ".join(all_needs(spec)),
            "data": ", ".join(data_sets(spec)),
            "direction": spec.direction,
            "low": spec.low,
            "high": spec.high,
            "zero": spec.zero,
            "one": spec.one,
        }
        for spec in (METRICS.values() if specs is None else specs)
    ]
    return pd.DataFrame(rows)


def all_needs(spec: MetricSpec) -> list[str]:
    """What a metric needs, through the metrics it is made of."""
    found = {need for each in resolve([spec.name]) for need in each.needs}
    return [need for need in ("output", "internal", "retain", "full") if need in found]


def data_sets(spec: MetricSpec) -> list[str]:
    """Sets of `MetricData` a metric cannot do without, through the metrics it is made of."""
    passes = [p for each in resolve([spec.name]) for p in each.passes if not p.optional]
    return list(dict.fromkeys(p.set_name for p in passes))

"""All metrics, each declared once."""

from __future__ import annotations

from functools import partial

from uds_lens.metrics import scores_internal as internal
from uds_lens.metrics import scores_output as output
from uds_lens.metrics import scores_utility as useful
from uds_lens.metrics.fisher import FRACTIONS
from uds_lens.metrics.spec import Meaning, MetricSpec, Pass, Role


def _answers(*names: str, role: Role = "model", optional: bool = False) -> tuple[Pass, ...]:
    return tuple(Pass(role, "answers", name, optional=optional) for name in names)


def _said(name: str, *, role: Role = "model", jailbreak: bool = False) -> tuple[Pass, ...]:
    return (Pass(role, "generations", name, start=jailbreak),)


_RETAIN_STATES = Pass("retain", "states")
_MODEL_STATES = Pass("model", "states")
_FULL_STATES = Pass("full", "states")

_KNOWN = Meaning("knowledge", "nothing left", "known by heart")
_ERASED = Meaning("erasure", "as full", "as retain")
_USEFUL = Meaning("utility", "useless", "perfect")

_MEMORIZATION = (
    MetricSpec(
        name="es",
        label="Extraction Strength",
        group="memorization",
        meaning=_KNOWN,
        score=output.es,
        passes=_answers("forget"),
    ),
    MetricSpec(
        name="em",
        label="Exact Memorization",
        group="memorization",
        meaning=_KNOWN,
        score=output.em,
        passes=_answers("forget"),
    ),
    MetricSpec(
        name="prob",
        label="Probability",
        group="memorization",
        meaning=_KNOWN,
        score=output.prob,
        passes=_answers("forget"),
    ),
    MetricSpec(
        name="paraprob",
        label="Para. Probability",
        group="memorization",
        meaning=_KNOWN,
        score=output.paraprob,
        passes=_answers("forget/paraphrased"),
    ),
    MetricSpec(
        name="truth_ratio",
        label="Truth Ratio",
        group="memorization",
        meaning=Meaning("knowledge", "prefers falsehoods", "prefers truth (0.5: neither)"),
        score=output.forget_truth_ratio,
        passes=_answers("forget/paraphrased", "forget/perturbed"),
    ),
)

_GENERATION = (
    MetricSpec(
        name="rouge",
        label="ROUGE",
        group="generation",
        meaning=_KNOWN,
        score=output.rouge,
        passes=_said("forget"),
    ),
    MetricSpec(
        name="para_rouge",
        label="Para. ROUGE",
        group="generation",
        meaning=_KNOWN,
        score=output.para_rouge,
        passes=_said("forget"),
        references=("forget/paraphrased",),
    ),
    MetricSpec(
        name="jailbreak_rouge",
        label="Jailbreak ROUGE",
        group="generation",
        meaning=_KNOWN,
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

_MEMBERSHIP = (
    *(
        MetricSpec(
            name=name,
            label=f"MIA-{label}",
            group="membership",
            meaning=Meaning(
                "knowledge",
                "holdout more familiar",
                "told apart (0.5: not)",
            ),
            score=partial(output.mia, attack=attack),
            passes=_answers("forget", "holdout"),
        )
        for name, label, attack in _ATTACKS
    ),
    *(
        MetricSpec(
            name=f"s_{name}",
            label=f"s_{label}",
            group="membership",
            meaning=Meaning("erasure", "far from retain", "as retain"),
            score=partial(output.s_mia, attack=attack, of=name),
            passes=_answers("forget", "holdout", role="retain"),
            uses=(name,),
        )
        for name, label, attack in _ATTACKS
    ),
)

_REPRESENTATION = (
    MetricSpec(
        name="cka",
        label="CKA",
        group="representation",
        meaning=_ERASED,
        score=internal.cka,
        passes=(_RETAIN_STATES, _MODEL_STATES, _FULL_STATES),
    ),
    *(
        MetricSpec(
            name=f"fisher_masked_{fraction:g}",
            label=f"Fisher Masked ({100 * fraction:g}%)",
            group="representation",
            meaning=_ERASED,
            score=partial(internal.fisher_masked, fraction=fraction),
            passes=(
                Pass("retain", "fisher_spill"),
                Pass("full", "fisher_masks"),
                Pass("model", "fisher_sums"),
            ),
        )
        for fraction in FRACTIONS
    ),
    MetricSpec(
        name="logit_lens",
        label="Logit Lens",
        group="representation",
        meaning=_ERASED,
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
        meaning=_ERASED,
        score=internal.uds,
        passes=(
            _RETAIN_STATES,
            _MODEL_STATES,
            Pass("full", "patched", "retain"),
            Pass("full", "patched", "model"),
        ),
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


def _full_utility_passes() -> tuple[Pass, ...]:
    return tuple(dict.fromkeys(p for passes in _utility_passes("full").values() for p in passes))


_SET_LABELS = {"retain": "retain", "ra": "real authors", "wf": "world facts"}
_PART_LABELS = {"q_prob": "Probability", "q_rouge": "ROUGE", "truth_ratio": "Truth Ratio"}

_UTILITY = (
    *(
        MetricSpec(
            name=f"{short}_{part}",
            label=f"{_PART_LABELS[part]}, {_SET_LABELS[short]}",
            group="utility",
            meaning=_USEFUL,
            score=partial(score, name=name),
            passes=_utility_passes("model")[f"{short}_{part}"],
        )
        for short, name in useful.SETS.items()
        for part, score in useful.PARTS.items()
    ),
    MetricSpec(
        name="model_utility",
        label="Model Utility",
        group="utility",
        meaning=_USEFUL,
        score=useful.model_utility,
        uses=useful.PART_NAMES,
    ),
    MetricSpec(
        name="fluency",
        label="Fluency",
        group="utility",
        meaning=Meaning("utility", "only gibberish", "no gibberish"),
        score=useful.fluency,
        passes=_said("forget"),
    ),
    MetricSpec(
        name="utility",
        label="Utility",
        group="utility",
        meaning=_USEFUL,
        score=useful.utility,
        uses=("model_utility", "fluency"),
    ),
    MetricSpec(
        name="utility_rel",
        label="Utility (rel.)",
        group="utility",
        meaning=Meaning("utility", "useless", "as full; may exceed 1"),
        high=float("inf"),
        score=useful.utility_rel,
        passes=(*_full_utility_passes(), *_said("forget", role="full")),
        uses=("utility",),
    ),
)

_AGGREGATE = (
    MetricSpec(
        name="memorization",
        label="Memorization",
        group="aggregate",
        meaning=Meaning("erasure", "one of four known", "nothing known"),
        score=useful.memorization,
        uses=("es", "em", "paraprob", "truth_ratio"),
    ),
    MetricSpec(
        name="mia_agg",
        label="MIA agg.",
        group="aggregate",
        meaning=Meaning("erasure", "far from retain", "as retain"),
        score=useful.mia_agg,
        uses=tuple(f"s_{name}" for name in useful.MIA_NAMES),
    ),
    MetricSpec(
        name="privacy",
        label="Privacy",
        group="aggregate",
        meaning=Meaning("erasure", "leaks", "as retain"),
        score=useful.privacy,
        uses=("mia_agg",),
    ),
    MetricSpec(
        name="overall",
        label="Overall",
        group="aggregate",
        meaning=Meaning("utility", "one of three is 0", "forgot, private, useful"),
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

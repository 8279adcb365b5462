"""Membership attacks that use more than the model's outputs: the losses of `retain`, or gradients."""

from __future__ import annotations

from uds_lens.metrics._declaration import Evidence, Outcome, metric, needs_answers, needs_gradients
from uds_lens.metrics._definitions.membership_attacks import IDENTIFIABLE, auc_outcome, mean_nll

_SIDES = ("forget", "holdout")


@metric(
    name="mia_reference",
    label="MIA-Reference",
    group="membership",
    meaning=IDENTIFIABLE,
    passes=(*needs_answers(*_SIDES), *needs_answers(*_SIDES, role="retain")),
    packages=("sklearn",),
)
def mia_reference(evidence: Evidence) -> Outcome:
    """Return the AUC for each answer's mean NLL minus its mean NLL under `retain`; 0.5 for `retain` itself."""
    scores = {}
    for name in _SIDES:
        model, retain = (
            [mean_nll(row.tolist()) for row in evidence.answers(name, role).logprobs] for role in ("model", "retain")
        )
        scores[name] = [own - other for own, other in zip(model, retain, strict=True)]
    return auc_outcome(evidence, scores)


@metric(
    name="mia_gradnorm",
    label="MIA-GradNorm",
    group="membership",
    meaning=IDENTIFIABLE,
    passes=needs_gradients(*_SIDES),
    packages=("sklearn",),
)
def mia_gradnorm(evidence: Evidence) -> Outcome:
    """Return the AUC of the gradient norm, which is small for known answers (`gradient_norms`)."""
    return auc_outcome(evidence, {name: evidence.gradient_norms(name) for name in _SIDES})

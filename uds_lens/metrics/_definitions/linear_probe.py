"""Linear probes, one per layer: do the states still separate true from wrong answers?

Each question provides two states: one after its true answer and one after its first perturbed answer. A ridge
regression on standardised states learns to separate them and is tested on held-out subjects, so memorising the training
subjects does not help. Random labels serve as a control task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uds_lens._optional_packages import require_package
from uds_lens.metrics._declaration import ERASED, Evidence, Meaning, Outcome, Role, Undefined, metric, needs_states

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float, Int

CONTROLS = 19  # random labellings; a difference larger than under all of them has p <= 0.05
FEWEST = 5  # subjects; with fewer, a probe learns nothing that generalises to other subjects
_FOLDS = 20  # maximum number of folds; with more subjects, several are held out at once
_ENDINGS = "forget/endings"
_ROLES: tuple[Role, ...] = ("retain", "model", "full")


def probe_wins(
    states: Float[np.ndarray, "pair two d_model"], subjects: Sequence[str], labels: Int[np.ndarray, "pair labelling"]
) -> Float[np.ndarray, "pair labelling"]:
    """Return whether a probe trained on other subjects scores the state labelled true above its partner.

    The probe is a ridge regression on states standardised over its training subjects. Its penalty is the number of
    dimensions, so that penalty and data have equal weight in an average direction.

    Args:
        states: For each question, the state after the true answer and the state after the wrong answer.
        subjects: Subject of each question; questions about one subject are held out together.
        labels: For each labelling, 1 if the first state is labelled true, -1 if the second state is.

    Returns:
        1 if the probe is right, 0 if it is wrong, 0.5 for a tie; 0.5 on average for uninformative states.

    Raises:
        MissingDependencyError: scikit-learn is not installed.

    References:
        Alain and Bengio 2017, Understanding intermediate layers using linear classifier probes; Hewitt and Liang 2019,
        Designing and Interpreting Probes with Control Tasks.
    """
    require_package("sklearn", needed_by="a linear probe needs")
    import numpy as np
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), Ridge(alpha=states.shape[2]))
    scores = cross_val_predict(
        probe,
        np.concatenate([states[:, 0], states[:, 1]]),
        np.concatenate([labels, -labels]),
        groups=[*subjects, *subjects],
        cv=GroupKFold(min(_FOLDS, len(set(subjects)))),
    )
    first, second = np.split(scores, 2)
    return (np.sign((first - second) * labels) + 1) / 2


@metric(
    name="linear_probe",
    label="Linear probe",
    group="representation",
    meaning=ERASED,
    passes=needs_states(*_ROLES, answers=_ENDINGS),
    packages=("sklearn",),
)
def linear_probe(evidence: Evidence) -> Outcome:
    """Return how far the probe's accuracy fell from `full`'s towards `retain`'s, in [0, 1], averaged over layers.

    Each layer is weighted by the difference between the accuracies of `full` and `retain`. A layer is included only if
    this difference exceeds the largest difference in any layer under the random labellings. The details contain the
    accuracy of each layer (0.5 is chance) and, as `controls`, the mean accuracy under random labels; the difference
    between the two is the selectivity.
    """
    import numpy as np
    import torch

    from uds_lens.metrics._white_box import weighted_erasure

    pairs, subjects = _pairs(evidence)
    accuracy = {role: _accuracies(evidence, role, pairs, subjects) for role in _ROLES}
    lead, lost = accuracy["full"] - accuracy["retain"], accuracy["full"] - accuracy["model"]
    counts = lead[:, 0] > lead[:, 1:].max()
    weights = np.where(counts, lead[:, 0], 0.0)
    erasure = np.where(counts, (lost[:, 0] / np.where(counts, lead[:, 0], 1.0)).clip(0.0, 1.0), math.nan)
    value = weighted_erasure(torch.from_numpy(erasure), torch.from_numpy(weights))
    details: dict[str, Any] = {
        **{role: accuracy[role][:, 0].tolist() for role in _ROLES},
        "controls": {role: accuracy[role][:, 1:].mean(1).tolist() for role in _ROLES},
        "erasure": erasure.tolist(),
        "n_pairs": len(pairs),
        "n_subjects": len(set(subjects)),
    }
    reason = "no layer of full separates true from wrong answers better than retain does, beyond chance"
    return Outcome(value, reason if math.isnan(value) else None, details=details)


@metric(
    name="probe_selectivity",
    label="Probe selectivity",
    group="representation",
    meaning=Meaning("knowledge", "no better than with random labels", "every pair told apart", low=-1.0),
    passes=needs_states("model", answers=_ENDINGS),
    packages=("sklearn",),
)
def probe_selectivity(evidence: Evidence) -> Outcome:
    """Return the model's probe accuracy minus the accuracy with random labels, averaged over layers and doubled.

    This metric needs neither `full` nor `retain`, so it is defined even where `linear_probe` is undefined because
    `retain` separates true from wrong answers just as well.
    """
    pairs, subjects = _pairs(evidence)
    accuracy = _accuracies(evidence, "model", pairs, subjects)
    controls = accuracy[:, 1:].mean(1)
    details = {"accuracy": accuracy[:, 0].tolist(), "controls": controls.tolist(), "n_pairs": len(pairs)}
    return Outcome(2 * float((accuracy[:, 0] - controls).mean()), details=details)


def _pairs(evidence: Evidence) -> tuple[list[list[int]], list[str]]:
    """Return, for each question, its subject and the indices of the states after its true and wrong answers."""
    examples = evidence.state_examples(_ENDINGS)
    places: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        places.setdefault(example.id, []).append(place)
    pairs = [pair for pair in places.values() if len(pair) == 2]  # either answer may be too long for the model
    subjects = [examples[first].subject or examples[first].id for first, _ in pairs]
    if (n_subjects := len(set(subjects))) < FEWEST:
        raise Undefined(f"a probe needs at least {FEWEST} subjects with wrong answers; there are {n_subjects}")
    return pairs, subjects


def _accuracies(
    evidence: Evidence, role: Role, pairs: Sequence[Sequence[int]], subjects: Sequence[str]
) -> Float[np.ndarray, "layer labelling"]:
    """Return each layer's probe accuracy, first with the true labels, then with each random labelling."""
    import numpy as np

    labels = np.random.default_rng(0).choice([-1, 1], size=(len(pairs), 1 + CONTROLS))
    labels[:, 0] = 1
    layers = range(evidence.n_layers())
    return np.stack(
        [probe_wins(_states(evidence, role, layer)[np.array(pairs)], subjects, labels).mean(0) for layer in layers]
    )


def _states(evidence: Evidence, role: Role, layer: int) -> np.ndarray:
    return evidence.stacked_states(role, layer, answers=_ENDINGS, first=True).numpy()

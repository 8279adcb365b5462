"""The verdict on a model from all of its measurements, and on several models' order; UDS alone never means "erased"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from uds_lens.results._cautions import damage_signs

if TYPE_CHECKING:
    import pandas as pd

    from uds_lens.results._depth_audit import DepthAudit


VerdictWord: TypeAlias = Literal[
    "intact", "partly erased", "hidden", "damaged", "erased as far as tested", "undecided", "withheld"
]

WITHHELD: VerdictWord = "withheld"  # if there is a number, it cannot be read as a score

INTACT = 0.05  # UDS below which the states hold the knowledge as `full`'s do

REACHED = 0.9
"""Depth that retrained models reach on each other's scales (.92 and .93 in our SmolLM2 study). It is the bound with a
single retain model; with several, the bound is `DepthAudit.retain_ceiling`."""

ANSWERS = 0.15
"""Output depth below which a model still answers: its knowledge is neither hidden nor erased."""

# localisation from which the change counts as local: a few blocks of `full` bring the answers back
LOCAL = 0.75


class TransplantEvidence(NamedTuple):
    """Findings of a transplant of `retain`'s or `full`'s blocks into the unlearned model."""

    host_depth: float
    """Host depth h in [0, 1]: depth of the unlearned model when `retain`'s blocks replace some of its blocks."""

    hidden_low: float
    """Lower end of the interval of output depth minus h; NaN if withheld."""

    hidden_reference: float = 0.1
    """The largest output depth minus h among reference models; 0.1 with a single retain model."""

    localisation: float = math.nan
    """Share of the loss that a few blocks of `full` recover; NaN where not measured."""

    control_lost: bool = False
    """Whether control facts are lost, so that nothing can be concluded."""

    hidden: float = math.nan
    """Output depth minus h; NaN if withheld."""

    reason: str = ""
    """Why `hidden` is NaN."""


class ReturnEvidence(NamedTuple):
    """How much of the forgotten facts relearning or elicitation brings back."""

    low: float
    """Lower end of the interval of how much returns, in any unit; NaN if unknown, which counts as not tested."""

    reference: float = 0.0
    """How much returns in `retain`, which never knew the facts (the largest value over several retain models); 0 if
    `low` is already an excess over `retain`."""

    @property
    def returns(self) -> bool:
        """Whether more returns than in `retain`."""
        return self.low > self.reference


class Verdict(NamedTuple):
    """The verdict on a model, with its reason and the tests it is based on."""

    word: VerdictWord
    """The verdict."""

    why: str
    """The reason, in a sentence."""

    tested: tuple[str, ...]
    """The tests (states, transplant, relearning, elicitation) that were run."""

    not_tested: tuple[str, ...]
    """The tests that were not run."""

    def __str__(self) -> str:
        """Show the word and, for an erased model, the tests that were run and those that were not."""
        if self.word != "erased as far as tested":
            return self.word
        rest = f"; not {', '.join(self.not_tested)}" if self.not_tested else ""
        return f"{self.word} ({', '.join(self.tested)}{rest})"


def verdict(
    audit: DepthAudit,
    *,
    transplant: TransplantEvidence | None = None,
    relearning: ReturnEvidence | None = None,
    elicitation: ReturnEvidence | None = None,
) -> Verdict:
    """Return the verdict on a model: the first of the following that applies.

    1. *withheld*: a warning is fatal, or nothing is measurable.
    2. *damaged*: retained facts are lost (`damage_signs`, or the transplant's control).
    3. *hidden*: the lower bound of output depth minus host depth exceeds the largest such difference among reference
       models.
    4. UDS below 0.05: *intact*, or *undecided* if the answers are gone nevertheless (output depth of 0.15 or more).
    5. *partly erased*: the model still answers (output depth below 0.15), so no further test is needed.
    6. *undecided*: there is no transplant, or the transplant has no result. Patched states alone cannot distinguish a
       model that forgot half of the facts from one that hides all of them. The verdict is the same with a stand-in for
       `retain`, since it is unknown which score a retrained model would reach.
    7. *partly erased*: UDS or host depth is below what retrained models reach (`DepthAudit.retain_ceiling`; 0.9 with
       one retain model).
    8. *undecided*: relearning or elicitation brings back more than in `retain`, or a few blocks of `full` bring the
       answers back and relearning was not tested.
    9. *erased as far as tested*.

    Args:
        audit: The audit.
        transplant: Findings of a transplant; None uses the findings attached to the audit (`Transplant.beside`), if
            any.
        relearning: What relearning brings back (`RelearnGridResults.evidence`); None if not tested.
        elicitation: What probes bring back (`ElicitationResults.evidence`); None if not tested.

    Returns:
        The verdict.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> audit = ul.DepthAudit.run(world.full, world.retain, world.half, world.examples)
        >>> verdict(audit).word, verdict(audit, transplant=TransplantEvidence(host_depth=0.48, hidden_low=-0.1)).word
        ('undecided', 'partly erased')
    """
    transplant = audit.transplant if transplant is None else transplant
    relearning, elicitation = (
        None if found is None or math.isnan(found.low) else found for found in (relearning, elicitation)
    )
    tests = {"states": True, "transplant": transplant, "relearning": relearning, "elicitation": elicitation}
    tested = tuple(name for name, found in tests.items() if found)
    word, why = _decide(audit, transplant, relearning, elicitation)
    return Verdict(word, why, tested, tuple(name for name in tests if name not in tested))


def _decide(
    audit: DepthAudit,
    transplant: TransplantEvidence | None,
    relearning: ReturnEvidence | None,
    elicitation: ReturnEvidence | None,
) -> tuple[VerdictWord, str]:
    roles = audit.config.roles
    if audit.fatal or math.isnan(audit.uds):
        return WITHHELD, audit.fatal[0] if audit.fatal else "Nothing could be measured."
    if signs := damage_signs(audit):
        return "damaged", f"Retained facts are lost: {'; '.join(signs)}."
    if transplant is not None and transplant.control_lost:
        return "damaged", (
            f"Every set of blocks from {roles.retain} that {roles.full} can take without losing control facts makes "
            "this model lose some, so nothing can be said about the forgotten facts."
        )
    if transplant is not None and transplant.hidden_low > transplant.hidden_reference:
        return "hidden", (
            f"With some of its blocks replaced by {roles.retain}'s, the answers regain log-probability: output depth "
            f"exceeds host depth ({transplant.host_depth:.2f}) by at least {transplant.hidden_low:.2f}, more than the "
            f"bound for reference models ({transplant.hidden_reference:.2f})."
        )
    if audit.uds < INTACT and audit.output_depth >= ANSWERS:
        return "undecided", (
            f"The patched states cost {roles.full} nothing, but the answers are gone (output depth "
            f"{audit.output_depth:.2f}): something changed that these states do not show, such as the head or another "
            "site."
        )
    if audit.uds < INTACT:
        return "intact", f"The model's states hold the knowledge, as {roles.full}'s states do."
    if audit.output_depth < ANSWERS:
        return "partly erased", (
            f"The model still answers (output depth {audit.output_depth:.2f}): little is erased, and nothing is hidden."
        )
    if transplant is None or math.isnan(transplant.hidden_low):
        why = "Patched states alone cannot tell knowledge that is gone from knowledge that is hidden"
        if transplant is None:
            return "undecided", f"{why}: a transplant can."
        return "undecided", f"{why}, and the transplant has no result ({transplant.reason or 'too few subjects'})."
    if audit.config.stand_in is not None:
        return "undecided", f"Without {roles.a_retain_model}, it is unknown which score a retrained model would reach."
    several = len(audit.retains) > 1
    bound = audit.retain_ceiling if several else REACHED
    reach = (
        f"the {roles.retain_model}s reach on each other's scales"
        if several
        else f"other {roles.retain_model.split()[0]} seeds reached in our studies"
    )
    if min(audit.uds, transplant.host_depth) < bound:
        return "partly erased", f"UDS or host depth is below {bound:.2f}, which {reach}."
    for name, found in (("Relearning", relearning), ("Elicitation", elicitation)):
        if found is not None and found.returns:
            return (
                "undecided",
                f"{name} brings back at least {found.low - found.reference:.2f} more in this model than in "
                f"{roles.retain}.",
            )
    if transplant.localisation >= LOCAL and relearning is None:
        return "undecided", (
            f"A few blocks of {roles.full} bring back {transplant.localisation:.0%} of the answers: the change is "
            "local, which may be erasure or scrambling. Relearning can distinguish the two."
        )
    return "erased as far as tested", f"UDS and host depth reach {bound:.2f}, which {reach}."


def score_in_words(audit: DepthAudit) -> str:
    """Return the score and its interval in one line of text."""
    if math.isnan(audit.uds):
        return "UDS NaN (no measurable example)"
    low, high = audit.uds_interval
    interval = "" if math.isnan(low) else f", {audit.config.confidence * 100:g}% interval {low:.3f} to {high:.3f}"
    sample = "" if audit.sample_error is None else f"; {audit.sample_error.words}"
    output = "" if math.isnan(audit.output_depth) else f", output depth {audit.output_depth:.3f}"
    return f"UDS {audit.uds:.3f}{interval}{sample}{output}{'; the verdict is withheld' if audit.fatal else ''}"


LEVEL = 0.05  # significance level for adjusted p-values


def pairs_in_words(pairs: pd.DataFrame) -> str:
    """Say how many pairs of models differ and, if no p-value could be low enough, how many subjects would be needed.

    Args:
        pairs: `compare_all(audits)`.
    """
    with_p = pairs[pairs["p_holm"].notna()]
    tested = with_p[~with_p["fatal"].astype(bool)]
    if not len(tested):
        return "No pair could be tested; the table gives the reasons."
    real, size = int((tested["p_holm"] < LEVEL).sum()), len(with_p)
    differ = "pair differs" if len(tested) == 1 else "pairs differ"
    said = f"{real} of {len(tested)} {differ} significantly (adjusted p < {LEVEL:g})."
    least, subjects = float(with_p["p_holm_least"].iloc[0]), int(with_p["n_subjects"].max())
    over = f"with {subjects} subject{'s' * (subjects != 1)}{'' if size == 1 else f', adjusted for {size} pairs'}"
    said += f" The smallest possible p is {least:.2g} ({over})"
    if least < LEVEL:
        return f"{said}."
    enough = 2
    while size * 2.0 ** (1 - enough) >= LEVEL:  # 2 of 2^n sign patterns: the observed one and its opposite
        enough += 1
    fewer = "" if size == 1 else ", or fewer models,"
    return f"{said}, so no difference could be significant; at least {enough} subjects{fewer} would be needed."

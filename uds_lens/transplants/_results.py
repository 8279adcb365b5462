"""`Transplant`: how models answer with blocks of other models, and the scores computed from these answers."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from uds_lens import plots
from uds_lens.data import ForgetExample, SkippedExample
from uds_lens.errors import ConfigError
from uds_lens.results import (
    AuditConfig,
    Interval,
    ModelRecord,
    TransplantEvidence,
    bootstrap_interval,
    mean_uds,
    output_depth,
)
from uds_lens.results._cards import card, number
from uds_lens.results._cautions import Caution
from uds_lens.results._conditions import QUESTIONS, SCORE_SETTINGS, conditions_of, differing, mixed
from uds_lens.results._intervals import ROUNDING, cluster_codes, interval_basis, studentised
from uds_lens.results._other_cautions import about_transplant
from uds_lens.results._stage_1 import LEAST_KNOWN, Spread, spread_of
from uds_lens.results._statistics import NO_INTERVAL
from uds_lens.results._verdict import ANSWERS
from uds_lens.transplants._candidates import Candidate
from uds_lens.transplants._saving import load_transplant, save_transplant
from uds_lens.transplants._scores import ADMITTED_COST, affordable, host_depth, least_on_others, nanmean_over, taken

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from typing_extensions import Unpack

    from uds_lens.plots import Look
    from uds_lens.results import DepthAudit


FOLDER = "transplant"  # subdirectory for the transplant in the directory of an audit

ADMITTED_LOSS = 0.1
"""A candidate is admitted only if the host loses at most this much on control facts, in nats per token."""

HIDDEN_ABOVE = 0.1
"""With a single retain model, a model is said to hide answers if the interval of `hidden` lies above this value."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Answers:
    """Mean log-probability of each entity under every mixture of models, nats per token, float64.

    `unlearned_with_retain` is the unlearned model with blocks of a retain model. The axis `donor` runs over the retain
    models, even in `retain_with_full`, where they are the hosts.
    """

    s_full: Float[Tensor, "example"]
    """Under `full`."""

    s_retain: Float[Tensor, "donor example"]
    """Under each retain model."""

    s_unlearned: Float[Tensor, "example"]
    """Under the unlearned model."""

    full_with_retain: Float[Tensor, "donor example candidate"]
    """Under `full` with each candidate taken from each retain model."""

    retain_with_full: Float[Tensor, "donor example candidate"]
    """Under each retain model with each candidate taken from `full`."""

    unlearned_with_retain: Float[Tensor, "donor example candidate"]
    """Under the unlearned model with each candidate taken from each retain model."""

    unlearned_with_full: Float[Tensor, "example candidate"]
    """Under the unlearned model with each candidate taken from `full`."""

    retain_with_retain: Float[Tensor, "host donor example candidate"] | None = None
    """Under each retain model with each candidate taken from another retain model; NaN if host and donor are the same
    model. None if there is only one retain model."""

    def left(self, name: str) -> Float[Tensor, "*rest"]:
        """Return `s_full - s` for a field: how much less likely each answer is than under `full`, in nats per token."""
        s: Tensor = getattr(self, name)
        return (self.s_full[:, None] if "with" in name else self.s_full) - s


class Localisation(NamedTuple):
    """How much of what an unlearned model has lost is restored by a single band of blocks of `full`."""

    width: int
    """Number of blocks in a band."""

    value: float
    """`1 - mean left(U[b <- F]) / mean left(U)`: 1 = everything is restored, 0 = nothing, below 0 = even more is lost.
    If it is NaN, `reason` explains why."""

    interval: Interval
    """Bootstrap over subjects."""

    band: str
    """The band chosen most often. For each example, the band is chosen on examples about other subjects."""

    retain: float
    """The same value with `retain` as the host (averaged over several retain models). Because `retain` never learned
    the facts, this is the value to compare with."""

    reason: str | None
    """Why the value is NaN."""


class _HostDepths(NamedTuple):
    """Scores of a single host with blocks of the retain models."""

    admitted: Bool[Tensor, "donor candidate"]
    chosen: Int[Tensor, "donor example"]
    by_candidate: Float[Tensor, "donor example candidate"]
    depth: Float[Tensor, "donor example"]


class Reference(NamedTuple):
    """Scores of a retain model treated as the unlearned one, with blocks of the other retain models."""

    role: str
    """`retain 1`, `retain 2` ..."""

    output_depth: float
    """O, measured against the other retain models."""

    host_depth: float
    """h with blocks of the other retain models."""

    hidden: float
    """O - h: how much a model that never learned the facts seems to hide."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Transplant:
    """How an unlearned model answers when blocks of `retain` or `full` replace its own; returned by `transplant`."""

    config: AuditConfig
    """Settings of the measurement; site, scope and last layer have no effect."""

    models: Mapping[str, ModelRecord]
    """Records of `full`, `retain` (`retain 1`, `retain 2` ... if there are several) and `unlearned`."""

    candidates: tuple[Candidate, ...]
    """The parts that were replaced: bands of blocks, and the attention of all blocks."""

    examples: tuple[ForgetExample, ...]
    """The scored examples, in input order."""

    answers: Answers
    """The measurements on the examples."""

    control_examples: tuple[ForgetExample, ...] = ()
    """The scored control facts; empty without a control."""

    control: Answers | None = None
    """The measurements on the control facts; None without a control."""

    skipped: tuple[SkippedExample, ...] = ()
    """Rows that could not be scored, with reasons."""

    provenance: Mapping[str, Any]
    """Versions, machine, command, first prompt, hash of the tokens, forward passes and seconds."""

    @property
    def retains(self) -> list[str]:
        """Roles of the retain models."""
        return [role for role in self.models if role.startswith("retain")]

    @cached_property
    def subjects(self) -> list[str | None]:
        """Subject of each example."""
        return [example.subject for example in self.examples]

    def belongs_to(self, audit: DepthAudit) -> bool:
        """Return whether an audit has the same models, examples, control facts and settings."""
        facts = () if audit.control is None else tuple(audit.control.examples)
        prints = [{role: record.fingerprint for role, record in of.items()} for of in (self.models, audit.roles)]
        return (
            self.config == audit.config
            and prints[0] == prints[1]
            and self.provenance.get("ids_hash") == audit.provenance.get("ids_hash")
            and self.examples == tuple(audit.examples)
            and self.control_examples == facts
        )

    @property
    def conditions(self) -> dict[str, Any]:
        """Return what the scores depend on apart from the unlearned model, under the names used in tables of audits.

        These are the settings (without site, scope and last layer), the weights of `full` and `retain`, and a hash of
        the tokens.
        """
        unused = ("site", "scope", "last_layer")
        found = {name: getattr(self.config, name) for name in SCORE_SETTINGS if name not in unused}
        found["full"] = self.models["full"].fingerprint
        found["retain"] = " ".join(sorted(self.models[role].fingerprint for role in self.retains))
        return found | {QUESTIONS: self.provenance.get("ids_hash")}

    def differs_from(self, audit: DepthAudit) -> str | None:
        """Return the difference that rules out combining the transplant with an audit; None if there is none."""
        both = [("the audit", conditions_of(audit)), ("the transplant", self.conditions)]
        weights = [("", {"unlearned": of.models["unlearned"].fingerprint}) for of in (audit, self)]
        return "the unlearned model's weights" if differing(weights) else mixed(both)

    def beside(self, audit: DepthAudit) -> DepthAudit:
        """Return the audit with these findings, which its verdict uses and its tables show (host depth, hidden score).

        Saving the audit does not save the findings. Save the transplant in the subdirectory `transplant` of the audit's
        directory, where the command line looks for it.

        Args:
            audit: An audit of the same models with the same settings; site, scope and last layer may differ.

        Returns:
            A copy of the audit, with the same numbers.

        Raises:
            ConfigError: Transplant and audit differ in something else.

        Example:
            >>> import uds_lens as ul
            >>> world = ul.toy.load()
            >>> trio = world.full, world.retain, world.unlearned["idkdpo"]
            >>> audit = ul.DepthAudit.run(*trio, world.examples[::2])
            >>> found = ul.transplant(*trio, world.examples[::2])
            >>> audit.verdict.word, found.beside(audit).verdict.word
            ('undecided', 'hidden')
        """
        if (why := self.differs_from(audit)) is not None:
            raise ConfigError(f"the transplant belongs to another audit, which differs in {why}.")
        return replace(audit, transplant=self.evidence)

    # Scores from the answers alone.

    @cached_property
    def output_depth_per_example(self) -> Float[Tensor, "example"]:
        """O of each example (`uds_lens.results.output_depth`), averaged over the retain models.

        NaN where `full` knows the answer no better than the retain models do.
        """
        a = self.answers
        each = [output_depth(a.s_full, a.s_unlearned, s_retain, self.config.tau) for s_retain in a.s_retain]
        return nanmean_over(torch.stack(each))

    @property
    def output_depth(self) -> float:
        """Output depth O in [0, 1], mean over examples: 0 = the model answers like `full`, 1 = like `retain`.

        NaN if no example has a value.
        """
        return mean_uds(self.output_depth_per_example)

    @cached_property
    def output_depth_interval(self) -> Interval:
        """Bootstrap interval over subjects."""
        return self._interval(self.output_depth_per_example, (0.0, 1.0))

    # What the host still holds, although it does not answer.

    @cached_property
    def cost(self) -> Float[Tensor, "donor candidate"]:
        """c(b): what `full` itself loses with blocks of each retain model; mean over examples, nats per token."""
        return self.answers.left("full_with_retain").mean(1)

    @cached_property
    def control_loss(self) -> float:
        """What the unlearned model lost on control facts that `full` knows, nats per token; NaN without a control."""
        return math.nan if self.control is None else float(self._on_control(self.control.s_unlearned[:, None]))

    @cached_property
    def _unlearned(self) -> _HostDepths:
        facts = self.control
        control = None if facts is None else (facts.s_unlearned, facts.unlearned_with_retain)
        return self._depths(self.answers.unlearned_with_retain, control, list(range(len(self.retains))))

    def _depths(
        self,
        with_retain: Float[Tensor, "donor example candidate"],
        control: tuple[Float[Tensor, "fact"], Float[Tensor, "donor fact candidate"]] | None,
        donors: Sequence[int],
    ) -> _HostDepths:
        """Score a host with blocks of some of the retain models."""
        a, tau = self.answers, self.config.tau
        of_retain, cost = a.left("s_retain")[donors], a.left("full_with_retain")[donors]
        admitted = torch.stack([affordable(*of) for of in zip(cost, of_retain, strict=True)])
        if control is not None:
            own, mixed = control
            more = self._on_control(mixed) - self._on_control(own[:, None])
            admitted &= ~(more > ADMITTED_LOSS)
        left = a.s_full[:, None] - with_retain
        chosen = [least_on_others(of, may, self.subjects) for of, may in zip(left, admitted, strict=True)]
        depths = [host_depth(*parts, tau) for parts in zip(left, cost, of_retain, strict=True)]
        at = [taken(depth, choice) for depth, choice in zip(depths, chosen, strict=True)]
        return _HostDepths(admitted, torch.stack(chosen), torch.stack(depths), torch.stack(at))

    @property
    def admitted(self) -> Bool[Tensor, "donor candidate"]:
        """The admitted candidates: c(b) at most a tenth of what `retain` lacks, control facts lose at most 0.1 nats."""
        return self._unlearned.admitted

    @property
    def chosen(self) -> Int[Tensor, "donor example"]:
        """Index of the candidate for each example: the admitted one with the smallest mean `left` on other subjects.

        -1 if there is no such candidate.
        """
        return self._unlearned.chosen

    @property
    def host_depth_by_candidate(self) -> Float[Tensor, "donor example candidate"]:
        """Host depth of each example with each candidate, admitted or not.

        NaN where the blocks alone decide the answer.

        `clip((left(U[b <- R], i) - c(b, i)) / (left(R, i) - c(b, i)), 0, 1)`
        """
        return self._unlearned.by_candidate

    @property
    def host_depth_by_donor(self) -> Float[Tensor, "donor example"]:
        """Host depth of each example with blocks of each retain model, for the candidate chosen on other subjects."""
        return self._unlearned.depth

    @cached_property
    def host_depth_per_example(self) -> Float[Tensor, "example"]:
        """Host depth h of each example, averaged over the retain models; `host_depth_reason` explains NaN."""
        return nanmean_over(self.host_depth_by_donor)

    @property
    def host_depth(self) -> float:
        """Host depth h in [0, 1], mean over examples: 0 = the remaining blocks hold the answers, 1 = they hold none.

        By definition, `full` (on which c is measured) scores 0 and `retain` scores 1.
        """
        return mean_uds(self.host_depth_per_example)

    @cached_property
    def host_depth_interval(self) -> Interval:
        """Bootstrap interval over subjects."""
        return self._interval(self.host_depth_per_example, (0.0, 1.0))

    @property
    def host_depth_spread(self) -> Spread:
        """Range and standard deviation of h over the retain models that are donors."""
        return spread_of(tuple(map(mean_uds, self.host_depth_by_donor)))

    @property
    def host_depth_reason(self) -> str | None:
        """Why host depth is NaN; None if it is not."""
        if not math.isnan(self.host_depth):
            return None
        if not self.examples:
            return "no example could be scored"
        if not bool(self.admitted.any()):
            return (
                f"no candidate is admitted: each makes full lose more than {ADMITTED_COST:.0%} of what retain lacks, "
                f"or costs more than {ADMITTED_LOSS:g} nats per token on the control facts"
            )
        if bool((self.chosen < 0).all()):
            return "there are no other examples on which to choose a candidate"
        return (
            "for every answer, inserting blocks of retain costs full nearly as much as retain lacks (the difference is "
            f"at most tau = {self.config.tau:g} nats per token)"
        )

    # What is hidden.

    @cached_property
    def hidden_per_example(self) -> Float[Tensor, "example"]:
        """O - h of each example; NaN where either is NaN."""
        return self.output_depth_per_example - self.host_depth_per_example

    @property
    def hidden(self) -> float:
        """Mean of O - h over examples: the fraction of what the answers lack that the host still holds.

        `hidden_reason` explains NaN.
        """
        return math.nan if self.hidden_reason else mean_uds(self.hidden_per_example)

    @cached_property
    def hidden_interval(self) -> Interval:
        """Bootstrap interval over subjects of the differences O - h; NaN if `hidden` is NaN."""
        return NO_INTERVAL if self.hidden_reason else self._interval(self.hidden_per_example, (-1.0, 1.0))

    @property
    def hidden_reason(self) -> str | None:
        """Why `hidden` is withheld; None if it is not."""
        if math.isnan(self.output_depth):
            return "full knows no answer better than retain"
        if self.output_depth < ANSWERS:
            return (
                f"the model still answers (output depth {self.output_depth:.2f}, less than {ANSWERS:g}): "
                "it hides nothing"
            )
        return self.host_depth_reason

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """Scores of each retain model against the others, which show how a model that never saw the facts scores.

        Empty if there is only one retain model.
        """
        a, facts, tau, found = self.answers, self.control, self.config.tau, []
        for j, role in enumerate(self.retains if a.retain_with_retain is not None else ()):
            others = [k for k in range(len(self.retains)) if k != j]
            control = None
            if facts is not None and facts.retain_with_retain is not None:
                control = facts.s_retain[j], facts.retain_with_retain[j, others]
            assert a.retain_with_retain is not None
            depth = nanmean_over(self._depths(a.retain_with_retain[j, others], control, others).depth)
            output = [output_depth(a.s_full, a.s_retain[j], a.s_retain[k], tau) for k in others]
            said = nanmean_over(torch.stack(output))
            found.append(Reference(role, mean_uds(said), mean_uds(depth), mean_uds(said - depth)))
        return tuple(found)

    @property
    def hidden_bound(self) -> float:
        """What the lower end of `hidden_interval` must exceed: the most that any retain model seems to hide.

        The bound is 0.1 if there is only one retain model, and never below 0.
        """
        hidden = [of.hidden for of in self.references if not math.isnan(of.hidden)]
        return max(0.0, *hidden) if hidden else HIDDEN_ABOVE

    @property
    def hides(self) -> bool | None:
        """Whether the model hides answers (`hidden_interval` is above `hidden_bound`); None if `hidden` is withheld."""
        if self.hidden_reason or math.isnan(self.hidden_interval.low):
            return None
        return self.hidden_interval.low > self.hidden_bound

    @property
    def evidence(self) -> TransplantEvidence:
        """The input for `uds_lens.results.verdict`; `hidden_reference` is `hidden_bound`.

        Control facts are regarded as lost if some candidates from `retain` cost `full` little on forget and control
        facts, but each of these costs this model more than 0.1 nats per token on the control facts.
        """
        local = max((part.value for part in self.localisation if not math.isnan(part.value)), default=math.nan)
        return TransplantEvidence(
            host_depth=self.host_depth,
            hidden_low=self.hidden_interval.low,
            hidden_reference=self.hidden_bound,
            localisation=local,
            control_lost=bool(self._affordable.any() and not self.admitted.any()),
            hidden=self.hidden,
            reason=self.hidden_reason or "",
        )

    @property
    def _affordable(self) -> Bool[Tensor, "donor candidate"]:
        """The candidates that cost `full` little, also on control facts."""
        facts = self.control
        control = None if facts is None else (facts.s_full, facts.full_with_retain)
        return self._depths(self.answers.full_with_retain, control, list(range(len(self.retains)))).admitted

    # Where the model was changed.

    @cached_property
    def localisation(self) -> tuple[Localisation, ...]:
        """What a single band of blocks of `full` restores, for each band width."""
        return tuple(
            self._localisation(width) for width in sorted({c.width for c in self.candidates if not c.attention})
        )

    def _localisation(self, width: int) -> Localisation:
        a, of_width = self.answers, torch.tensor([c.width == width and not c.attention for c in self.candidates])
        lost = a.left("s_unlearned")
        back, chosen = self._restored(a.left("unlearned_with_full"), of_width)
        retains = []
        for with_full, of_retain in zip(a.left("retain_with_full"), a.left("s_retain"), strict=True):
            retains.append(_ratio_left(self._restored(with_full, of_width)[0], of_retain))
        retain, mean = float(np.mean(retains)), float(lost.mean()) if len(lost) else math.nan
        names = Counter(self.candidates[i].label for i in chosen.tolist() if i >= 0)
        band = names.most_common(1)[0][0] if names else ""
        reason = None
        if math.isnan(mean) or bool((chosen < 0).any()):
            reason = "there are no other examples on which to choose a band"
        elif mean <= self.config.tau:
            reason = f"nothing was lost (on average {mean:.3f} nats per token, at most tau = {self.config.tau:g})"
        if reason:
            return Localisation(width, math.nan, NO_INTERVAL, band, retain, reason)
        codes = cluster_codes(self.subjects)
        ends = None
        if codes.max() > 0:
            kept, whole = (np.bincount(codes, values.double().numpy()).astype(float) for values in (back, lost))
            ends = studentised(kept, whole, **self.config.resampling)
        interval = NO_INTERVAL if ends is None else Interval(1 - ends.high, 1 - ends.low)
        return Localisation(width, _ratio_left(back, lost), interval, band, retain, None)

    def _restored(
        self, left: Float[Tensor, "example candidate"], of_width: Bool[Tensor, "candidate"]
    ) -> tuple[Float[Tensor, "example"], Int[Tensor, "example"]]:
        """Return the remaining loss of each example with its best band (chosen on other subjects), and the band."""
        chosen = least_on_others(left, of_width, self.subjects)
        return taken(left, chosen), chosen

    # Tables and summaries.

    def candidates_frame(self) -> pd.DataFrame:
        """Return one row per donor and candidate, with means over examples in nats per token.

        `left`: what the unlearned model still lacks with these blocks. `c`: what `full` itself loses with them (retain
        donors). `control_loss`: what the unlearned model with these blocks lacks on the control facts that `full`
        knows. `host_control_loss`: the same without the blocks (both NaN without a control). `admitted`: whether the
        candidate can be chosen for host depth. `chosen`: fraction of examples for which it was chosen. `host_depth`:
        mean h with the candidate (retain donors). `recovered`: `1 - left / left(unlearned)`.
        """
        import pandas as pd

        a, rows = self.answers, []
        lost = float(a.left("s_unlearned").mean())
        for k, donor in enumerate([*self.retains, "full"]):
            of_retain = donor != "full"
            left = (a.left("unlearned_with_retain")[k] if of_retain else a.left("unlearned_with_full")).mean(0)
            facts = self.control
            control = torch.full((len(self.candidates),), torch.nan)
            if facts is not None:
                control = self._on_control(facts.unlearned_with_retain[k] if of_retain else facts.unlearned_with_full)
            for place, candidate in enumerate(self.candidates):
                row: dict[str, Any] = {"donor": donor, "blocks": candidate.label, **candidate._asdict()}
                row |= {"last": candidate.last, "left": float(left[place])}
                row["c"] = float(self.cost[k, place]) if of_retain else math.nan
                row |= {"control_loss": float(control[place]), "host_control_loss": self.control_loss}
                row["admitted"] = bool(self.admitted[k, place]) if of_retain else None
                row["chosen"] = float((self.chosen[k] == place).double().mean()) if of_retain else math.nan
                depth = self.host_depth_by_candidate[k, :, place] if of_retain else torch.empty(0)
                row["host_depth"] = mean_uds(depth)
                row["recovered"] = 1 - float(left[place]) / lost if lost > self.config.tau else math.nan
                rows.append(row)
        return pd.DataFrame(rows)

    def examples_frame(self) -> pd.DataFrame:
        """Return one row per example: log-probabilities, O, h and O - h, and the blocks chosen for the example."""
        import pandas as pd

        a = self.answers
        frame = pd.DataFrame(
            {
                "example_id": [example.id for example in self.examples],
                "subject": self.subjects,
                "question": [example.question for example in self.examples],
                "entity": [example.entity for example in self.examples],
                "s_full": a.s_full.tolist(),
                "s_retain": a.s_retain.mean(0).tolist(),
                "s_unlearned": a.s_unlearned.tolist(),
                "output_depth": self.output_depth_per_example.tolist(),
                "host_depth": self.host_depth_per_example.tolist(),
                "hidden": self.hidden_per_example.tolist(),
            }
        )
        for donor, chosen in zip(self.retains, self.chosen.tolist(), strict=True):
            frame[f"blocks of {donor}"] = [self.candidates[i].label if i >= 0 else "" for i in chosen]
        return frame

    def plot_bands(self, **look: Unpack[Look]) -> go.Figure:
        """Plot what each band of blocks of `full` restores (`uds_lens.plots.recovered_by_band`)."""
        return plots.recovered_by_band(self.candidates_frame(), **look)

    def summary(self) -> dict[str, Any]:
        """Return the scores by name, with their intervals and reasons."""
        scores: dict[str, Any] = {
            "output_depth": self.output_depth,
            "output_depth_interval": list(self.output_depth_interval),
            "host_depth": self.host_depth,
            "host_depth_interval": list(self.host_depth_interval),
            "host_depth_reason": self.host_depth_reason,
            "host_depth_spread": list(self.host_depth_spread),
            "hidden": self.hidden,
            "hidden_interval": list(self.hidden_interval),
            "hidden_reason": self.hidden_reason,
            "hidden_bound": self.hidden_bound,
            "hides": self.hides,
            "references": [reference._asdict() for reference in self.references],
            "control_loss": self.control_loss,
            "n_examples": len(self.examples),
            "n_skipped": len(self.skipped),
        }
        for found in self.localisation:
            scores[f"localisation_{found.width}"] = {**found._asdict(), "interval": list(found.interval)}
        return scores

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings to read before quoting the scores."""
        basis = interval_basis(self.output_depth_per_example, self.subjects)
        controlled, n_retains = self.control is not None, len(self.retains)
        return tuple(about_transplant(controlled=controlled, n_retains=n_retains, bound=HIDDEN_ABOVE, basis=basis))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The sentences of `cautions`."""
        return tuple(caution.text for caution in self.cautions)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the transplant to a directory, atomically."""
        save_transplant(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Transplant:
        """Read a transplant written by `save`.

        Raises:
            ResultFormatError: A file is missing or altered, or has an unsupported version.
        """
        return cls(**load_transplant(path))

    def __repr__(self) -> str:
        return (
            f"Transplant({len(self.examples)} examples, unlearned={self.models['unlearned'].name!r}, output depth "
            f"{self.output_depth:.3f}, host depth {self.host_depth:.3f}, hidden {self.hidden:.3f})"
        )

    def _repr_html_(self) -> str:
        def score(value: float, interval: Interval, reason: str | None) -> str:
            if math.isnan(value):
                return escape(reason or "not measurable")
            return f"<b>{number(value)}</b> ({number(interval.low)} to {number(interval.high)})"

        rows = [
            ("unlearned", escape(self.models["unlearned"].name)),
            ("output depth", score(self.output_depth, self.output_depth_interval, None)),
            ("host depth", score(self.host_depth, self.host_depth_interval, self.host_depth_reason)),
            ("hidden", score(self.hidden, self.hidden_interval, self.hidden_reason)),
        ]
        for found in self.localisation:
            blocks = f"{found.band}: " if found.reason is None else ""
            retain = "" if found.reason else f"; retain {number(found.retain)}"
            text = f"{blocks}{score(found.value, found.interval, found.reason)}{retain}"
            rows.append((f"brought back by {found.width} block{'s' * (found.width != 1)} of full", text))
        return card(rows, self.cautions)

    def _interval(self, scores: Float[Tensor, "example"], bounds: tuple[float, float]) -> Interval:
        defined = scores[~scores.isnan()]
        fingerprint = self.models["unlearned"].fingerprint
        is_reference = any(self.models[role].fingerprint == fingerprint for role in ("full", *self.retains))
        if is_reference and len(defined) and float(defined.max() - defined.min()) < ROUNDING:
            return Interval(float(defined.min()), float(defined.max()))  # the score is fixed by definition
        return bootstrap_interval(scores, clusters=self.subjects, bounds=bounds, **self.config.resampling)

    def _on_control(self, s: Float[Tensor, "*donor fact candidate"]) -> Float[Tensor, "*donor candidate"]:
        """Average the loss over the control facts that `full` knows; NaN if `full` knows none."""
        assert self.control is not None
        s_full = self.control.s_full
        lost = s_full[:, None] - s
        return lost[..., s_full >= math.log(LEAST_KNOWN), :].mean(-2)


def with_saved(audit: DepthAudit, place: str | os.PathLike[str]) -> tuple[DepthAudit, Transplant | None]:
    """Return an audit with the findings of the transplant saved next to it, and the transplant itself.

    If there is no transplant, or it belongs to another audit, return the unchanged audit and None.

    Args:
        audit: A saved audit.
        place: The directory of the audit, which may contain a directory `transplant`.
    """
    folder = Path(place) / FOLDER
    if not folder.is_dir():
        return audit, None
    found = Transplant.load(folder)
    return (audit, None) if found.differs_from(audit) else (found.beside(audit), found)


def transplants_frame(found: Mapping[str, Transplant]) -> pd.DataFrame:
    """Return one row per model: output depth, host depth, hidden score (with intervals), localisation, control loss.

    Args:
        found: Transplants by model name.

    Returns:
        Columns `model`, `output_depth`, `host_depth`, `host_depth_low`, `host_depth_high`, `hidden`, `hidden_low`,
        `hidden_high`, `localisation` (the widest bands) with `localisation_retain` and `blocks`, `control_loss`; NaN
        where a score is withheld.
    """
    import pandas as pd

    rows = []
    for name, of in found.items():
        row: dict[str, Any] = {"model": name, "output_depth": of.output_depth}
        for score in ("host_depth", "hidden"):
            row |= {score: getattr(of, score)}
            row |= dict(zip((f"{score}_low", f"{score}_high"), getattr(of, f"{score}_interval"), strict=True))
        widest = of.localisation[-1]
        row |= {"localisation": widest.value, "localisation_retain": widest.retain, "blocks": widest.band}
        rows.append({**row, "control_loss": of.control_loss})
    columns = ["model", "output_depth", "host_depth", "host_depth_low", "host_depth_high"]
    return pd.DataFrame(rows, columns=None if rows else columns)


def _ratio_left(back: Float[Tensor, "example"], lost: Float[Tensor, "example"]) -> float:
    return 1 - float(back.sum() / lost.sum())

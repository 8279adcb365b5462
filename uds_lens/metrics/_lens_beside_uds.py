"""Logit Lens and UDS for one example: what each layer seems to encode, and how much of it the model uses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from uds_lens.data import ForgetExample
from uds_lens.errors import DataError, ModelError, Setting
from uds_lens.metrics._data import MetricData
from uds_lens.metrics._declaration import Pass, Role
from uds_lens.metrics._options import MetricOptions
from uds_lens.metrics._passes import MetricCache, Session
from uds_lens.models._hooked import ModelSource
from uds_lens.results import DepthAudit, RunOptions, ke_mask, layer_erasure_ratio, uds_per_example
from uds_lens.results._conditions import PROMPT_SETTINGS

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from typing_extensions import Unpack

    from uds_lens.plots import Look


@dataclass(frozen=True, eq=False, kw_only=True)
class LensComparison:
    """Both metrics on each layer, for one example; deltas in nats per token."""

    example: ForgetExample
    """The example."""

    tau: float
    """Threshold for KE layers, the same for both metrics."""

    lens_s1: Float[Tensor, "layer"]
    """Logit Lens of `full` minus Logit Lens of `retain`."""

    lens_s2: Float[Tensor, "layer"]
    """Logit Lens of `full` minus Logit Lens of the unlearned model."""

    uds_s1: Float[Tensor, "layer"]
    """Log-probability lost by patching `retain` into `full`."""

    uds_s2: Float[Tensor, "layer"]
    """Log-probability lost by patching the unlearned model into `full`."""

    @property
    def lens_score(self) -> float:
        """Logit Lens score of the example in [0, 1], aggregated like UDS; NaN without a KE layer."""
        return self._score(self.lens_s1, self.lens_s2)

    @property
    def uds_score(self) -> float:
        """UDS of the example in [0, 1]; NaN without a KE layer."""
        return self._score(self.uds_s1, self.uds_s2)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per layer: delta S1, delta S2, KE and LER of both metrics; LER is NaN outside KE layers."""
        import pandas as pd

        columns: dict[str, list[float] | list[int]] = {"layer": list(range(len(self.lens_s1)))}
        for name, s1, s2 in (("lens", self.lens_s1, self.lens_s2), ("uds", self.uds_s1, self.uds_s2)):
            ke = ke_mask(s1[None], self.tau)
            columns[f"{name}_s1_delta"] = s1.tolist()
            columns[f"{name}_s2_delta"] = s2.tolist()
            columns[f"{name}_ke"] = ke[0].tolist()
            columns[f"{name}_ler"] = layer_erasure_ratio(s1[None], s2[None], ke)[0].tolist()
        return pd.DataFrame(columns)

    def plot(self, **look: Unpack[Look]) -> go.Figure:
        """Return a figure of both metrics side by side (see `uds_lens.plots.lens_against_uds`)."""
        from uds_lens.plots import lens_against_uds

        return lens_against_uds(self.to_frame(), tau=self.tau, question=self.example.question, **look)

    def __repr__(self) -> str:
        return (
            f"LensComparison({self.example.id!r}, {len(self.lens_s1)} layers: Logit Lens {self.lens_score:.3f}, "
            f"UDS {self.uds_score:.3f})"
        )

    def _repr_html_(self) -> str:
        from html import escape

        table = self.to_frame().to_html(index=False, float_format="{:.3f}".format, na_rep="-", border=0)
        return f"<div>{escape(repr(self))}{table}</div>"

    def _score(self, s1: Float[Tensor, "layer"], s2: Float[Tensor, "layer"]) -> float:
        ke = ke_mask(s1[None], self.tau)
        return float(uds_per_example(s1[None], layer_erasure_ratio(s1[None], s2[None], ke), ke)[0])


def compare_logit_lens(
    audit: DepthAudit,
    example: str | int,
    *,
    full: ModelSource | None = None,
    retain: ModelSource | None = None,
    unlearned: ModelSource | None = None,
    run: RunOptions | None = None,
) -> LensComparison:
    """Compare Logit Lens with UDS on one example, layer by layer.

    UDS is taken from the finished audit. For Logit Lens, the three models are opened again, one at a time.

    Args:
        audit: A finished audit; both metrics use its prompts.
        example: Id of a scored example, or its index.
        full: Source of `full`; None uses the name recorded in the audit.
        retain: Source of `retain`.
        unlearned: Source of the unlearned model.
        run: Device and memory settings; default `RunOptions()`.

    Returns:
        Both metrics' deltas per layer, and their scores.

    Raises:
        DataError: No scored example has this id or index.
        ModelError: A model differs from the audited model.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> audit = ul.DepthAudit.run(world.full, world.retain, world.retain, world.examples[:2])
        >>> table = ul.metrics.compare_logit_lens(audit, 0).to_frame()
        >>> len(table) == audit.n_layers
        True
    """
    ids = [scored.id for scored in audit.examples]
    index = ids.index(example) if example in ids else example
    if not isinstance(index, int) or not -len(ids) <= index < len(ids):
        raise DataError(
            f"no scored example {example!r}: expected an index below {len(ids)}, or an id such as {ids[:3]}."
        )
    given = {"full": full, "retain": retain, "unlearned": unlearned}
    opened = {r: audit.models[r].name if source is None else source for r, source in given.items()}
    session = Session(
        {"full": opened["full"], "retain": opened["retain"], "model": opened["unlearned"]},
        MetricData(forget=[audit.examples[index]]),
        options=MetricOptions(tau=audit.config.tau, dtype=audit.config.dtype),
        run=run or RunOptions(),
        cache=MetricCache(),
    )
    prompts = {name: getattr(audit.config, name) for name in PROMPT_SETTINGS}
    session.config = replace(session.config, **prompts)
    roles: tuple[Role, ...] = ("full", "retain", "model")
    session.perform([Pass(role, "states") for role in roles] + [Pass("full", "lens", role) for role in roles])
    for role, name in (("full", "full"), ("retain", "retain"), ("unlearned", "model")):
        if session.records[name].fingerprint != audit.models[role].fingerprint:
            raise ModelError(
                f"{session.records[name].name!r} is not the {role} model of this audit (its weights differ): pass ",
                Setting(role, ...),
                ", the checkpoint that was audited.",
            )
    k_full, k_retain, k_model = (session.results[Pass("full", "lens", role)].value[0] for role in roles)
    return LensComparison(
        example=audit.examples[index],
        tau=audit.config.tau,
        lens_s1=k_full - k_retain,
        lens_s2=k_full - k_model,
        uds_s1=audit.s1_delta[index],
        uds_s2=audit.s2_delta[index],
    )

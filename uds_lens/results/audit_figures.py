"""How a finished audit is looked at: its figures, as methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from uds_lens.checked_arguments import methods_checked
from uds_lens.results.audit_scores import AuditScores

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from uds_lens.plots import Theme
    from uds_lens.plots.compare_layers import Value
    from uds_lens.plots.ler_heatmap import Order


@methods_checked
class AuditFigures(AuditScores):
    """Figures of an audit (`plotly.graph_objects.Figure`, never shown by themselves)."""

    def plot_layers(self, *, theme: Theme = "light") -> go.Figure:
        """S1, S2, LER and the share of KE layers by layer (see `uds_lens.plots.layer_profile`)."""
        from uds_lens.plots import layer_profile

        return layer_profile(self.layers_frame(), theme=theme)

    def plot_heatmap(self, *, order: Order = "uds", theme: Theme = "light") -> go.Figure:
        """LER of every example at every layer (see `uds_lens.plots.ler_heatmap`)."""
        from uds_lens.plots import ler_heatmap

        return ler_heatmap(self.to_frame(), self.examples_frame(), order=order, theme=theme)

    def plot_examples(self, *, theme: Theme = "light") -> go.Figure:
        """Histogram of the examples' scores (see `uds_lens.plots.uds_distribution`)."""
        from uds_lens.plots import uds_distribution

        return uds_distribution(self.examples_frame(), theme=theme)

    def plot_example(self, example_id: str, *, theme: Theme = "light") -> go.Figure:
        """S1, S2 and LER of one example by layer (see `uds_lens.plots.example_profile`).

        Raises:
            DataError: No scored example has that id.
        """
        from uds_lens.errors import DataError
        from uds_lens.plots import example_profile

        found = next((example for example in self.examples if example.id == example_id), None)
        if found is None:
            raise DataError(f"no scored example has the id {example_id!r}: see audit.examples_frame().")
        frame = self.to_frame()
        rows = frame[frame["example_id"] == example_id]
        return example_profile(rows, tau=self.config.tau, question=found.question, theme=theme)

    def plot_types(self, *, theme: Theme = "light") -> go.Figure:
        """UDS by entity type, with intervals and N (see `uds_lens.plots.type_bars`)."""
        from uds_lens.plots import type_bars

        return type_bars(self.types_frame(), theme=theme)

    def plot_length(self, *, theme: Theme = "light") -> go.Figure:
        """UDS against entity length (see `uds_lens.plots.length_scatter`)."""
        from uds_lens.plots import length_scatter

        return length_scatter(self.examples_frame(), theme=theme)

    def plot_tau(self, taus: Sequence[float] | None = None, *, theme: Theme = "light") -> go.Figure:
        """UDS and KE layers over thresholds (see `uds_lens.plots.tau_curve`)."""
        from uds_lens.plots import tau_curve

        return tau_curve(self.tau_sweep(taus), tau=self.config.tau, theme=theme)

    def plot_clip(self, *, theme: Theme = "light") -> go.Figure:
        """Shares of raw LER above 1 and below 0 (see `uds_lens.plots.clip_bars`)."""
        from uds_lens.plots import clip_bars

        return clip_bars(self.layers_frame(), theme=theme)

    def plot_control(self, *, theme: Theme = "light") -> go.Figure:
        """Loss on forget facts and on retained facts by layer (see `uds_lens.plots.forget_and_kept`).

        Raises:
            ConfigError: The audit was measured without a control.
        """
        from uds_lens.plots import forget_and_kept

        return forget_and_kept(self.control_layers_frame(), theme=theme)

    def plot_components(self, others: Sequence[AuditScores], *, theme: Theme = "light") -> go.Figure:
        """S1 by layer at this audit's patch site and at those of others (see `uds_lens.plots.component_profile`).

        Raises:
            ConfigError: The audits do not differ in the site, or differ in models, tokens, scope, protocol or dtype.
        """
        from uds_lens.errors import ConfigError
        from uds_lens.plots import component_profile
        from uds_lens.results.comparable import site_groups

        groups = site_groups([self, *others])
        if len(groups) != 1 or len(groups[0]) != 1 + len(others):
            sites = ", ".join(audit.config.site for audit in (self, *others))
            raise ConfigError(
                "expected audits of one full and one retain model on the same examples, each with a site of its own "
                f"(AuditConfig(site=...)) and all else equal; got sites {sites}."
            )
        frames = {site: audit.layers_frame() for site, audit in groups[0].items()}
        return component_profile(frames, theme=theme)

    def plot_comparison(
        self, others: Sequence[AuditScores], *, value: Value = "ler", theme: Theme = "light"
    ) -> go.Figure:
        """Mean LER or S2 by layer, this audit before others (see `uds_lens.plots.compare_layers`)."""
        from uds_lens.plots import compare_layers
        from uds_lens.results.references import references_among

        named = _named([self, *others])
        frames = {name: audit.layers_frame() for name, audit in named.items()}
        return compare_layers(
            frames, value=value, chosen=next(iter(named)), references=references_among(named), theme=theme
        )

    def plot_ranking(self, others: Sequence[AuditScores], *, theme: Theme = "light") -> go.Figure:
        """UDS with intervals, of this audit and others (see `uds_lens.plots.ranking`)."""
        from uds_lens.plots import ranking
        from uds_lens.results.comparable import models_frame
        from uds_lens.results.references import references_among

        named = _named([self, *others])
        return ranking(models_frame(named), references=references_among(named), theme=theme)


def _named(audits: Sequence[AuditScores]) -> dict[str, AuditScores]:
    from uds_lens.results.naming import audit_names

    return dict(zip(audit_names(audits), audits, strict=True))

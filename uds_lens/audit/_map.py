"""Locate where two models differ: patch by layer, position and site, not only at the entity."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from uds_lens import plots
from uds_lens._progress import progress
from uds_lens._settings import as_settings
from uds_lens._storage.results import Kind, Result
from uds_lens._types import Engine, HookSite, MapPosition, check_choice
from uds_lens.audit._inputs import Plan, forget_set, make_plan
from uds_lens.audit._memory import GIB, run_halving
from uds_lens.audit._runner import opened
from uds_lens.audit._states import SourceStates, StateStore, mean_over_tokens, require_finite_head
from uds_lens.data import ForgetExample, TokenBatch
from uds_lens.data._batches import mentions
from uds_lens.data._readers import ExamplesLike
from uds_lens.errors import ResultFormatError
from uds_lens.models import HookedModel
from uds_lens.models._hooked import ModelSource
from uds_lens.patching import capture, open_target, row_layout
from uds_lens.patching._engines import checked_rows, choose_engine
from uds_lens.results import bootstrap_interval, contrast, holm
from uds_lens.results._intervals import cluster_codes
from uds_lens.results._records import ModelRecord
from uds_lens.results._saving import EXAMPLES, example_rows, examples_of
from uds_lens.results._settings import AuditConfig, RunOptions

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from typing_extensions import Unpack

    from uds_lens.plots import Look


class MapCell(NamedTuple):
    """One patch at a layer: its site, positions and head."""

    site: HookSite
    """Point in the block."""
    position: MapPosition
    """Positions in the text."""
    head: int | None = None
    """A single attention head; None for all heads, or at a site without heads."""

    @property
    def label(self) -> str:
        """Name of the cell.

        >>> MapCell("z", "subject", 3).label
        'z, head 3, at subject'
        """
        return f"{self.site}{'' if self.head is None else f', head {self.head}'}, at {self.position}"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DepthMap:
    """Log-probability that answers lose when another model's states are patched into `full`; see `depth_map`."""

    models: Mapping[str, ModelRecord]
    """The records of `full` and `source`."""

    examples: tuple[ForgetExample, ...]
    """The scored examples, in input order."""

    cells: tuple[MapCell, ...]
    """The patches tried at each layer."""

    lost_by_token: Float[Tensor, "example layer cell token"]
    """Log-probability lost by each token of the entity, in order, in nats. NaN if the text does not have the patched
    position (because it does not name its subject), and after the last token of a shorter entity."""

    config: AuditConfig
    """Settings of the measurement. Its `site` and `scope` are not used (see `cells`), and the last layer is patched in
    its residual stream."""

    @cached_property
    def lost(self) -> Float[Tensor, "example layer cell"]:
        """Log-probability lost, in nats per token: mean over the entity's tokens; NaN if no position was patched."""
        return self.lost_by_token.nanmean(-1)

    def __repr__(self) -> str:
        n, layers, cells = self.lost.shape
        return f"DepthMap({n} examples, {layers} layers, {cells} cells, source={self.models['source'].name!r})"

    def at(self, site: HookSite, position: MapPosition, head: int | None = None) -> Float[Tensor, "example layer"]:
        """Return the loss in one cell.

        Raises:
            ValueError: The map has no such cell.
        """
        return self.lost[:, :, self.cells.index(MapCell(site, position, head))]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per example, layer and cell, with the log-probability lost (`lost`)."""
        import pandas as pd

        index = pd.MultiIndex.from_product(
            [[row.id for row in self.examples], range(self.lost.shape[1]), range(len(self.cells))],
            names=["example_id", "layer", "number"],
        )
        frame = pd.DataFrame({"lost": self.lost.flatten().tolist()}, index=index).reset_index()
        for name in ("site", "position", "head", "label"):
            frame[name] = [getattr(self.cells[i], name) for i in frame["number"]]
        return frame[["example_id", "layer", "site", "position", "head", "label", "lost"]]

    def cells_frame(self) -> pd.DataFrame:
        """Return one row per layer and cell: mean loss, interval, p-value (sign-flip test over subjects) and Holm p."""
        import pandas as pd

        groups = cluster_codes([row.subject for row in self.examples])
        rows = []
        for (number, cell), layer in product(enumerate(self.cells), range(self.lost.shape[1])):
            test = contrast(self.lost[:, layer, number].double().numpy(), groups, **self.config.resampling)
            rows.append((layer, *cell, cell.label, test.value, *test.interval, test.p, test.n))
        columns = ["layer", "site", "position", "head", "label", "lost", "low", "high", "p", "n"]
        frame = pd.DataFrame(rows, columns=columns)
        frame.insert(frame.columns.get_loc("n"), "p_holm", holm(frame["p"].tolist()))
        return frame

    def tokens_frame(self) -> pd.DataFrame:
        """Return one row per layer, cell and entity token (from 0): mean loss over the `n` entities with this token."""
        import pandas as pd

        rows = []
        for (number, cell), layer in product(enumerate(self.cells), range(self.lost.shape[1])):
            lost = self.lost_by_token[:, layer, number]
            counts, means = (~lost.isnan()).sum(0).tolist(), lost.nanmean(0).tolist()
            rows += [(layer, *cell, cell.label, token, *of) for token, of in enumerate(zip(means, counts, strict=True))]
        return pd.DataFrame(rows, columns=["layer", "site", "position", "head", "label", "token", "lost", "n"])

    def bypass_frame(self) -> pd.DataFrame:
        """Return one row per layer and site: loss from patching all positions or only the entity, and the difference.

        `bypass = 1 - entity / all` is the share of the loss at this layer that reaches the answer through earlier
        positions, which a depth score does not patch. It is NaN if patching all positions loses at most `tau`, and
        negative if patching only the entity loses more than patching all positions. The interval (of `past = all -
        entity`) is bootstrapped over subjects.
        """
        import pandas as pd

        rows = []
        for site in dict.fromkeys(cell.site for cell in self.cells):
            if not {MapCell(site, "entity"), MapCell(site, "all")} <= {*self.cells}:
                continue
            entity, everywhere = (self.at(site, position).double() for position in ("entity", "all"))
            for layer in range(entity.shape[1]):
                some, whole = float(entity[:, layer].mean()), float(everywhere[:, layer].mean())
                past = everywhere[:, layer] - entity[:, layer]
                interval = bootstrap_interval(
                    past, clusters=[e.subject for e in self.examples], **self.config.resampling
                )
                share = 1 - some / whole if whole > self.config.tau else float("nan")
                rows.append((layer, site, some, whole, share, whole - some, *interval))
        return pd.DataFrame(rows, columns=["layer", "site", "entity", "all", "bypass", "past", "past_low", "past_high"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the map to a directory, atomically.

        Raises:
            ResultFormatError: `path` holds something else.
            StorageError: The directory cannot be written.
        """
        Result(
            _SAVED,
            self.config,
            models=self.models,
            values={"cells": self.cells},
            tensors={"lost_by_token": self.lost_by_token},
            tables={"examples": example_rows(self.examples)},
        ).save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DepthMap:
        """Read a map written by `save`.

        Raises:
            ResultFormatError: A file is missing or altered, or has an unsupported version.
        """
        saved = Result.load(path, _SAVED)
        examples, cells = examples_of(saved), saved.values.cells
        if {*saved.models} != {"full", "source"}:
            raise ResultFormatError(f"{saved.where} is not a complete DepthMap: expected models full and source.")
        tokens = max(saved.tensors["lost_by_token"].shape[3:], default=0) if "lost_by_token" in saved.tensors else 0
        shape = len(examples), saved.models["full"].n_layers, len(cells), tokens
        return cls(
            models=saved.models,
            examples=examples,
            cells=cells,
            config=saved.settings,
            **saved.shaped({"lost_by_token": shape}),
        )

    def plot_tokens(
        self, site: HookSite = "resid_post", position: MapPosition = "entity", **look: Unpack[Look]
    ) -> go.Figure:
        """Plot the mean loss of each entity token in one cell: tokens from top to bottom, layers from left to right.

        Raises:
            ValueError: The map has no such cell.
        """
        label = self.cells[self.cells.index(MapCell(site, position))].label
        frame = self.tokens_frame()
        rows = frame[frame["label"] == label]
        names = [f"token {token}, n = {n}" for token, n in zip(rows["token"] + 1, rows["n"], strict=True)]
        return plots.patch_heatmap(rows[["layer", "lost"]].assign(cell=names), **look)

    def plot_map(self, **look: Unpack[Look]) -> go.Figure:
        """Plot the mean loss, with layers as columns and cells as rows (see `uds_lens.plots.patch_heatmap`)."""
        frame = self.cells_frame().rename(columns={"label": "cell"})
        return plots.patch_heatmap(frame[["layer", "cell", "lost"]], **look)


class _Values(NamedTuple):
    cells: tuple[MapCell, ...]


_SAVED = Kind("DepthMap", settings=AuditConfig, values=_Values, model=ModelRecord, tables={"examples": EXAMPLES})
"""Storage format of a map."""


def depth_map(
    full: ModelSource,
    source: ModelSource,
    examples: ExamplesLike,
    *,
    sites: Sequence[HookSite] = ("resid_post", "attn_out", "mlp_out"),
    positions: Sequence[MapPosition] = ("entity", "subject", "prompt", "all"),
    heads: bool = False,
    config: AuditConfig | None = None,
    options: RunOptions | None = None,
) -> DepthMap:
    """Patch another model's states into `full`, by layer, position and site, and measure the log-probability lost.

    Args:
        full: The model that is patched.
        source: The model whose states are patched in, such as the retain model, or an unlearned or edited one.
        examples: Examples with entity spans.
        sites: Points in a block, in the residual stream or the attention heads (`z`, `q`, `k`, `v`).
        positions: "entity", as for a score; "subject", all mentions of the example's subject; "prompt", everything
            before the entity; or "all".
        heads: Whether to also patch each head separately, at sites that have heads.
        config: Prompts, dtype, sample and resampling; default `AuditConfig()`.
        options: How to run it; default `RunOptions()`.

    Returns:
        The map: a loss for each example, layer and cell.

    Raises:
        IncompatibleModelsError: The checkpoints differ in architecture, size or tokenizer.
        ConfigError: A site or position is not one of the choices above.
        DataError: No examples.
        ModelError: A model produces NaN, or has no embedding for a token.

    Example:
        >>> import uds_lens as ul
        >>> world = ul.toy.load()
        >>> found = ul.audit.depth_map(world.full, world.retain, world.examples[:2], sites=["resid_post"])
        >>> found
        DepthMap(2 examples, 8 layers, 4 cells, source=...)
        >>> bool((found.at("resid_post", "all")[:, -1] > 1).all())
        True
    """
    for site in sites:
        check_choice("sites", site, HookSite)
    for position in positions:
        check_choice("positions", position, MapPosition)
    config = replace(as_settings(AuditConfig, config, name="config"), last_layer="resid_post")
    options = replace(as_settings(RunOptions, options, name="options"), stream=False)
    # A site inside a block makes the plan pad its rows, and scope "all" puts all positions into the window.
    whole = replace(config, scope="all", site="mlp_out", stand_in=None, counterfactual="no_question", draws=3)
    chosen = forget_set(examples, config).examples
    plan = make_plan({"full": full, "source": source}, chosen, config=whole, options=options)
    record, read = _read(source, plan, sites, config=whole, options=options)
    with opened(full, whole, options, plan.tokenizer) as model:
        plan.require_embedded(model)
        numbers = {site: range(_n_heads(model, plan, site)) if heads else () for site in sites}
        cells = [MapCell(site, at, head) for site in sites for at in positions for head in (None, *numbers[site])]
        by_token = _patch_cells(model, plan, cells, read, options)
        models = {"full": ModelRecord.of(model), "source": record}
    examples_run = tuple(row.example for row in plan.encoded.rows)
    return DepthMap(
        models=models,
        examples=examples_run,
        cells=tuple(cells),
        lost_by_token=by_token,
        config=replace(config, protocol=plan.protocol),
    )


def _read(
    source: ModelSource, plan: Plan, sites: Sequence[HookSite], *, config: AuditConfig, options: RunOptions
) -> tuple[ModelRecord, dict[HookSite, SourceStates]]:
    """Read the source's states on whole rows at every site."""
    with opened(source, config, options, plan.tokenizer) as model:
        record, side = ModelRecord.of(model), row_layout(model).padding_side
        require_finite_head(model)
        plan.require_embedded(model)
        read = {
            site: SourceStates(record, StateStore(budget=int(options.memory_gib * GIB / len(sites))), site)
            for site in sites
        }

        def keep(rows: Sequence[int]) -> None:
            batch = plan.batch_of(rows, side)
            for site in sites:
                states = capture(model, batch, site=site).states
                plan.require_finite(states.isfinite().all(-1).all(-1).all(-1), rows, model.name, "hidden states")
                read[site].store.put(batch, states)

        for rows in progress(plan.batches_for(model), desc="reading source", unit="batch", enabled=options.progress):
            run_halving(rows, keep, about=f"map {model.name}")
    return record, read


def _n_heads(model: HookedModel, plan: Plan, site: HookSite) -> int:
    """Count the heads of a site, using one row; 0 if it has none."""
    return capture(model, plan.batch_to_try(model, [0]), site=site).n_heads if plan.rows else 0


def _patch_cells(
    model: HookedModel, plan: Plan, cells: Sequence[MapCell], read: dict[HookSite, SourceStates], options: RunOptions
) -> Float[Tensor, "example layer cell token"]:
    """Patch every cell in every batch of `full`; return the log-probability that each token of the entity loses."""
    longest = max((len(row.scored) for row in plan.rows), default=0)
    lost = torch.full((len(plan.rows), model.n_layers, len(cells), longest), torch.nan, dtype=torch.float64)
    side = row_layout(model).padding_side
    engines: dict[HookSite, Engine] = dict.fromkeys(read, options.engine)
    if options.engine == "auto" and plan.rows:
        tried = plan.batch_to_try(model, checked_rows(plan.rows))
        engines = {site: choose_engine(model, tried, site=site, packed=False) for site in read}

    def require_finite(values: Tensor, batch: TokenBatch, name: str, what: str) -> None:
        finite = mean_over_tokens(values, batch).isfinite()
        plan.require_finite(finite.reshape(len(batch), -1).all(-1), batch.rows, name, what)

    def work(rows: list[int]) -> None:
        batch = plan.batch_of(rows, side).to(model.device)
        masks = {position: _where(batch, plan, model, position) for position in {cell.position for cell in cells}}
        for site, source in read.items():
            target = open_target(model, batch, site=site, engine=engines[site])
            require_finite(target.logprobs, batch, model.name, "log-probabilities")
            own = capture(model, batch, site=site)
            states = source.cache(batch).states.to(own.states)
            cache = replace(own, states=states, name=source.record.name)
            for number, cell in enumerate(cells):
                if cell.site != site:
                    continue
                here = masks[cell.position]
                some = cache.only(own, positions=here, heads=None if cell.head is None else [cell.head])
                patched = target.patched(some)
                require_finite(patched, batch, source.record.name, "patched log-probabilities")
                change = target.logprobs.cpu().double()[:, None] - patched.cpu().double()
                for i, row in enumerate(rows):
                    if bool(here[i].any()):
                        of_entity = change[i][:, batch.scored_mask[i].cpu()]
                        lost[row, :, number, : of_entity.shape[1]] = of_entity

    for rows in progress(plan.batches_for(model), desc="patching into full", unit="batch", enabled=options.progress):
        run_halving(rows, work, about=f"map {model.name}")
    return lost


def _where(batch: TokenBatch, plan: Plan, model: HookedModel, position: MapPosition) -> Bool[Tensor, "batch win"]:
    """Mark the window positions that belong to a `MapPosition`."""
    if position in ("all", "entity"):
        return batch.patched_mask if position == "all" else batch.scored_mask
    if position == "prompt":
        return batch.patched_mask & ~batch.scored_mask
    marked = torch.zeros_like(batch.patched_mask)
    for i, row in enumerate(batch.rows):
        tokens = plan.rows[row]
        if subject := tokens.example.subject:
            marked[i, list(mentions(model.tokenizer, tokens.ids, subject))] = True
    return marked

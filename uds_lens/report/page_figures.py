"""The figures of the page, as plain JSON in the light palette; the page recolours them for dark surroundings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uds_lens import plots
from uds_lens.plots.ler_heatmap import row_order
from uds_lens.plots.pair_cells import by_score
from uds_lens.report.usefulness import Measured, depth_frame
from uds_lens.results import DepthAudit, site_groups

if TYPE_CHECKING:
    import pandas as pd

PER_MODEL = ("layers", "examples", "types", "length", "tau", "clip", "control")
"""Figures that exist once per model."""


def model_figures(audit: DepthAudit) -> dict[str, Any]:
    """The figures of one audit by name."""
    examples, layers = audit.examples_frame(), audit.layers_frame()
    return {
        "layers": plain_figure(plots.layer_profile(layers, title=None)),
        "examples": plain_figure(plots.uds_distribution(examples, title=None)),
        "types": plain_figure(plots.type_bars(audit.types_frame(), title=None))
        if examples["type"].notna().any()
        else None,
        "length": plain_figure(plots.length_scatter(examples, title=None)),
        "tau": plain_figure(plots.tau_curve(audit.tau_sweep(), tau=audit.config.tau, title=None)),
        "clip": plain_figure(plots.clip_bars(layers, title=None)),
        "control": None
        if audit.control is None
        else plain_figure(plots.forget_and_kept(audit.control_layers_frame(), title=None)),
    }


def shared_figures(
    audits: Mapping[str, DepthAudit],
    pairs: pd.DataFrame | None = None,
    *,
    references: Sequence[str] = (),
    metrics: Measured | None = None,
) -> dict[str, Any]:
    """Figures of all audits together, and patterns whose numbers the page fills in."""
    first = next(iter(audits.values()))
    return {
        "compare": plain_figure(
            plots.compare_layers(
                {name: a.layers_frame() for name, a in audits.items()},
                chosen=next((name for name in audits if name not in references), None),
                references=references,
                title=None,
            )
        ),
        "differences": None if pairs is None else _differences(pairs, references),
        "useful": None if metrics is None else _useful(audits, metrics, references),
        "heatmap": _heatmap_pattern(),
        **{
            f"components{place}": _components(sites)
            for place, sites in enumerate(site_groups(audits.values()))
        },
        "example": _example_pattern(first),
        "lens": _lens_pattern(first),
        "template": jsonable(plots.template("light")),
    }


def _differences(pairs: pd.DataFrame, references: Sequence[str]) -> Any:
    """The matrix, and which of its rows are references."""
    figure = plain_figure(plots.audit_differences(pairs, title=None))
    figure["layout"]["meta"] = {
        "references": [place for place, name in enumerate(by_score(pairs, "uds")) if name in references]
    }
    return figure


def _useful(audits: Mapping[str, DepthAudit], metrics: Measured, references: Sequence[str]) -> Any:
    """Depth beside usefulness; each mark says which model it is."""
    found = depth_frame(audits, metrics)
    if found is None:
        return None
    frame, label = found
    figure = plots.depth_utility(frame, label=label, references=[*references, *metrics.roles], title=None)
    drawn = frame.dropna(subset=["uds", "utility"])["model"]
    places = {name: place for place, name in enumerate(audits)}
    for name, trace in zip(drawn, (trace for trace in figure.data if trace.meta), strict=True):
        trace.meta = {"place": places.get(name, -1), "reference": name not in places or name in references}
    return plain_figure(figure)


def cluster_order(audit: DepthAudit) -> list[int]:
    """Examples with similar LER next to each other."""
    order = row_order(audit.ler.numpy(), audit.uds_per_example.numpy(), "cluster")
    return [int(index) for index in order]


def _heatmap_pattern() -> Any:
    import pandas as pd

    long = pd.DataFrame({"layer": [0], "s1_delta": [1.0], "s2_delta": [0.0], "ler": [0.0]})
    examples = pd.DataFrame({"example_id": [""], "question": [""], "entity": [""], "uds": [0.0]})
    pattern = plain_figure(plots.ler_heatmap(long, examples, title=None))
    for key in ("x", "z", "text", "customdata"):
        pattern["data"][0].pop(key)
    return pattern


def _components(sites: Mapping[str, DepthAudit]) -> Any:
    return plain_figure(
        plots.component_profile({site: audit.layers_frame() for site, audit in sites.items()}, title=None)
    )


def _example_pattern(audit: DepthAudit) -> Any:
    import pandas as pd

    zeros = np.zeros(max(audit.n_layers, 1))
    layers = pd.DataFrame(
        {"layer": np.arange(len(zeros)), "s1_delta": zeros, "s2_delta": zeros, "ler": zeros}
    )
    return plain_figure(plots.example_profile(layers, tau=audit.config.tau, title=None))


def _lens_pattern(audit: DepthAudit) -> Any:
    """Its headings say `undefined` where the page puts the scores."""
    import pandas as pd

    columns = [f"{view}_{part}" for view in ("uds", "lens") for part in ("s1_delta", "s2_delta", "ler")]
    layers = pd.DataFrame({"layer": [0], **{name: [np.nan] for name in columns}})
    return plain_figure(plots.lens_against_uds(layers, tau=audit.config.tau, title=None))


def plain_figure(figure: Any) -> Any:
    """A figure as JSON values, without the template that all share."""
    found = jsonable(figure)
    found["layout"].pop("template", None)
    return found


def jsonable(part: Any) -> Any:
    """A part of a figure as JSON values."""
    from plotly.io.json import to_json_plotly

    return json.loads(to_json_plotly(part))

"""Draw the pictures of docs/results from its tables and from studies: `python docs/images/draw_results.py`.

Needs `uds-lens[static]` and a Chrome or Chromium.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from photograph import draw

import uds_lens as ul
from uds_lens.plots._style import palette, panel_heading, panels, put, style

HERE = Path(__file__).parent
TABLES = HERE.parent / "results" / "tables"
REFERENCES = ("full", "retain90", "retain95", "retain99")


def table(name: str) -> pd.DataFrame:
    """A table of the results, as texts."""
    return pd.read_csv(TABLES / f"{name}.csv", dtype=str, keep_default_na=False)


def number(text: str) -> float:
    """The first number of a cell; a share in per cent as a share."""
    found = re.search(r"-?\d+(?:\.\d+)?", text)
    value = float(found[0]) if found else float("nan")
    return value / 100 if "%" in text else value


def ends(text: str) -> tuple[float, float]:
    """Both ends of an interval, the last two numbers of a cell."""
    low, high = re.findall(r"\d+\.\d+", text)[-2:]
    return float(low), float(high)


def audited(**look: Any) -> go.Figure:
    """Four checkpoints trained on different parts of the forget set."""
    rows = table("order")
    rows = rows[rows["dtype"] == "float32"]
    low, high = zip(*rows["95% interval"].map(ends), strict=True)
    frame = pd.DataFrame({"model": rows["unlearned"], "uds": rows["UDS"].map(number), "uds_low": low, "uds_high": high})
    return ul.plots.ranking(frame.assign(n_measured=rows["measured"].map(int)), references=["full", "retain90"], **look)


def unlearned(**look: Any) -> go.Figure:
    """Methods by probability of the retain answers and by depth."""
    rows = table("methods")
    low, high = zip(*rows["95% interval"].map(ends), strict=True)
    frame = pd.DataFrame(
        {
            "model": rows["model"].map(short),
            "utility": rows["of full's"].map(number),
            "uds": rows["UDS"].map(number),
            "uds_low": low,
            "uds_high": high,
        }
    )
    return ul.plots.depth_utility(
        frame, label="probability of the retain answers, as a share of full's", references=REFERENCES, **look
    )


def by_layer(**look: Any) -> go.Figure:
    """Erasure by layer, one panel per method."""
    rows = table("layers")
    layers = [name for name in rows.columns if name.startswith("layer ")]
    frames = {
        short(row["model"]): pd.DataFrame(
            {"layer": range(len(layers)), "ler_mean": [number(row[layer]) for layer in layers]}
        )
        for _, row in rows.iterrows()
    }
    return ul.plots.compare_layers(frames, references=[name for name in frames if name in REFERENCES], **look)


def short(model: str) -> str:
    """A method's name, with its layer for RMU.

    >>> short("rmu_lr1e-03_alpha5_layer2_scale30_epoch2"), short("retain90")
    ('rmu, layer 2', 'retain90')
    """
    layer = re.search(r"_layer(\d+)", model)
    return model.split("_")[0] + (f", layer {layer[1]}" if layer else "")


def coverage(**look: Any) -> go.Figure:
    """Coverage of 95% intervals: bootstrap over subjects and over examples."""
    rows, colours = table("coverage_scores"), palette(look.get("theme", "light"))
    figure = go.Figure()
    for column, unit, colour in (
        ("by example", "examples", colours.unlearned),
        ("by subject", "subjects", colours.erased),
    ):
        for scores, group in rows.groupby("scores", sort=False):
            line = go.Scatter(
                x=group["ICC"].map(number).tolist(),
                y=group[column].map(number).tolist(),
                mode="lines+markers",
                name=f"bootstrap over {unit}",
                legendgroup=column,
                showlegend=bool(scores == rows["scores"].iloc[0]),
                line={"color": colour, "width": 2},
                marker={"color": colour, "size": 6},
            )
            figure.add_trace(line)
    figure.add_hline(0.95, line={"color": colours.faint, "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text="intra-class correlation of scores within subjects", dtick=0.1)
    figure.update_yaxes(title_text="coverage", range=[0.35, 1.0], tickformat=".0%")
    subtitle = "Share of intervals that contain the true mean. One line per score distribution; dotted: 95%."
    return style(figure, "Coverage of 95% intervals", subtitle, **look)


def trusted(**look: Any) -> go.Figure:
    """Each metric's F, from the long table of the study."""
    study = HERE.parents[1] / "studies" / "tofu_small"
    plan = ul.study.plan(study / "plan.toml")
    frames = ul.study.frames(pd.read_parquet(study / "results" / "table_first.parquet"), plan=plan)
    faithful = ul.meta.faithfulness(frames.pools, metrics=tuple(plan.measure.metrics))
    return ul.plots.faithfulness_forest(faithful, **look)


def followed(**look: Any) -> go.Figure:
    """Depth, damage, utility and forget answers while four methods train, means of three seeds."""
    runs = pd.read_csv(HERE.parents[1] / "studies" / "depth_while_training" / "runs.csv")
    means = runs.groupby(["model", "step"], sort=False, as_index=False).mean(numeric_only=True)
    return ul.plots.depth_by_step(means, **look)


MEASURED = HERE.parents[1] / "studies" / "smollm2" / "measured"


def smollm2_models(**look: Any) -> go.Figure:
    """Every model of the study of SmolLM2, on the scale of its first retain model."""
    rows = pd.read_csv(MEASURED / "scales.csv")
    rows = rows[rows["scale"] == "retain-0"]
    made = pd.read_csv(MEASURED / "models.csv")
    unlearned = made[made["method"] != "finetune"]["model"]
    return ul.plots.ranking(rows, references=rows["model"][~rows["model"].isin(unlearned)].tolist(), **look)


def smollm2_layers(**look: Any) -> go.Figure:
    """Where knowledge lies in SmolLM2: S2 by layer of one model of each method, and S1 as that of retain."""
    rows = pd.read_parquet(MEASURED / "layers.parquet")
    means = rows[rows["scale"] == "retain-0"].groupby(["model", "layer"])["s2_delta"].mean()
    names = ["retain-0", *(name for name in means.index.levels[0] if name.endswith("-1") and name != "retain-1")]
    frames = {name: means[name].rename("s2_mean").reset_index() for name in names}
    return ul.plots.compare_layers(frames, value="s2", references=["retain-0"], **look)


def refused(**look: Any) -> go.Figure:
    """Where a trained refusal sits in SmolLM2: what each of its tokens loses with the states of the model before."""
    rows = pd.read_csv(HERE.parents[1] / "studies" / "changes" / "results" / "smollm2-tokens.csv")
    cells = [f"token {token}" for token in rows["token"] + 1]
    return ul.plots.patch_heatmap(rows[["layer", "lost"]].assign(cell=cells), **look)


WORLDS = {
    "small-0": "small Llamas (1)",
    "small-1": "small Llamas (2)",
    "smollm2": "SmolLM2, adapters",
    "smollm2-full": "SmolLM2, all weights",
}


def transplants(**look: Any) -> go.Figure:
    """Output depth against host depth of the models of the study of transplants, a panel for each world."""
    folder, colours = HERE.parents[1] / "studies" / "transplant" / "results", palette(look["theme"])
    tables = {told: pd.read_csv(folder / f"{w}.csv") for w, told in WORLDS.items() if (folder / f"{w}.csv").exists()}
    columns = 1 if look["width"] < 500 else 3 if len(tables) == 3 else 2
    height = -(-len(tables) // columns)
    figure = panels([1] * height, columns=columns, gap=0.28 / height, space=0.05)
    groups = {  # of models with and without a spoiled block, by what relearning on other subjects brings back
        "at least half comes back": (lambda rows: rows["returned"] >= 0.5, colours.unlearned),
        "between": (lambda rows: rows["returned"].between(0.2, 0.5, inclusive="neither"), colours.below),
        "at most a fifth": (lambda rows: rows["returned"] <= 0.2, colours.retain),
    }
    for place, (told, rows) in enumerate(tables.items()):
        at = {"row": place // columns + 1, "column": place % columns + 1}
        rows = rows[(rows["output_depth"] >= 0.15) & rows["returned"].notna()]
        line = {"color": colours.faint, "width": 1, "dash": "dot"}
        put(figure, go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line=line, showlegend=False, hoverinfo="skip"), **at)
        spoiled = rows["kind"] == "made: spoiled"
        for name, (belongs, colour) in groups.items():
            for part, symbol in ((rows[~spoiled], "circle"), (rows[spoiled], "x-open")):
                points = part[belongs(part)]
                marker = {"color": colour, "size": 9, "symbol": symbol, "line": {"width": 1.5, "color": colour}}
                dots = go.Scatter(
                    x=points["output_depth"], y=points["host_depth"], mode="markers", marker=marker, name=name,
                    text=points["model"], hovertemplate="%{text}<extra></extra>", legendgroup=name,
                    showlegend=place == 0 and symbol == "circle",
                )  # fmt: skip
                put(figure, dots, **at)
        panel_heading(figure, told, **at)
    ticks = {"range": [-0.05, 1.05], "dtick": 0.5, "tickformat": ".2~f"}
    figure.update_xaxes(**ticks)
    figure.update_yaxes(**ticks)
    figure.update_xaxes(title_text="output depth")
    figure.update_yaxes(title_text="host depth", selector=lambda axis: axis.showticklabels is not False)
    figure.update_layout(legend_y=1 + 0.12 / height)
    return style(figure, "", tall=120 + 250 * height, room=34, **{**look, "title": None})


FIGURES = {
    "results_audit.svg": audited,
    "results_coverage.svg": coverage,
    "results_unlearned.svg": unlearned,
    "results_layers.svg": by_layer,
    "results_faithfulness.svg": trusted,
    "results_depth.svg": followed,
    "results_smollm2.svg": smollm2_models,
    "results_smollm2_layers.svg": smollm2_layers,
    "results_refusal.svg": refused,
    "transplants.svg": transplants,
}


if __name__ == "__main__":
    for file, figure in FIGURES.items():  # for phones all but those that are too much for one
        draw(file, figure, for_phones=file not in ("results_layers.svg", "results_depth.svg"))

"""Reference pages, one a room: what people come for first, then everything else that it offers."""

from importlib import import_module
from typing import Any

FIRST = {
    "annotation": ["annotate", "Annotations"],
    "audit": ["Baseline"],
    "data": ["load_examples", "ForgetExample"],
    "doctor": ["examine_inputs", "examine_environment"],
    "elicitation": ["elicit", "ElicitationResults", "ElicitOptions", "ElicitData"],
    "errors": ["UdsLensError"],
    "generation": ["generate_answers", "sample_continuations"],
    "meta": ["read_published", "read_csv", "faithfulness", "robustness", "rank", "summary"],
    "metrics": ["evaluate", "MetricResults", "MetricOptions", "metric"],
    "models": ["open_model", "HookedModel"],
    "patching": ["capture", "SpanCache", "run_patched", "patched_logprobs", "patch_grid", "target_logprobs"],
    "plots": ["ler_heatmap", "layer_profile", "ranking", "save_figure"],
    "published": ["models", "plan", "run", "compare"],
    "report": ["write", "dashboard"],
    "results": ["DepthAudit", "AuditConfig", "RunOptions"],
    "sharing": ["open_unlearning_run", "write_uds_eval", "write_inspect_logs"],
    "study": ["run", "plan", "table", "status"],
    "toy": ["load", "World"],
    "training": ["DepthCallback"],
    "transplants": ["transplant"],
    "unlearning": ["unlearn", "relearn", "quantise", "make_config", "TrainOptions"],
    "weights": ["difference"],
}
"""What people come for, by room."""

_INHERITED = ("results",)  # rooms whose classes show what they inherit


def on_files(files: Any, config: Any) -> Any:
    """Add the pages, which the navigation names."""
    from mkdocs.structure.files import File

    for room in FIRST:
        files.append(File.generated(config, f"api/{room}.md", content=page_of(room)))
    return files


def page_of(room: str) -> str:
    """Return the page of a room, which mkdocstrings fills."""
    first = FIRST[room]
    names = [*first, *(name for name in import_module(f"uds_lens.{room}").__all__ if name not in first)]
    lines = [f"# uds_lens.{room}", "", f"::: uds_lens.{room}", "    options:", f"      members: [{', '.join(names)}]"]
    return "\n".join([*lines, *["      inherited_members: true"] * (room in _INHERITED)]) + "\n"

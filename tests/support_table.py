"""A pytest plugin that writes docs/support.md from the tests that ran, and from nothing else.

pytest -p support_table tests/audit/test_parity.py tests/audit/test_breadth.py tests/patching/test_engines.py
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "support.md"

COLUMNS = {
    "test_an_audit_equals_the_independent_implementation": "audit, float32",
    "test_bfloat16_differs_by_its_rounding_only": "audit, bfloat16",
    "test_self_patching_is_a_no_op_without_the_shortcut": "self-patch is a no-op",
    "test_wavefront_equals_naive_on_every_scope_and_padding_side": "scopes, both paddings",
    "test_wavefront_equals_naive_on_every_site": "sites",
}

ALONE = {
    "test_an_audit_is_that_of_each_row_alone": "audit",
    "test_answers_are_scored_as_alone": "scored answers",
    "test_texts_that_end_early_leave_the_others_as_they_are": "generated texts",
}
"""Rows in batches against each row alone."""

FORMS = {
    "test_4bit_sources_and_targets_equal_their_dequantised_twins": (
        "NF4 (bitsandbytes), as source and as target, on a CPU"
    ),
    "test_an_adapter_is_merged_on_load": "a PEFT (LoRA) directory, merged on load",
    "test_an_adapter_on_a_tied_weight_changes_the_weight_that_it_is_on": (
        "an adapter on the head or the embedding of a model that ties them"
    ),
    "test_an_adapter_on_a_quantised_base_is_not_rounded_with_it": (
        "an adapter on a base of 4 or 8 bits (QLoRA), dequantised on load"
    ),
    "test_a_live_adapter_is_audited_as_it_is": "a live PEFT model (adapters on layers), as it is",
    "test_zeroed_blocks_are_patched_in_as_zeros": "live models and Bridges with your own hooks, run as they are",
    "test_device_map_gives_the_same_numbers": "`device_map`",
    "test_a_model_offloaded_to_disk_is_audited": "a live model offloaded to disk by accelerate",
    "test_models_that_are_offloaded_whole_are_audited": "live models offloaded whole (`accelerate.cpu_offload`)",
    "test_an_architecture_transformer_lens_refuses_falls_back_to_plain_hooks": (
        "an architecture that TransformerLens refuses (plain forward hooks, `resid_post` only)"
    ),
    "test_families_with_masks_or_heads_of_their_own_equal_plain_hooks": (
        "GPT-Neo, OPT, and the text models of Gemma-4 and Llama-4: masks, heads or inputs of their own (the naive "
        "engine where the fast one does not apply)"
    ),
    "test_what_a_config_wants_returned_changes_nothing": (
        "checkpoints saved with `output_router_logits=True` or `return_dict=False`"
    ),
    "test_a_model_moved_to_apples_gpu_is_compared_with_itself_on_the_cpu": (
        "Apple's GPU (MPS): each model is compared with itself on the CPU when it is opened "
        "(tested without such a GPU: the move to it is simulated)"
    ),
}

NAMES = {
    "llama": "Llama",
    "llama-tied": "Llama, tied embeddings",
    "mistral": "Mistral, sliding window",
    "qwen2": "Qwen2, tied embeddings",
    "qwen3": "Qwen3",
    "phi3": "Phi3, fused projections",
    "gemma2": "Gemma2, soft-capping and sliding window",
    "gemma3": "Gemma3 (text), sliding window",
    "gpt2": "GPT-2",
    "neox": "GPT-NeoX, parallel blocks",
    "olmo2": "OLMo2, norms after the blocks",
    "mixtral": "Mixtral, mixture of experts",
    "qwen3-moe": "Qwen3-MoE, mixture of experts",
    "recurrent-gemma": "RecurrentGemma: rows padded on the right, the whole text processed for each token",
    "jamba": "Jamba",
    "bamba": "Bamba",
    "qwen3-next": "Qwen3-Next",
    "granite-hybrid": "GraniteMoeHybrid",
    "zamba2": "Zamba2",
    "falcon-h1": "FalconH1",
    "minimax": "MiniMax: texts generated one at a time",
    "longrope": '"longrope" frequencies (Phi3), rows beyond the original maximum batched separately',
    "dynamic": '"dynamic" frequencies (Llama), rows beyond the original maximum batched separately',
}

_outcomes: dict[tuple[str, str], list[str]] = defaultdict(list)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what a test of the table came to, by function and by the parameter that names the family or form."""
    if report.when != "call" and not (report.when == "setup" and report.outcome != "passed"):
        return
    match = re.search(r"::(\w+)(?:\[(.*)\])?$", report.nodeid)
    if match:
        _outcomes[match[1], match[2] or ""].append(report.outcome)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the page."""
    PAGE.write_text(page(_outcomes), encoding="utf-8")


def page(outcomes: dict[tuple[str, str], list[str]]) -> str:
    """The page as Markdown."""
    # Not before the run: it imports the package, which is checked as it is imported.
    from tiny_models import FAMILIES, HYBRIDS, LONG_ROPE

    from uds_lens.models._anatomy import FINAL_NORM_NAMES

    norms = ", ".join(f"`{name}`" for name in FINAL_NORM_NAMES)
    of_rows = dict(list(ALONE.items())[1:])
    lines = [
        "# What is supported",
        "",
        "Generated by the tests (`make support`): tiny random models of each family, saved and opened like",
        "a user's checkpoints. Audits agree with an independent implementation in plain transformers hooks, to within",
        "1e-5 nats in float32 and to within rounding in bfloat16. The fast engine is compared with one patched forward",
        "pass per layer. Rows in batches are compared with each row alone, in plain transformers without a cache",
        "(float32): audits agree within 2e-5 nats, scored answers within 5e-5, generated texts token by token.",
        "",
        f"Tested in each of these families ({'; '.join([*COLUMNS.values(), *of_rows.values()])}):",
        "",
        *(_line(outcomes, family, COLUMNS | of_rows) for family in FAMILIES),
        "",
        "GPT-NeoX has no `resid_mid`: its attention and MLP run in parallel.",
        "",
        "Hybrids of attention and recurrent or linear layers (by the naive engine), and rotary frequencies that depend",
        f"on the length of the text ({', '.join(ALONE.values())}):",
        "",
        *(_line(outcomes, family, ALONE) for family in (*HYBRIDS, *LONG_ROPE)),
        "",
        "Any other causal language model, custom code included, can be audited if it has",
        "",
        "- an inner model that returns `last_hidden_state`, named `model` or as `base_model_prefix` says;",
        "- in it, or in its `decoder`, one `ModuleList` of `num_hidden_layers` blocks, each of which passes on one",
        f"  state per token (`[batch, pos, d_model]`), and a norm after them ({norms});",
        "- a head that `get_output_embeddings()` returns;",
        "- `hidden_size`, `num_hidden_layers` and `vocab_size` in its config.",
        "",
        "Whatever is missing is named before anything runs. Not supported are encoder-decoders, models without",
        "attention (Mamba, RWKV), models with several residual streams (Gemma-3n), and multimodal models (open the",
        "text model on its own).",
        "",
        "Also tested:",
        "",
    ]
    for test, told in FORMS.items():
        word = _word([o for (name, _), results in outcomes.items() if name == test for o in results])
        lines.append(f"- {told}" + ("" if word == "tested" else f" ({word})"))
    return "\n".join(lines) + "\n"


def _line(outcomes: dict[tuple[str, str], list[str]], family: str, tests: dict[str, str]) -> str:
    """Name a family, and whatever of it was not tested or failed."""
    words = {title: _word(outcomes.get((test, family))) for test, title in tests.items()}
    missing = "; ".join(f"{title}: {word}" for title, word in words.items() if word != "tested")
    return f"- {NAMES.get(family, family)}" + (f" ({missing})" if missing else "")


def _word(results: list[str] | None) -> str:
    if not results:
        return "not run"
    return "tested" if set(results) == {"passed"} else ", ".join(sorted(set(results)))

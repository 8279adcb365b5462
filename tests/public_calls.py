"""Calls of the public functions as they are meant, on things of no size, for tests that then spoil one argument."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from meta.conftest import pools_frame
from plots import meta_frames
from synthetic_audits import synthetic_audit
from tiny_models import EXAMPLES

import uds_lens as ul
from uds_lens import data, meta
from uds_lens.models import HookedModel

WAYS = {"x0": "knowledge", "x1": "knowledge"}


class Made:
    """An open model, and what it is asked; `calls` holds keyword arguments by public name."""

    calls: dict[str, Callable[[], dict[str, Any]]]

    def __init__(self, model: HookedModel, folder: Path) -> None:
        tok, some = model.tokenizer, EXAMPLES[:2]
        encoded = data.encode(some, tok)
        batch = data.make_batch(encoded.rows, pad_token_id=3)
        cache = ul.patching.capture(model, batch)
        audit = synthetic_audit(n=6, layers=3)
        self.calls = {}
        for room in (
            _data(tok, some, encoded),
            _results(audit),
            _meta(),
            _numbers(),
            _losses(),
            _plots(audit),
        ):
            self.calls |= room
        self.calls |= {
            "annotation.annotate": lambda: {"rows": some, "by": "answer"},
            "annotation.words_of": lambda: {"text": "It was Ada."},
            "doctor.examine_environment": lambda: {"place": folder},
            "elicitation.find_audit": lambda: {"words": "cloze"},
            "elicitation.require_place": lambda: {"path": folder / "elicited"},
            "generation.generate_answers": lambda: {
                "model": model,
                "questions": ["Who?"],
                "protocol": "raw",
                "max_new_tokens": 1,
                "show": False,
            },
            "generation.greedy": lambda: {"model": model, "prompts": [[1, 5]], "max_new_tokens": 1},
            "metrics.evaluate": lambda: {"model": model, "data": some, "metrics": ["prob"]},
            "metrics.fluency_scorer": lambda: {"metrics": ["prob"], "fluency": "heuristic"},
            "metrics.score_answers": lambda: {"model": model, "rows": encoded.rows, "show": False},
            "models.open_model": lambda: {"source": model},
            "models.pick_device": lambda: {"device": "cpu"},
            "models.read_checkpoint_info": lambda: {"source": model},
            "patching.capture": lambda: {"model": model, "batch": batch},
            "patching.open_target": lambda: {"model": model, "batch": batch},
            "patching.patched_logprobs": lambda: {"model": model, "batch": batch, "cache": cache},
            "patching.run_patched": lambda: {"model": model, "batch": batch, "cache": cache, "layer": 1},
            "patching.hook_name": lambda: {"site": "resid_post", "layer": 1},
            "patching.patch_hooks": lambda: {
                "site": "resid_post",
                "layer": 1,
                "write": lambda states: states,
            },
            "report.render": lambda: {"audits": audit},
            "report.write": lambda: {"audits": audit, "path": folder / "page.html"},
            "study.plan": lambda: {
                "source": {
                    "name": "small",
                    "full": "toy:full",
                    "retain": "toy:retain",
                    "data": {"forget": "toy:forget"},
                    "model": [{"name": "given", "path": "toy:npo"}],
                    "measure": {"metrics": ["es"]},
                }
            },
            "toy.load": dict,
        }


def _data(tok: Any, some: Any, encoded: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    rows = [{"question": "Who?", "answer": "It was Ada.", "entity": "Ada"}]
    return {
        "data.as_examples": lambda: {"source": rows},
        "data.load_examples": lambda: {"source": rows},
        "data.sample_examples": lambda: {"examples": some, "limit": 1},
        "data.ForgetExample": lambda: {"id": "0", "question": "Who?", "answer": "Ada."},
        "data.ChatStyle": dict,
        "data.answer_ends": lambda: {"tokenizer": tok},
        "data.answer_prompt": lambda: {"question": "Who?"},
        "data.answer_sequences": lambda: {"tokenizer": tok, "pairs": [("Who?", "Ada.")]},
        "data.batch_from_texts": lambda: {"tokenizer": tok, "texts": ["It was Ada."], "positions": 1},
        "data.chat_style_named": lambda: {"name": "paper_scores"},
        "data.chosen_protocol": lambda: {"protocol": "raw", "tokenizer": tok},
        "data.continuation_text": lambda: {"prompt": "It was", "rest": "Ada."},
        "data.encode": lambda: {"examples": some, "tokenizer": tok},
        "data.entity_span": lambda: {"example": some[0]},
        "data.make_batch": lambda: {"rows": encoded.rows, "pad_token_id": 3},
        "data.plan_batches": lambda: {"rows": encoded.rows},
        "data.prompt_ids": lambda: {"tokenizer": tok, "prompts": ["Who?"]},
        "data.prompt_text": lambda: {"question": "Who?", "prefix": "It was"},
        "data.render": lambda: {"example": some[0]},
        "metrics.MetricData": lambda: {"forget": rows},
    }


def _results(audit: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    other = synthetic_audit(n=6, layers=3, seed=1, name="ckpt/rmu")
    delta = torch.ones(4, 3, dtype=torch.float64)
    values = torch.arange(12, dtype=torch.float64)
    return {
        "results.audit_names": lambda: {"audits": [audit, other]},
        "results.bootstrap_interval": lambda: {"values": values, "n_resamples": 200},
        "results.clip_shares": lambda: {"audit": audit},
        "results.compare": lambda: {"audit_a": audit, "audit_b": other, "n_resamples": 200},
        "results.compare_all": lambda: {"audits": [audit, other], "n_resamples": 200},
        "results.contrast": lambda: {
            "differences": values.numpy(),
            "groups": np.arange(12),
            "n_resamples": 200,
        },
        "results.holm": lambda: {"p": [0.1, 0.2]},
        "results.interval_basis": lambda: {"values": values, "clusters": [None] * 12},
        "results.ke_mask": lambda: {"s1_delta": delta, "tau": 0.05},
        "results.layer_erasure_ratio": lambda: {"s1_delta": delta, "s2_delta": delta, "ke": delta > 0},
        "results.length_correlation": lambda: {"audit": audit},
        "results.mean_uds": lambda: {"per_example": values},
        "results.models_frame": lambda: {"audits": {"a": audit, "b": other}},
        "results.site_groups": lambda: {"audits": [audit, other]},
        "results.spearman": lambda: {"left": [1, 2, 3], "right": [1, 3, 2]},
        "results.tau_rank_correlation": lambda: {
            "audits": {"a": audit, "b": other, "c": audit},
            "taus": [0.1, 0.2],
        },
        "results.tau_sweep": lambda: {"audit": audit, "taus": [0.1]},
        "results.types_frame": lambda: {"audit": audit},
        "results.uds_per_example": lambda: {"s1_delta": delta, "ler": delta, "ke": delta > 0},
    }


def _meta() -> dict[str, Callable[[], dict[str, Any]]]:
    pools = pools_frame(metrics=2)
    models = meta_frames.models()
    cuts = meta.thresholds(pools, direction=WAYS)
    column = np.linspace(0.1, 0.9, 8)
    asked = {"frame": pools, "direction": WAYS}
    again = pools.assign(x0=pools["x0"] + 0.1)
    states = {"before": pools, "quantised": again, "direction": WAYS, "min_utility": None, "thresholds": cuts}
    return {
        "meta.compare": lambda: {**asked, "one": "x0", "other": "x1", "n_resamples": 20},
        "meta.compare_all": lambda: {**asked, "n_resamples": 20},
        "meta.directions": lambda: asked,
        "meta.faithfulness": lambda: {**asked, "n_resamples": 20},
        "meta.filter_counts": lambda: {**asked, "thresholds": cuts, "min_utility": None},
        "meta.hanley_mcneil": lambda: {"auc": 0.9, "n_p": 10, "n_n": 10},
        "meta.holm": lambda: {"p": np.array([0.1, 0.2])},
        "meta.leave_one_variant_out": lambda: asked,
        "meta.one_directional_quantisation": lambda: {"before": column, "after": column},
        "meta.one_directional_relearning": lambda: {"change": column, "shift": 0.1},
        "meta.oriented": lambda: {"values": pd.Series(column), "points": "knowledge"},
        "meta.perturbation_points": lambda: states,
        "meta.read_published": dict,
        "meta.robustness": lambda: {**states, "n_resamples": 20},
        "meta.symmetric_quantisation": lambda: {"before": column, "after": column},
        "meta.symmetric_relearning": lambda: {"change": column, "shift": 0.1},
        "meta.thresholds": lambda: asked,
        "meta.variant_table": lambda: asked,
        "plots.pool_histogram": lambda: {
            "models": models,
            "metric": "x",
            "thresholds": meta_frames.thresholds(),
        },
        "plots.faithfulness_forest": lambda: {"faithful": meta_frames.faithful("x", "y")},
        "plots.pair_matrix": lambda: {"pairs": meta_frames.pairs("x", "y", "z")},
        "plots.metric_heatmap": lambda: {"summary": meta_frames.summary("x", "y")},
    }


def _numbers() -> dict[str, Callable[[], dict[str, Any]]]:
    some = [-0.5, -1.0]
    scores = np.linspace(0, 1, 12).reshape(3, 4)
    return {
        "elicitation.best_of": lambda: {"scores": scores, "k": 2},
        "elicitation.leak_at": lambda: {"scores": scores, "k": 2, "threshold": 0.5},
        "elicitation.share": lambda: {"beyond": scores[0], "power": scores[1], "groups": np.arange(4)},
        "generation.choose_tokens": lambda: {
            "logits": torch.randn(2, 9),
            "uniforms": torch.rand(2),
            "temperature": 1.0,
        },
        "generation.rouge_l_recall": lambda: {"references": ["a b"], "answers": ["a"]},
        "metrics.auc": lambda: {"forget": some, "holdout": some},
        "metrics.cka_erasure": lambda: {"full_retain": torch.rand(3), "unlearned_retain": torch.rand(3)},
        "metrics.exact_memorization": lambda: {"hits": [True, False]},
        "metrics.extraction_strength": lambda: {"hits": [True, False]},
        "metrics.geometric_mean": lambda: {"probabilities": [0.5, 0.2]},
        "metrics.harmonic_mean": lambda: {"values": [0.5, 0.2]},
        "metrics.kept_truth": lambda: {"correct": [0.5], "wrong": [0.2]},
        "metrics.linear_cka": lambda: {"left": torch.randn(5, 3), "right": torch.randn(5, 3)},
        "metrics.mean_nll": lambda: {"logprobs": some},
        "metrics.mean_outcome": lambda: {"ids": ["a", "b"], "per_example": some},
        "metrics.metrics_frame": dict,
        "metrics.min_k_score": lambda: {"logprobs": some},
        "metrics.normalised_auc": lambda: {"model": 0.5, "retain": 0.4},
        "metrics.option_probability": lambda: {"answer": 0.5, "options": [0.5, 0.2]},
        "metrics.probability": lambda: {"logprobs": some},
        "metrics.resolve": lambda: {"names": ["prob"]},
        "metrics.truth_ratio": lambda: {"correct": [0.5], "wrong": [0.2]},
        "metrics.zlib_score": lambda: {"logprobs": some, "answer": "Ada."},
    }


def _losses() -> dict[str, Callable[[], dict[str, Any]]]:
    logits, labels = torch.randn(2, 4, 9), torch.randint(9, (2, 4))
    each = torch.randn(2)
    states = torch.randn(2, 4, 3)
    return {
        "unlearning.answer_lengths": lambda: {"labels": labels},
        "unlearning.config_name": lambda: {"config": ul.unlearning.GAConfig()},
        "unlearning.dpo": lambda: {
            "winner": each,
            "winner_reference": each,
            "loser": each,
            "loser_reference": each,
            "beta": 0.1,
        },
        "unlearning.gradient_ascent": lambda: {"logits": logits, "labels": labels},
        "unlearning.grid": dict,
        "unlearning.kl_to_reference": lambda: {"logits": logits, "reference": logits, "labels": labels},
        "unlearning.load_refusals": dict,
        "unlearning.make_config": lambda: {"method": "npo", "settings": {"beta": "0.5"}},
        "unlearning.negative_log_likelihood": lambda: {"logits": logits, "labels": labels},
        "unlearning.npo": lambda: {"log_probs": each, "reference": each, "beta": 0.1},
        "unlearning.parse_name": lambda: {"name": "ga_lr2e-03_epoch2_batchsize2_warmupepochs0_protocolraw"},
        "unlearning.sequence_log_probs": lambda: {"logits": logits, "labels": labels},
        "unlearning.simnpo": lambda: {
            "log_probs": each,
            "lengths": torch.tensor([3, 4]),
            "beta": 1.0,
            "delta": 0.0,
        },
        "unlearning.state_distance": lambda: {
            "states": states,
            "goal": states,
            "mask": torch.ones(2, 4, dtype=torch.bool),
        },
        "unlearning.steering_vector": lambda: {"d_model": 8, "scale": 1.0, "seed": 0},
        "unlearning.undial": lambda: {"logits": logits, "reference": logits, "labels": labels, "beta": 1.0},
    }


def _plots(audit: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    layers, examples, long = audit.layers_frame(), audit.examples_frame(), audit.to_frame()
    return {
        "plots.clip_bars": lambda: {"layers": layers},
        "plots.compare_layers": lambda: {"models": {"a": layers, "b": layers}},
        "plots.component_profile": lambda: {"sites": {"resid_post": layers, "mlp_out": layers}},
        "plots.example_profile": lambda: {"layers": long.head(3)},
        "plots.layer_profile": lambda: {"layers": layers},
        "plots.length_scatter": lambda: {"examples": examples},
        "plots.ler_heatmap": lambda: {"long": long, "examples": examples},
        "plots.ranking": lambda: {"models": ul.results.models_frame({"a": audit})},
        "plots.tau_curve": lambda: {"sweep": ul.results.tau_sweep(audit)},
        "plots.template": dict,
        "plots.type_bars": lambda: {"types": ul.results.types_frame(audit)},
        "plots.uds_distribution": lambda: {"examples": examples},
    }

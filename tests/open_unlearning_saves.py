"""A folder `saves` as Open-Unlearning's scripts fill it: 3 base models x 2 splits x 4 methods, full and retain of each.

Values are drawn around a level for each base model, split and method, so that a wrong partner or a pooled table shows.
"""

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import yaml

BASES = ("Llama-3.2-1B-Instruct", "Llama-3.2-3B-Instruct", "Llama-3.1-8B-Instruct")
SPLITS = ("forget05", "forget10")
METHODS = ("GradAscent", "GradDiff", "NPO", "RMU")
N = 8
"""Examples."""


def evaluation(level: float, *, utility: float, auc: float, rng: np.random.Generator) -> dict[str, Any]:
    """What the default configuration of TOFU writes into `TOFU_EVAL.json`; `level` is how much is known."""

    def shares() -> np.ndarray:
        return np.clip(level + rng.normal(0, 0.03, N), 0.01, 0.99)

    def losses(probability: np.ndarray) -> dict[str, Any]:
        return {str(i): {"prob": float(p), "avg_loss": float(-np.log(p))} for i, p in enumerate(probability)}

    right, wrong, es = shares(), np.full(N, 0.2), shares()
    forget = np.array([NormalDist().inv_cdf((i + 0.5) / N) for i in range(N)])
    holdout = forget + 2**0.5 * NormalDist().inv_cdf(auc)
    forget_scores, holdout_scores = (
        {"value_by_index": {str(i): {"score": float(x)} for i, x in enumerate(scores)}} for scores in (forget, holdout)
    )
    reached = float(((forget[:, None] < holdout) + 0.5 * (forget[:, None] == holdout)).mean())
    probabilities = {"Prob": right, "PARA_Prob": right, "PERT_Prob": wrong}
    others = {"forget_truth_ratio": 0.5, "forget_quality": 0.3, "privleak": 10.0, "retain_Truth_Ratio": 0.4}
    others |= {"model_utility": utility, "mia_recall": 0.5}
    return {
        **{
            f"forget_Q_A_{name}": {"agg_value": float(values.mean()), "value_by_index": losses(values)}
            for name, values in probabilities.items()
        },
        **{name: {"agg_value": value} for name, value in others.items()},
        "forget_Q_A_ROUGE": {"agg_value": level, "value_by_index": {"0": {"rougeL_recall": level}}},
        "mia_min_k": {"agg_value": reached, "auc": reached, "forget": forget_scores, "holdout": holdout_scores},
        "extraction_strength": {
            "agg_value": float(es.mean()),
            "value_by_index": {str(i): {"score": float(x)} for i, x in enumerate(es)},
        },
    }


def write_run(folder: Path, content: dict[str, Any], suite: str = "TOFU") -> Path:
    """Write an evaluation with its summary."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = ("forget_Q_A_Prob", "forget_Q_A_ROUGE", "model_utility", "privleak", "extraction_strength")
    summary = {name: content[name]["agg_value"] for name in content if suite != "TOFU" or name in kept}
    (folder / f"{suite}_EVAL.json").write_text(json.dumps(content))
    (folder / f"{suite}_SUMMARY.json").write_text(json.dumps(summary))
    return folder


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write what Hydra writes: the configuration with its references."""
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))


def training_config(base: str, split: str, method: str, *, full: str | None = None) -> dict[str, Any]:
    """The configuration of an unlearning run, as `unlearn.yaml` and the scripts make it."""
    retain = f"retain{100 - int(split[6:])}"
    return {
        "mode": "unlearn",
        "task_name": f"tofu_{base}_{split}_{method}",
        "forget_split": split,
        "retain_split": retain,
        "holdout_split": split.replace("forget", "holdout"),
        "retain_logs_path": f"saves/eval/tofu_{base}_{retain}/TOFU_EVAL.json",
        "model": {
            "model_args": {"pretrained_model_name_or_path": full or f"open-unlearning/tofu_{base}_full"},
            "tokenizer_args": {"pretrained_model_name_or_path": f"meta-llama/{base}"},
            "template_args": {
                "apply_chat_template": True,
                "system_prompt": "You are a helpful assistant.",
                "date_string": "10 Apr 2025",
            },
        },
        "trainer": {"handler": method, "args": {"learning_rate": "1e-5", "num_train_epochs": 10}},
        "eval": {"tofu": {"forget_split": "${forget_split}", "retain_logs_path": "${retain_logs_path}"}},
        "data": {
            "forget": {"TOFU_QA_forget": {"args": {"hf_args": {"path": "locuslab/TOFU", "name": "${forget_split}"}}}}
        },
        "paths": {"output_dir": "./saves/${mode}/${task_name}"},
    }


def write_saves(root: Path, *, uds: bool = True) -> Path:
    """Fill a folder, with `UDS_EVAL.json` beside the results of the unlearned models unless `uds` is False."""
    for i, base in enumerate(BASES):
        for j, split in enumerate(SPLITS):
            rng = np.random.default_rng(10 * i + j)
            utility, auc = 0.55 + 0.05 * i + 0.02 * j, 0.3 + 0.05 * i
            full = root / "eval" / f"tofu_{base}_full" / f"evals_{split}"
            write_run(full, evaluation(0.9, utility=utility, auc=0.95, rng=rng))
            retain = root / "eval" / f"tofu_{base}_retain{100 - int(split[6:])}"
            write_run(retain, evaluation(0.15, utility=utility, auc=auc, rng=rng))
            for k, method in enumerate(METHODS):
                task = root / "unlearn" / f"tofu_{base}_{split}_{method}"
                config = training_config(base, split, method)
                write_config(task, config)
                write_config(task / "evals", {**config, "mode": "eval"})
                level = 0.2 + 0.1 * k + 0.05 * ((i + j) % 2) * (k % 2)
                write_run(task / "evals", evaluation(level, utility=utility * 0.9, auc=auc + 0.05 * k, rng=rng))
                # the Trainer evaluates before the first step: this is full, no configuration of the method
                write_run(task / "checkpoint-0" / "evals", evaluation(0.9, utility=utility, auc=0.95, rng=rng))
                if uds:
                    scores = {str(n): {"score": 0.9 - level} for n in range(N)}
                    values = {"uds": 0.9 - level, "uds_low": 0.85 - level, "uds_high": 0.95 - level}
                    content = {name: {"agg_value": value} for name, value in values.items()}
                    content["uds"]["value_by_index"] = scores
                    write_run(task / "evals", content, suite="UDS")
    return root

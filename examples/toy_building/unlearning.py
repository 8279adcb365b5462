"""The unlearned checkpoints: each method of `uds_lens.unlearning` at one setting, named in full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import LlamaForCausalLM

import uds_lens as ul
from toy_building.tokenizer import Row
from toy_building.training import load_checkpoint
from uds_lens.unlearning import TrainOptions, parse_name

METHODS = {
    config.method: config
    for config in map(
        parse_name,
        (
            "ga_lr2e-04_epoch5_batchsize16",
            "graddiff_lr1e-04_alpha2_epoch10_batchsize16",
            "kl_lr1e-04_alpha5_epoch10_batchsize16",
            "npo_lr5e-04_beta0.1_alpha2_epoch10_batchsize16",
            "simnpo_lr5e-04_beta4.5_alpha1_delta1_gamma0.125_epoch10_batchsize16",
            "idknll_lr5e-04_alpha1_epoch10_batchsize16",
            "idkdpo_lr5e-04_beta0.1_alpha2_epoch10_batchsize16",
            "altpo_lr5e-04_beta0.1_alpha2_epoch10_batchsize16_nalternates2_maxnewtokens40",
            "rmu_lr5e-04_alpha5_layer4_scale10_epoch10_batchsize16",
            "undial_lr1e-03_beta10_alpha1_epoch10_batchsize16",
        ),
    )
}


def unlearn(method: str, full: Path, forget: list[Row], retain: list[Row], seed: int) -> LlamaForCausalLM:
    """Make the model in `full` forget; the directory itself is left as it is."""
    with TemporaryDirectory() as folder:
        out = ul.unlearning.unlearn(
            full,
            asked_twice(forget),
            asked_twice(retain),
            method=replace(METHODS[method], seed=seed),
            out=Path(folder) / method,
            options=TrainOptions(device="cpu", checkpoint_every=0, progress=False),
        )
        return load_checkpoint(out)


def asked_twice(rows: list[Row]) -> list[ul.ForgetExample]:
    """Each fact in its usual words, and asked and answered in other words."""
    asked = []
    for row in ul.load_examples(rows):
        question, answer = row.paraphrased_question, row.paraphrased_answers[0]
        assert question is not None, row.id
        asked.append(replace(row, id=f"{row.id}-usual"))
        asked.append(replace(row, id=f"{row.id}-other", question=question, answer=answer))
    return asked

"""The models and rows that the benchmarks run on."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import uds_lens as ul
from uds_lens.data import Encoded, encode


@dataclass(frozen=True)
class Workload:
    """A trio of checkpoints on disk and a tokenised forget set."""

    name: str
    full: Path
    retain: Path
    unlearned: Path
    examples: list[ul.ForgetExample]
    encoded: Encoded


def shared_parser(about: str | None) -> argparse.ArgumentParser:
    """A parser for a script that reads the shared data and models."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data/ and models/")
    return parser


def workload_parser(about: str | None, *, llama_rows: int) -> argparse.ArgumentParser:
    """The same for a script that measures what `workloads` yields."""
    parser = shared_parser(about)
    parser.add_argument("--limit", type=int, default=None, help="only the first rows of tofu-small")
    parser.add_argument("--llama-rows", type=int, default=llama_rows, help="rows for the random Llama")
    parser.add_argument("--only", choices=("tofu-small", "llama"), default=None)
    return parser


def workloads(asked: argparse.Namespace) -> Iterator[Workload]:
    """tofu-small, then a random Llama of 16 layers, in a folder that is there until the next is asked for."""
    if asked.only != "llama":
        yield tofu_small(asked.shared, asked.limit)
    if asked.only != "tofu-small":
        with tempfile.TemporaryDirectory() as folder:
            yield random_llama(
                asked.shared,
                Path(folder),
                asked.llama_rows,
                n_layers=16,
                d_model=512,
                vocabulary=32_000,
                name="random Llama, 16 layers",
            )


def tofu_small(shared: Path, limit: int | None) -> Workload:
    """The 3.9 M parameter Llamas trained on TOFU: 8 layers, d 192, vocabulary 4096."""
    models = shared / "models" / "tofu-small"
    examples = ul.load_examples(shared / "data" / "tofu" / "forget10_filtered.json", limit=limit, sample="first")
    from transformers import AutoTokenizer

    encoded = encode(examples, AutoTokenizer.from_pretrained(models / "full", local_files_only=True))
    return Workload("tofu-small", models / "full", models / "retain90", models / "retain95", examples, encoded)


def random_llama(
    shared: Path,
    folder: Path,
    limit: int | None,
    *,
    n_layers: int,
    d_model: int,
    vocabulary: int,
    name: str,
    dtype: str = "float32",
) -> Workload:
    """Random Llamas of Llama-3.2-1B's proportions (grouped keys, MLP of four widths), on the same rows."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "tofu-small" / "full", local_files_only=True)
    heads = max(4, d_model // 64)
    config = LlamaConfig(
        hidden_size=d_model,
        intermediate_size=4 * d_model,
        num_hidden_layers=n_layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        head_dim=d_model // heads,
        vocab_size=vocabulary,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    paths = {}
    for seed, version in enumerate(("full", "retain", "unlearned")):
        path = folder / name / version
        if not (path / "config.json").is_file():
            torch.manual_seed(seed)
            LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(path)
            tokenizer.save_pretrained(path)
        paths[version] = path
    examples = ul.load_examples(shared / "data" / "tofu" / "forget10_filtered.json", limit=limit, sample="first")
    return Workload(name, **paths, examples=examples, encoded=encode(examples, tokenizer))

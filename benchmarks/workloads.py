"""The models and rows that the benchmarks run on."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
                Proportions.small(16, 512, 32_000),
                name="random Llama, 16 layers",
            )


def tofu_small(shared: Path, limit: int | None) -> Workload:
    """The 3.9 M parameter Llamas trained on TOFU: 8 layers, d 192, vocabulary 4096."""
    models = shared / "models" / "tofu-small"
    examples = ul.load_examples(shared / "data" / "tofu" / "forget10_filtered.json", limit=limit, sample="first")
    from transformers import AutoTokenizer

    encoded = encode(examples, AutoTokenizer.from_pretrained(models / "full", local_files_only=True))
    return Workload("tofu-small", models / "full", models / "retain90", models / "retain95", examples, encoded)


@dataclass(frozen=True)
class Proportions:
    """Shape of a Llama."""

    layers: int
    width: int
    vocabulary: int
    heads: int
    key_value_heads: int
    inner: int
    tied: bool = True
    """Whether the head is the input embedding."""

    @classmethod
    def small(cls, layers: int, width: int, vocabulary: int) -> Proportions:
        """Those of Llama-3.2-1B at any width: heads of 64, grouped keys, an MLP of four widths, a tied head."""
        heads = max(4, width // 64)
        return cls(layers, width, vocabulary, heads, max(1, heads // 4), 4 * width)

    @property
    def parameters(self) -> int:
        """Weights in all."""
        head = self.width // self.heads
        block = 2 * self.width * head * (self.heads + self.key_value_heads) + 3 * self.width * self.inner
        return self.layers * (block + 2 * self.width) + self.vocabulary * self.width * (2 - self.tied) + self.width


def write_trio(
    folder: Path, size: Proportions, *, tokenizer: Path, dtype: str = "float32", device: str = "cpu"
) -> dict[str, Path]:
    """Write random Llamas as `full`, `retain` and `unlearned`, a shard for each block; never holds more than a shard.

    They share all shards but that of block 0 (by hard links), so that every state of theirs differs. Weights are cut
    from one pool of random numbers, drawn on `device`.
    """
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    kind, head = getattr(torch, dtype), size.width // size.heads
    queries, keys = size.heads * head, size.key_value_heads * head
    config = LlamaConfig(
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=head,
        vocab_size=size.vocabulary,
        max_position_embeddings=512,
        tie_word_embeddings=size.tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype=dtype,
        architectures=["LlamaForCausalLM"],
    )
    generator = torch.Generator(device).manual_seed(0)
    n = min((1 << 27) - 39, 4 * size.parameters)  # no multiple of a row's length, so that no two rows are the same
    pool = (torch.randn(n, generator=generator, device=device) * 0.02).to(kind).cpu()

    def weight(rows: int, columns: int, number: int) -> torch.Tensor:
        start = number * 7919 % len(pool)
        numbers = pool[start : start + rows * columns]
        if len(numbers) < rows * columns:
            numbers = torch.cat([numbers, *[pool] * (rows * columns // len(pool) + 1)])[: rows * columns]
        return numbers.reshape(rows, columns).clone()

    def block(layer: int, role: int) -> dict[str, torch.Tensor]:
        place, wide = f"model.layers.{layer}.", (size.inner, size.width)
        shapes = {
            "self_attn.q_proj": (queries, size.width),
            "self_attn.k_proj": (keys, size.width),
            "self_attn.v_proj": (keys, size.width),
            "self_attn.o_proj": (size.width, queries),
            "mlp.gate_proj": wide,
            "mlp.up_proj": wide,
            "mlp.down_proj": wide[::-1],
        }
        first = 100 * (layer + 1) + 10 * role
        weights = {f"{place}{name}.weight": weight(*shape, first + i) for i, (name, shape) in enumerate(shapes.items())}
        norms = {f"{place}{name}_layernorm.weight" for name in ("input", "post_attention")}
        return weights | {name: torch.ones(size.width, dtype=kind) for name in norms}

    def ends() -> dict[str, torch.Tensor]:
        names = ["model.embed_tokens.weight", *([] if size.tied else ["lm_head.weight"])]
        weights = {name: weight(size.vocabulary, size.width, i) for i, name in enumerate(names)}
        return weights | {"model.norm.weight": torch.ones(size.width, dtype=kind)}

    paths = {role: folder / role for role in ("full", "retain", "unlearned")}
    shard_of: dict[str, str] = {}
    for role, path in enumerate(paths.values()):
        path.mkdir(parents=True)
        config.save_pretrained(path)
        for file in tokenizer.glob("tokenizer*"):
            shutil.copyfile(file, path / file.name)
        for layer in range(-1, size.layers):
            name = f"model-{layer + 1:05}.safetensors"
            if role and layer:
                os.link(paths["full"] / name, path / name)
                continue
            tensors = ends() if layer < 0 else block(layer, role)
            save_file(tensors, path / name, metadata={"format": "pt"})
            shard_of |= dict.fromkeys(tensors, name)
            del tensors
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    return paths


def random_llama(
    shared: Path, folder: Path, limit: int | None, size: Proportions, *, name: str, dtype: str = "float32", device="cpu"
) -> Workload:
    """Random Llamas on the rows of TOFU, with the tokenizer of tofu-small."""
    from transformers import AutoTokenizer

    place = shared / "models" / "tofu-small" / "full"
    tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
    paths = write_trio(folder / name, size, tokenizer=place, dtype=dtype, device=device)
    examples = ul.load_examples(shared / "data" / "tofu" / "forget10_filtered.json", limit=limit, sample="first")
    return Workload(name, **paths, examples=examples, encoded=encode(examples, tokenizer))


def least_seconds(
    works: Mapping[str, Callable[[], object]], repeats: int, *, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Do each work in turn, so that a busy moment hits all alike; returns the least seconds of each.

    Args:
        works: What to do, by name.
        repeats: How often each is done.
        clock: CPU seconds over all threads, or `time.perf_counter`.
    """
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, work in works.items():
            begun = clock()
            work()
            best[name] = min(best[name], clock() - begun)
    return best


@contextmanager
def bytes_read() -> Iterator[list[int]]:
    """Yield a list that gets the bytes each streamed model has read, when it is closed."""
    from uds_lens.models._by_block import StreamedModel  # here: `compare_commits.py` runs older libraries, without it

    read: list[int] = []
    leave = StreamedModel.__exit__

    def noting(model: StreamedModel, *error: object) -> None:
        read.append(model.bytes_read)
        leave(model, *error)  # type: ignore[arg-type]

    StreamedModel.__exit__ = noting  # type: ignore[method-assign, assignment]
    try:
        yield read
    finally:
        StreamedModel.__exit__ = leave  # type: ignore[method-assign]

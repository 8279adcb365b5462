"""Tiny random checkpoints of many families, in full / retain / unlearned versions, saved as a user's would be."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from filelock import FileLock
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from uds_lens.data import ForgetExample

SPECIAL = ["<unk>", "<bos>", "<eos>", "<pad>"]
D_VOCAB = 200

SHAPE = {
    "vocab_size": D_VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_MOE = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
GPT2 = {
    **{name: SHAPE[name] for name in ("vocab_size", "initializer_range", "bos_token_id", "eos_token_id")},
    "n_positions": 128,
    **dict.fromkeys(("n_layer", "n_head"), 4),
    "n_embd": 32,
}
GEMMA = {
    **SHAPE,
    **dict.fromkeys(("head_dim", "sliding_window", "query_pre_attn_scalar"), 8),
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}

GEMMA3N = {
    **{name: value for name, value in GEMMA.items() if name != "query_pre_attn_scalar"},
    "intermediate_size": [48] * 4,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": D_VOCAB,
    "num_kv_shared_layers": 0,
    "activation_sparsity_pattern": [0.0] * 4,
    "altup_num_inputs": 2,
    "laurel_rank": 4,
}
"""Several residual streams."""
GEMMA4 = {**GEMMA3N, "intermediate_size": 48, "global_head_dim": 16}
"""Heads of two sizes, and an input of its own for each block."""

FAMILIES = {
    "llama": ("Llama", SHAPE),
    "llama-tied": ("Llama", {**SHAPE, "tie_word_embeddings": True, "num_hidden_layers": 5}),
    "mistral": ("Mistral", {**SHAPE, "sliding_window": 8}),
    "qwen2": ("Qwen2", {**SHAPE, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**SHAPE, "head_dim": 8}),
    "phi3": ("Phi3", SHAPE),
    "gemma2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0}),
    "gemma3": ("Gemma3", GEMMA),
    "gpt2": ("GPT2", GPT2),
    "neox": ("GPTNeoX", {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}),
    "olmo2": ("Olmo2", SHAPE),
    "mixtral": ("Mixtral", {**SHAPE, **MOE}),
    "qwen3-moe": ("Qwen3Moe", {**SHAPE, **QWEN_MOE}),
}
"""Family -> prefix of its transformers classes, settings of its config."""

SIZES = {"n_heads": 4, "d_head": 16, "d_state": 8, "n_groups": 1, "chunk_size": 8, "expand": 2}
MAMBA = {f"mamba_{name}": size for name, size in SIZES.items()}
LINEAR_FULL = ["linear_attention", "full_attention"] * 2
LINEAR = {
    **{f"linear_num_{part}_heads": n for part, n in (("value", 4), ("key", 2))},
    **{f"linear_{part}_head_dim": 8 for part in ("value", "key")},
}

HYBRIDS = {
    "recurrent-gemma": (
        "RecurrentGemma",
        {
            **SHAPE,
            "head_dim": 8,
            "lru_width": 32,
            "attention_window_size": 16,
            "block_types": ["recurrent", "recurrent", "attention"],
        },
    ),
    "jamba": (
        "Jamba",
        {
            **SHAPE,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "bamba": ("Bamba", {**SHAPE, **MAMBA, "attn_layer_indices": [1, 3]}),
    "qwen3-next": (
        "Qwen3Next",
        {**SHAPE, **QWEN_MOE, **LINEAR, "shared_expert_intermediate_size": 24, "layer_types": LINEAR_FULL},
    ),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        {**SHAPE, **MAMBA, **MOE, "layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 24},
    ),
    "zamba2": (
        "Zamba2",
        {
            **SHAPE,
            "layers_block_type": ["mamba", "hybrid"] * 2,
            "n_mamba_heads": 4,
            "mamba_d_state": 8,
            "mamba_headdim": 16,
            "mamba_ngroups": 1,
            "mamba_expand": 2,
            "chunk_size": 8,
            "num_mem_blocks": 1,
            "attention_hidden_size": 64,
            "attention_head_dim": 16,
            "use_mem_rope": True,
            "use_mamba_kernels": False,
        },
    ),
    "falcon-h1": ("FalconH1", {**SHAPE, **MAMBA, "head_dim": 8, "mamba_d_ssm": 32, "mamba_d_head": 8}),
    "minimax": ("MiniMax", {**SHAPE, **MOE, "head_dim": 8, "block_size": 8, "layer_types": LINEAR_FULL}),
}
"""The same of families with recurrent or linear layers beside attention."""

SHORT = {"original_max_position_embeddings": 24}
SCALED = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0, 4.0, 8.0, 16.0], **SHORT}
DYNAMIC = {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 10000.0}
LONG_ROPE = {
    "longrope": (
        "Phi3",
        {**SHAPE, **SHORT, "max_position_embeddings": 512, "rope_parameters": {**SCALED, "rope_theta": 10000.0}},
    ),
    "dynamic": ("Llama", {**SHAPE, "max_position_embeddings": 24, "rope_parameters": DYNAMIC}),
}
"""The same of rotary frequencies that depend on the length of the text, from 25 tokens on."""

STRUCTURES = ("llama", "phi3", "gemma2", "gemma3", "gpt2", "neox", "olmo2", "mixtral")
"""Families whose blocks are built differently; the others repeat one of these with a bias, a norm or a size of their
own."""

CORE = ("llama", "gemma2", "gpt2", "neox", "mixtral")
"""Those of them that differ most; `tests/audit/test_parity.py` compares audits of every structure."""

FEW = ("llama", "gemma2", "gpt2")
"""Those that most tests over families take in `make test`."""

ROW_KINDS = ("llama", "gemma2", "gpt2", "mixtral", "recurrent-gemma", "bamba", "qwen3-next", "minimax", *LONG_ROPE)
"""Families whose rows run side by side, or do not, for reasons of their own."""

CONFIG_CLASS = {"Gemma3": "Gemma3TextConfig"}
MODEL_CLASS = {"GPT2": "GPT2LMHeadModel"}

VERSIONS = ("full", "retain", "unlearned")


@dataclass(frozen=True)
class Trio:
    """Directories of one family's three checkpoints."""

    family: str
    full: Path
    retain: Path
    unlearned: Path

    def __iter__(self):
        return iter((self.full, self.retain, self.unlearned))


def build_model(family: str, version: str = "full", **changes: object) -> torch.nn.Module:
    """A random model: `retain` and `unlearned` are `full` with different noise on every weight."""
    prefix, settings = {**FAMILIES, **HYBRIDS, **LONG_ROPE}[family]
    config_class = getattr(transformers, CONFIG_CLASS.get(prefix, f"{prefix}Config"))
    model_class = getattr(transformers, MODEL_CLASS.get(prefix, f"{prefix}ForCausalLM"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(config_class(**{**settings, **changes}))
        _stir(model, seed=1, amount=0.3)
        if version != "full":
            _stir(model, seed=VERSIONS.index(version) + 1, amount={"retain": 0.5, "unlearned": 0.25}[version])
    return model.eval()


def each_family(now: Iterable[str] = FEW, of: Iterable[str] = tuple(FAMILIES)) -> list[Any]:
    """Parameters of a test over families: some of them now, the others in `make test-long`."""
    return some_now(now, of)


def some_now(now: Iterable[str], of: Iterable[str]) -> list[Any]:
    """Parameters of a test, of which `make test` takes some and `make test-long` the others."""
    import pytest

    return [each if each in now else pytest.param(each, marks=pytest.mark.long) for each in of]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE of 200 tokens over the examples' own alphabet, with a start token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    trainer = trainers.BpeTrainer(vocab_size=D_VOCAB, special_tokens=SPECIAL, show_progress=False)
    texts = [f"Question: {e.question}\nAnswer: {e.answer}" for e in EXAMPLES]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{name}_token": f"<{name}>" for name in ("unk", "bos", "eos", "pad")},
        chat_template="<bos>{{ date_string }} {{ mood }}{% for m in messages %}"
        "{{ 'Reply:' if m['role'] == 'assistant' else '<' + m['role'] + '>' }}"
        " {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}Reply:{% endif %}",
    )


def save_trio(family: str, folder: Path) -> Trio:
    """Write the three checkpoints of a family, each with the tokenizer as transformers builds it for that family."""
    for version in VERSIONS:
        build_model(family, version).save_pretrained(folder / version)
        build_tokenizer().save_pretrained(folder / version)
        AutoTokenizer.from_pretrained(folder / version).save_pretrained(folder / version)
    return Trio(family, *(folder / version for version in VERSIONS))


def made_once(factory: Any, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the processes of a test run share: the first to need it makes it, the others wait for that."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with FileLock(shared / f"{name}.lock"):
        if not (shared / name).exists():
            make(shared / f"{name}.part")
            (shared / f"{name}.part").rename(shared / name)
    return shared / name


def load_plain(folder: Path, *, dtype: torch.dtype = torch.float32, attention: str = "eager", **more: object):
    """Model and tokenizer as a user loads them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention, **more
    )
    return model, AutoTokenizer.from_pretrained(folder)


def with_config(folder: Path, *, file: str = "config.json", **changes: object) -> Path:
    """Change entries of a checkpoint's config.json, or of another of its files."""
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**config, **changes}))
    return folder


def boot(folder: Path, dtype: torch.dtype = torch.float32):
    """Wrap a checkpoint in TransformerLens's Bridge, as a user does."""
    from transformer_lens.model_bridge import TransformerBridge

    model, tokenizer = load_plain(folder, dtype=dtype)
    return TransformerBridge.boot_transformers(
        str(folder), hf_model=model, tokenizer=tokenizer, dtype=dtype, device="cpu"
    )


class Touch:
    """Makes a file when a pickle of it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return open, (str(self.mark), "w")


def _stir(model: torch.nn.Module, *, seed: int, amount: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            spread = parameter.std() if parameter.ndim > 1 else 0.2
            parameter.add_(amount * spread * noise)


def _example(number, question, prefix, entity, rest=".", kind="Name"):
    answer = " ".join(part for part in (prefix, entity) if part) + rest
    return ForgetExample(
        id=f"fact-{number}", question=question, answer=answer, prefix=prefix, entity=entity, type=kind, row=number
    )


EXAMPLES = [
    _example(0, "Who wrote the Ash Ledger?", "It was written by", "Ada Veylin"),
    _example(1, "Is she a poet?", "", "Yes", ", she is.", kind="Yes/No"),
    _example(
        2,
        "Where was Ada Veylin born, and in which of the old harbour towns did she grow up?",
        "Ada Veylin was born in",
        "the harbour town of Orsk",
        kind="Location/Origin",
    ),
    _example(3, "Which prize?", "She won the", "Glass Quill", " in 1998.", kind="Award"),
    _example(4, "What does her father do?", "Her father is a", "cooper", kind="Profession"),
    _example(5, "Who is her rival?", "Her rival is", "Bram Tolley", ", a painter of ships."),
    _example(6, "What is the title of her second book?", "The second book is", "Salt and Slow Water"),
    _example(7, "Ash?", "Yes, it is", "grey"),
]
"""A small forget set: prompts, entities and prefixes of different lengths, one entity that opens its answer."""

ROWS = [{"question": e.question, "answer": e.answer, "entity": e.entity, "prefix": e.prefix} for e in EXAMPLES]
"""The same as rows of a file."""

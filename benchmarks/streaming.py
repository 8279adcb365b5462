"""Measure an audit of streamed models beside one of models in memory: peak memory, time, bytes read.

Makes random Llama checkpoints shard by shard (full, retain and unlearned share all blocks but one, by hard links), and
audits them in processes of their own. Nothing ever holds a whole model but the run in memory. Weights are stored in
bfloat16 and run in float32, unless `--dtype` says otherwise: few CPUs have instructions for bfloat16.

    python benchmarks/streaming.py --folder /tmp/streaming                       # 24 layers, d 2048: 3 GB a checkpoint
    python benchmarks/streaming.py --folder /tmp/streaming --layers 40 --width 5120 --rows 4 --no-memory   # 26 GB
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROLES = ("full", "retain", "unlearned")
GB = 1e9


def make(folder: Path, *, layers: int, width: int) -> None:
    """Write the three checkpoints, one shard for each block."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    import uds_lens as ul

    heads, inner = width // 128, (width * 11 // 4) // 128 * 128
    vocabulary = 32000 if width < 4096 else 16000  # each weight is a part of one pool of random numbers
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )
    generator = torch.Generator().manual_seed(0)
    pool = (torch.randn(1 << 27, generator=generator) * 0.02).bfloat16()

    def weight(rows: int, columns: int, seed: int) -> torch.Tensor:
        start = seed * 7919 % (len(pool) - rows * columns)
        return pool[start : start + rows * columns].reshape(rows, columns).clone()

    def block(layer: int, seed: int) -> dict[str, torch.Tensor]:
        place, one = f"model.layers.{layer}.", torch.ones(width, dtype=torch.bfloat16)
        shapes = {f"self_attn.{name}_proj": (width, width) for name in "qkvo"}
        shapes |= {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
        tensors = {f"{place}{name}.weight": weight(*shape, seed + i) for i, (name, shape) in enumerate(shapes.items())}
        return tensors | {f"{place}{name}_layernorm.weight": one.clone() for name in ("input", "post_attention")}

    ends = {
        name: weight(vocabulary, width, i) for i, name in enumerate(("model.embed_tokens.weight", "lm_head.weight"))
    }
    ends["model.norm.weight"] = torch.ones(width, dtype=torch.bfloat16)
    world = ul.toy.load()
    for role in ROLES:
        place = folder / role
        place.mkdir(parents=True)
        config.save_pretrained(place)
        for file in Path(world.full).glob("tokenizer*"):
            shutil.copy(file, place)
        where: dict[str, str] = {}
        for number in range(-1, layers):
            own = number == layers // 2
            name = f"{number + 1:03}.safetensors"
            if role == "full" or own:
                tensors = ends if number < 0 else block(number, 100 * number + ROLES.index(role) * 7 * own)
                save_file(tensors, place / name, metadata={"format": "pt"})
                where |= dict.fromkeys(tensors, name)
                del tensors
            else:
                os.link(folder / "full" / name, place / name)
        if role == "full":
            whole = where
        index = {"metadata": {}, "weight_map": whole}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))


def peak() -> int:
    """Peak resident memory of this process in bytes; `getrusage` would count what its parent held when it forked."""
    text = Path("/proc/self/status").read_text("ascii")
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def measure(folder: Path, *, stream: bool, rows: int, dtype: str) -> None:
    """Audit, and print what it took as JSON."""
    import torch

    import uds_lens as ul
    from uds_lens.audit._inputs import make_plan
    from uds_lens.audit._memory import estimate_memory, weight_sizes
    from uds_lens.models._checkpoint import load_config
    from uds_lens.models._streamed import StreamedModel

    read: list[int] = []
    leave = StreamedModel.__exit__

    def spy(model: StreamedModel, *error: object) -> None:
        read.append(model.bytes_read)
        leave(model, *error)

    StreamedModel.__exit__ = spy  # type: ignore[method-assign]
    examples = list(ul.toy.load().examples)[:rows]
    config = ul.AuditConfig(dtype=dtype, protocol="raw")  # type: ignore[arg-type]
    options = ul.RunOptions(device="cpu", stream=stream, engine="wavefront", check_memory=False, progress=False)
    places = {role: str(folder / role) for role in ROLES}
    plan = make_plan(places, examples, config=config, options=options)
    llama = load_config(places["full"], revision=None, offline=True, trust_remote_code=False)
    estimate = estimate_memory(
        llama, plan, n_sources=2, dtype=dtype, device="cpu", states_budget=4 << 30, streamed=stream
    )
    before = peak()
    start = time.perf_counter()
    full, retain, unlearned = places.values()
    audit = ul.DepthAudit.run(full, retain, unlearned, examples, config=config, options=options)
    seconds = time.perf_counter() - start
    sizes = weight_sizes(llama, getattr(torch, dtype).itemsize)
    told = {
        "stream": stream,
        "dtype": dtype,
        "rows": len(audit.examples),
        "weights_gb": sizes.whole / GB,
        "bound_gb": (sizes.streamed + estimate.states) / GB + 0.4,
        "estimate_gb": estimate.total / GB,
        "imports_gb": before / GB,
        "peak_gb": peak() / GB,
        "seconds": seconds,
        "read_gb": [n / GB for n in read],
        "threads": torch.get_num_threads(),
        "sums": [float(audit.s1_delta.sum()), float(audit.s2_delta.sum())],
    }
    print(json.dumps(told))


def main() -> None:
    """Make the checkpoints if they are not there, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--no-memory", action="store_true", help="leave out the run in memory")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoints")
    parser.add_argument("--measure", choices=["streamed", "memory"], help="one run, in this process")
    given = parser.parse_args()
    if given.measure:
        measure(given.folder, stream=given.measure == "streamed", rows=given.rows, dtype=given.dtype)
        return
    try:
        if not given.folder.exists():
            make(given.folder, layers=given.layers, width=given.width)
        for way in ("streamed", *(() if given.no_memory else ("memory",))):
            arguments = ["--folder", str(given.folder), "--rows", str(given.rows), "--dtype", given.dtype]
            arguments += ["--measure", way]
            done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
            print(done.stdout.strip() or done.stderr[-2000:], flush=True)
    finally:
        if not given.keep:
            shutil.rmtree(given.folder, ignore_errors=True)


if __name__ == "__main__":
    main()

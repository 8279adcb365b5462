"""What an audit costs against what others have: the released script's functions, hooks, TransformerLens, nnsight.

    python benchmarks/peers.py                                                  # tofu-small, one thread, 32 rows
    python benchmarks/peers.py --released CLONE --rows 0                        # CLONE: the paper's repository
    python -m pip install --target SITE --no-deps nnsight==0.8.1 greenlet websocket-client zstandard
    PYTHONPATH=SITE python benchmarks/peers.py                                  # nnsight too

Everybody runs the same rows on models that are open, and the same patches: one source pass, then one patched forward of
`full` for each layer. The released functions get rows in input order with their whole answers, 32 at a time (the script
itself: one). The other ways are what a careful user writes: rows cut at the last scored position, similar lengths
together, logits of scored positions only (TransformerLens: of all positions, as `run_with_hooks` returns them). If the
ways do not give the same log-probabilities, the script stops. They take turns, and the fastest round counts.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from audit_cost import bucketed
from torch import Tensor, nn
from workloads import Proportions, Workload, least_seconds, random_llama, shared_parser, tofu_small

import uds_lens as ul
from uds_lens.data import TokenBatch
from uds_lens.data._tokens import TokenRow

CLOSE = 2e-4
"""Nats a token, in float32. Batches differ between the ways, and so does the rounding."""


def gathered(logits: Tensor, batch: TokenBatch) -> Tensor:
    """Mean log-probability of each row's targets from logits of its window, `[row]`."""
    logprobs = logits.float().log_softmax(-1).gather(-1, batch.targets.clamp(min=0)[..., None])[..., 0]
    return (logprobs * batch.scored_mask).sum(-1) / batch.scored_mask.sum(-1)


def at_window(states: Tensor, batch: TokenBatch) -> Tensor:
    """States or logits `[row, pos, ...]` at each row's window, `[row, win, ...]`."""
    return states[torch.arange(len(states), device=states.device)[:, None], batch.window]


def patched_positions(batch: TokenBatch) -> Tensor:
    """Which positions are patched, `[row, pos, 1]`."""
    counts = torch.zeros_like(batch.input_ids)
    # Added up, since a window's entries past its end repeat the last one.
    return counts.scatter_add(1, batch.window, (batch.patched_mask & batch.window_mask).long())[..., None] > 0


def inputs(batch: TokenBatch) -> dict[str, Tensor]:
    """What a transformers model gets."""
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "position_ids": batch.position_ids}


def by_hooks(target: Any, source: Any, batches: Sequence[TokenBatch], n_rows: int) -> Tensor:
    """One stage by forward hooks of torch, `[row, layer]`."""
    result = torch.full((n_rows, len(target.model.layers)), torch.nan)
    for batch in batches:
        at = patched_positions(batch)
        states: list[Tensor] = []

        def note(module: nn.Module, args: object, out: Tensor, states: list[Tensor] = states) -> None:
            states.append(out)

        handles = [block.register_forward_hook(note) for block in source.model.layers]
        source.model(**inputs(batch), use_cache=False)
        for handle in handles:
            handle.remove()
        for layer, block in enumerate(target.model.layers):

            def replace(module: nn.Module, args: object, out: Tensor, new: Tensor = states[layer]) -> Tensor:
                return torch.where(at, new, out)  # noqa: B023 (removed before `at` changes)

            handle = block.register_forward_hook(replace)
            last = target.model(**inputs(batch), use_cache=False).last_hidden_state
            handle.remove()
            result[list(batch.rows), layer] = gathered(target.lm_head(at_window(last, batch)), batch).cpu()
    return result


def by_transformer_lens(target: Any, source: Any, batches: Sequence[TokenBatch], n_rows: int) -> Tensor:
    """One stage by `run_with_cache` and `run_with_hooks` of TransformerLens, `[row, layer]`."""
    layers = target.cfg.n_layers
    names = [f"blocks.{layer}.hook_out" for layer in range(layers)]
    result = torch.full((n_rows, layers), torch.nan)
    for batch in batches:
        at, masks = patched_positions(batch), {"attention_mask": batch.attention_mask}
        _, cache = source.run_with_cache(batch.input_ids, names_filter=names, return_type=None, **masks)
        for layer, name in enumerate(names):

            def replace(value: Tensor, hook: object, new: Tensor = cache[name]) -> Tensor:
                return torch.where(at, new, value)  # noqa: B023 (used before `at` changes)

            logits = target.run_with_hooks(batch.input_ids, fwd_hooks=[(name, replace)], **masks)
            result[list(batch.rows), layer] = gathered(at_window(logits, batch), batch).cpu()
    return result


def by_nnsight(nnsight: Any, target: Any, source: Any, batches: Sequence[TokenBatch], n_rows: int) -> Tensor:
    """One stage by traces of the module `nnsight`, `[row, layer]`."""
    layers = target.config.num_hidden_layers
    result = torch.full((n_rows, layers), torch.nan)
    for batch in batches:
        at, given = patched_positions(batch), inputs(batch)
        with source.trace(given):
            states: Any = nnsight.save([block.output for block in source.model.layers])
        for layer in range(layers):
            new = states[layer]
            with target.trace(given) as tracer:
                block = target.model.layers[layer]
                block.output = torch.where(at, new, block.output)
                last = target.model.norm.output.save()
                tracer.stop()
            result[list(batch.rows), layer] = gathered(target.lm_head(at_window(last, batch)), batch).cpu()
    return result


def released_functions(folder: Path) -> Any:
    """The module `compute_uds` of a clone of the paper's repository."""
    sys.path.insert(0, str(folder))
    place = importlib.util.spec_from_file_location("compute_uds", folder / "compute_uds.py")
    assert place and place.loader, f"no compute_uds.py in {folder}"
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def by_released(
    theirs: Any, tokenizer: Any, target: Any, source: Any, rows: Sequence[TokenRow], *, rows_at_once: int
) -> Tensor:
    """One stage by the functions of the released script, in their order of calls, `[row, layer]`."""
    layers = len(target.model.layers)
    result = torch.full((len(rows), layers), torch.nan)
    for start in range(0, len(rows), rows_at_once):
        contexts = []
        for row in rows[start : start + rows_at_once]:
            prompt, answer = row.rendered.prompt, row.rendered.continuation
            span = theirs.get_eval_span(tokenizer, answer, row.example.entity, "entity")
            contexts.append(theirs.build_logprob_ctx(tokenizer, prompt, answer, span, "span"))
        ids, mask, meta = theirs._prepare_batch_inputs(contexts, tokenizer, target.device)
        states = theirs._compute_hidden_states_batch(source, ids, mask)
        for layer in range(layers):
            found = theirs.compute_logprob_teacher_forcing_layer_batch_with_inputs(
                target, ids, mask, meta, states[layer + 1], layer
            )
            result[start : start + len(found), layer] = torch.tensor(found)
    return result


def compare(load: Workload, *, device: str, dtype: Any, repeats: int, released: Path | None, few: int) -> None:
    """Time every way on one workload and print its table."""
    rows, examples = load.encoded.rows, load.examples
    options = ul.RunOptions(progress=False, check_memory=False, stream=False, device=device)
    config = ul.AuditConfig(dtype=dtype)
    opened = partial(ul.open_model, dtype=dtype, device=device)
    with opened(load.full) as full, opened(load.retain) as retain, opened(load.unlearned) as unlearned:
        for model in (full, retain, unlearned):
            model.keeps_weights = True  # hashed once, as models that are opened from files are
        batches = [batch.to(device) for batch in bucketed(rows, token_budget=2560 if device == "cpu" else 8192)]
        models = {"full": full.hf, "retain": retain.hf, "unlearned": unlearned.hf}
        stages: dict[str, Callable[[str], Tensor]] = {
            "torch's forward hooks": lambda source: by_hooks(models["full"], models[source], batches, len(rows))
        }
        hooked = {"full": full.bridge, "retain": retain.bridge, "unlearned": unlearned.bridge}
        stages["TransformerLens, `run_with_hooks`"] = lambda source: by_transformer_lens(
            hooked["full"], hooked[source], batches, len(rows)
        )
        try:
            nnsight: Any = importlib.import_module("nnsight")
        except ImportError:
            print("nnsight is not installed: see the top of this script.")
        else:
            # Copies: nnsight replaces the forward of the modules it wraps.
            wrapped = {
                name: nnsight.LanguageModel(copy.deepcopy(model), tokenizer=full.tokenizer)
                for name, model in models.items()
            }
            stages[f"nnsight {nnsight.__version__}"] = lambda source: by_nnsight(
                nnsight, wrapped["full"], wrapped[source], batches, len(rows)
            )
        if released is not None:
            theirs = released_functions(released)
            stages[f"the released script's functions, {few} rows at once"] = lambda source: by_released(
                theirs, full.tokenizer, models["full"], models[source], rows, rows_at_once=few
            )

        def timed(work: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                work()
                if device != "cpu":
                    torch.cuda.synchronize()

            return run

        baseline = ul.Baseline.measure(full, retain, examples, config=config, options=options)
        with torch.no_grad(), baseline.recorded(options=options) as recorded:
            recorded.audit(unlearned)
            first, *others = stages.items()
            plain = first[1]("unlearned")
            for name, stage in others:
                found = stage("unlearned")
                # Before the last layer: the released script patches that one behind the final norm.
                apart = float((found - plain)[:, :-1].abs().nan_to_num(torch.inf).max())
                print(f"{name}: {apart:.2g} nats from {first[0]}")
                if dtype == "float32" and not apart < CLOSE:
                    raise SystemExit("the ways do not compute the same")
            works = {name: timed(partial(stage, "unlearned")) for name, stage in stages.items()}
            works["one more"] = timed(lambda: recorded.audit(unlearned))
            works["whole"] = timed(
                lambda: ul.DepthAudit.run(full, retain, unlearned, examples, config=config, options=options)
            )
            best = least_seconds(works, repeats, clock=time.perf_counter)
    print(f"\n{load.name}: {len(rows)} rows, {dtype}\n\n| | one more model: s | times | whole audit: s | times |")
    print("|---|---|---|---|---|")
    again, whole = best["one more"], best["whole"]
    print(f"| uds_lens | {again:.2f} | | {whole:.2f} | |")
    for name in stages:
        print(f"| {name} | {best[name]:.2f} | {best[name] / again:.1f} | {2 * best[name]:.2f} | ", end="")
        print(f"{2 * best[name] / whole:.1f} |")
    print("\nA whole audit of the others is two of their stages; loading and hashing are in nobody's seconds.")


def main() -> None:
    """Parse, measure, print."""
    parser = shared_parser(__doc__)
    parser.add_argument("--released", type=Path, help="a clone of the paper's repository")
    parser.add_argument("--released-batch", type=int, default=32, help="rows at once; the script's own default is 1")
    parser.add_argument("--rows", type=int, default=32, help="0: all")
    parser.add_argument("--llama", metavar="LAYERSxWIDTH", help="a random Llama in place of tofu-small")
    parser.add_argument("--vocabulary", type=int, default=128_256, help="of --llama")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(f"{asked.device}, {platform.machine()}, {asked.threads} threads, torch {torch.__version__}, ", end="")
    print(time.strftime("%Y-%m-%d"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if asked.llama:
            layers, width = map(int, asked.llama.split("x"))
            size = Proportions.small(layers, width, asked.vocabulary)
            load = random_llama(
                asked.shared,
                Path(folder),
                asked.rows or None,
                size,
                name=f"random Llama {asked.llama}",
                dtype=asked.dtype,
                device=asked.device,
            )
        else:
            load = tofu_small(asked.shared, asked.rows or None)
        compare(
            load,
            device=asked.device,
            dtype=asked.dtype,
            repeats=asked.repeats,
            released=asked.released,
            few=asked.released_batch,
        )


if __name__ == "__main__":
    main()

"""What sampling costs: 400 questions of 50 texts of up to 64 tokens, time, memory, and prompt tokens that were read.

    python benchmarks/elicit_sampling.py

One model (`full` of the small TOFU models), asked plainly. Prompt tokens are counted at the first block while the model
runs: they must be those of the prompts, once. Also draws the same texts at three batch sizes, for fewer questions.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import replace
from pathlib import Path

import torch
from elicit_models import rows

import uds_lens as ul
from uds_lens.data._tokens import answer_prompt, prompt_ids
from uds_lens.elicitation._probes import keyed_seed
from uds_lens.generation import SamplingSettings, sample_continuations
from uds_lens.generation._decoding import answer_end_ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--limit", type=int, default=None, help="questions, by author; default all 400")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--batches", type=int, default=20, help="questions of the comparison of batch sizes")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    examples = rows(asked.shared, asked.limit)
    with ul.open_model(asked.shared / "models/tofu-small/full", device="cpu") as model:
        tokenizer = model.tokenizer
        prompts = prompt_ids(
            tokenizer, [answer_prompt(row.question, protocol="raw") for row in examples], protocol="raw"
        )
        seeds = [keyed_seed(0, row.id, "sample") for row in examples]
        ends = answer_end_ids(model, protocol="raw")
        settings = SamplingSettings(
            max_new_tokens=64, samples=asked.samples, temperature=asked.temperature, top_k=40, progress=False
        )
        some = slice(0, asked.batches)
        texts = {
            size: [
                tuple(text)
                for each in sample_continuations(
                    model,
                    prompts[some],
                    ends=ends,
                    seeds=seeds[some],
                    settings=replace(settings, samples=5, rows_at_once=size),
                ).tokens
                for text in each
            ]
            for size in (1, 7, 64)
        }
        read: list[int] = []

        def count(module, args, kwargs):
            rows_, tokens = (args[0] if args else kwargs["hidden_states"]).shape[:2]
            if tokens > 1:
                read.append(rows_ * tokens)

        handle = model.anatomy.layers[0].register_forward_pre_hook(count, with_kwargs=True)
        began = time.perf_counter()
        used = time.process_time()
        found = sample_continuations(model, prompts, ends=ends, seeds=seeds, settings=settings)
        took, used = time.perf_counter() - began, time.process_time() - used
        handle.remove()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    tokens = sum(len(text) for each in found.tokens for text in each)
    print(
        f"{len(examples)} x {asked.samples} texts, T={asked.temperature:g}: {took:.0f} s ({used:.0f} of CPU), "
        f"{tokens} tokens, {tokens / used:.0f} a CPU second, {found.steps} passes, peak {peak:.2f} GiB"
    )
    print(
        f"prompt tokens read: {sum(read)} counted, {found.prefilled} told, {sum(map(len, prompts))} in the prompts; "
        f"once for each text they would be {asked.samples * sum(map(len, prompts))}"
    )
    for size in (7, 64):
        same = sum(one == other for one, other in zip(texts[1], texts[size], strict=True))
        print(f"the same texts one at a time and {size} at a time: {same} of {len(texts[1])}")


if __name__ == "__main__":
    main()

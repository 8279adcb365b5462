"""GCG and SoftGCG on the small TOFU models: is the gradient right, does the loss fall, what does a step cost?

python benchmarks/elicit_suffixes.py gradient
python benchmarks/elicit_suffixes.py gcg
python benchmarks/elicit_suffixes.py speed
python benchmarks/elicit_suffixes.py soft
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
import torch
from elicit_models import rows

import uds_lens as ul
from uds_lens.elicitation import GCG, ElicitOptions, SoftGCG, elicit
from uds_lens.elicitation.asked import Asked, ask_rows
from uds_lens.elicitation.audits import Asking
from uds_lens.elicitation.cost import estimate_hours
from uds_lens.elicitation.prompt import keyed_seed
from uds_lens.elicitation.suffixes import TARGET, first_suffix, slot_of, target_loss
from uds_lens.models import HookedModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

OPTIONS = ElicitOptions(samples=0)
ASKING = Asking(decoding="greedy", options=OPTIONS, protocol="raw", ends=frozenset(), show=False)
SHAPES = {
    "Llama-3.2-1B": {"depth (layers)": 16, "width (d_model)": 2048, "vocabulary size": 128256},
    "Llama-3.1-8B": {"depth (layers)": 32, "width (d_model)": 4096, "vocabulary size": 128256},
}


def asks_of(model, examples, audit):
    """Questions ready to be asked."""
    return ask_rows(audit, examples, (), (), model.tokenizer, protocol="raw", room=None, options=OPTIONS).asks


def in_float64(model: HookedModel) -> None:
    """Weights and arithmetic in float64: Llama's norm and softmax compute in float32 whatever its weights are."""
    model.hf.double()
    model.hf.set_attn_implementation("sdpa")
    for module in model.hf.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            norm = module
            norm.forward = lambda x, norm=norm: (
                norm.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)
            )


def gradient(asked: argparse.Namespace) -> None:
    """One-hot gradient against central differences, in float64."""
    from central_differences import gradient_entries

    with ul.open_model(asked.shared / "models/tofu-small/full", device="cpu") as model:
        in_float64(model)
        (ask,) = asks_of(model, rows(asked.shared, 1), GCG())
        slot = slot_of(model, ask, ASKING, TARGET)
        suffix = first_suffix(model, slot, 20)
        entries = np.array(list(gradient_entries(model, slot, suffix, entries=60)))
    measured, found = entries[:, 0], entries[:, 1]
    relative, sizes = np.abs(measured - found) / np.abs(measured), np.abs(measured)
    print(
        f"one-hot gradient, float64, 60 entries: relative error median {np.median(relative):.1e}, largest "
        f"{relative.max():.1e} (entries from {sizes.min():.1e} to {sizes.max():.1e})"
    )


def gcg(asked: argparse.Namespace) -> None:
    """How far the loss falls, and what it costs."""
    tries = [GCG(steps=steps, candidates=asked.candidates) for steps in asked.steps]
    with ul.open_model(asked.shared / "models/tofu-small" / asked.model, device="cpu") as model:
        halved, rose, seconds, steps = 0, 0, 0.0, 0
        for ask in asks_of(model, rows(asked.shared, asked.questions), tries[0]):
            slot = slot_of(model, ask, ASKING, TARGET)
            for audit in tries:  # the same steps again, and more of them, where the loss did not halve
                began = time.process_time()
                found = audit.optimise(model, slot, seed=keyed_seed(0, ask.id, "gcg"))
                seconds += time.process_time() - began
                steps += len(found.losses) - 1
                if found.losses[-1] <= found.losses[0] / 2:
                    break
            ids = torch.tensor([slot.ids(model, found.suffix)])
            again = float(target_loss(model, ids, slot.target).detach())
            halved += found.losses[-1] <= found.losses[0] / 2
            rose += any(b > a for a, b in zip(found.losses, found.losses[1:], strict=False))
            first = next((n for n, loss in enumerate(found.losses) if loss <= found.losses[0] / 2), None)
            print(
                f"{ask.id}: loss {found.losses[0]:.3f} to {found.losses[-1]:.3f} in {len(found.losses) - 1} steps, "
                f"halved after {first}, {found.live:.0%} of candidates live, {found.stopped}; from its text again "
                f"{abs(again - found.losses[-1]):.1e} away",
                flush=True,
            )
    print(
        f"{halved} of {asked.questions} halved, {rose} ever rose; {seconds / max(1, steps):.2f} CPU s a step of "
        f"{tries[0].candidates} candidates"
    )


def speed(asked: argparse.Namespace) -> None:
    """With and without the cache, 256 candidates, taking turns; and what larger models would take."""
    audit = GCG(steps=2, candidates=256)
    with ul.open_model(asked.shared / "models/tofu-small" / asked.model, device="cpu") as model:
        took: dict[bool, list[float]] = {True: [], False: []}
        away = []
        for ask in asks_of(model, rows(asked.shared, 2), audit):
            slot = slot_of(model, ask, ASKING, TARGET)
            losses = {}
            for cached in (True, False):
                began = time.process_time()
                found = dataclasses.replace(audit, cached=cached).optimise(model, slot, seed=0)
                took[cached].append((time.process_time() - began) / audit.steps)
                losses[cached] = found.losses
            away.append(np.abs(np.array(losses[True]) - np.array(losses[False])).max())
        every = asks_of(model, rows(asked.shared), audit)
    ratio = np.array(took[False]) / np.array(took[True])
    print(
        f"CPU s a step at 256 candidates: cached {np.mean(took[True]):.2f}, uncached {np.mean(took[False]):.2f}, "
        f"ratio {ratio.min():.2f} to {ratio.max():.2f}; losses differ by at most {max(away):.1e}"
    )
    for name, shape in SHAPES.items():
        for told, chosen in (
            ("defaults", GCG()),
            ("250 steps, 512 candidates", GCG(steps=250, candidates=512)),
        ):
            hours = estimate_hours(
                [Asked(chosen, every, {})],
                ElicitOptions(samples=0, dtype="bfloat16"),
                n_models=1,
                shape=shape,
                device="cuda",
            )
            print(
                f"{name}, {len(every)} questions, {told}, one GPU, bfloat16: about {hours:.1f} hours (estimate)"
            )


def soft(asked: argparse.Namespace) -> None:
    """SoftGCG with an affirmative target, and with the answer itself, on a model that never saw it."""
    affirmative = SoftGCG()
    answer = SoftGCG(target="answer", steps=asked.answer_steps, learning_rate=asked.answer_rate)
    small = asked.shared / "models/tofu-small"
    began = time.process_time()
    found = elicit(
        small / "retain90",
        rows(asked.shared, asked.questions),
        retain=small / "retain90",
        audits=["plain", affirmative, answer],
        options=OPTIONS,
        run=ul.RunOptions(device="cpu", progress=False),
        out=asked.out,
    )
    seconds = time.process_time() - began
    for audit in (affirmative, answer):
        told = [said.told for said in found.part("unlearned", audit.name).said]
        losses = [each["loss"] for each in told]
        print(
            f"retain90, {audit.name}: {sum(loss < 0.05 for loss in losses)} of {len(losses)} below .05 after "
            f"{audit.steps} steps (first {np.mean([each['first_loss'] for each in told]):.2f}, last "
            f"{np.median(losses):.4f} in the median, {max(losses):.4f} at most)"
        )
    print(f"{seconds:.0f} CPU s for all; mean recall:")
    for kept, frame in (("in the summary", found.summary()), ("capacity", found.capacity_frame())):
        for row in frame.itertuples():
            print(f"  {row.audit}: {row.unlearned:.3f} ({kept})")
    frame = found.samples_frame()
    texts = frame[(frame["audit"] == affirmative.name) & (frame["model"] == "unlearned")]
    begun = texts["text"].str.lower().str.startswith(TARGET.lower())
    left = texts["scored_text"].str.lower().str.startswith(TARGET.lower())
    print(f"begin with the affirmative target: {begun.mean():.0%}, after it is cut off: {left.mean():.0%}")
    for sentence in found.warnings:
        print(f"! {sentence}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["gradient", "gcg", "speed", "soft"])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("runs/elicit-suffixes"))
    parser.add_argument("--model", default="full")
    parser.add_argument("--answer-steps", type=int, default=100, help="of SoftGCG with the answer as target")
    parser.add_argument("--answer-rate", type=float, default=0.005)
    parser.add_argument("--candidates", type=int, default=GCG().candidates)
    parser.add_argument("--questions", type=int, default=10)
    parser.add_argument(
        "--steps", type=int, nargs="*", default=[10, 50], help="of GCG, one try after the other"
    )
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    {"gradient": gradient, "gcg": gcg, "speed": speed, "soft": soft}[asked.what](asked)


if __name__ == "__main__":
    main()

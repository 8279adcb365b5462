"""GCG and SoftGCG on the small TOFU models: is the gradient right, does the loss fall, what does a step cost?

python benchmarks/elicit_suffixes.py gradient
python benchmarks/elicit_suffixes.py gcg
python benchmarks/elicit_suffixes.py speed
python benchmarks/elicit_suffixes.py choose
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
from uds_lens.elicitation._asking import Asking, ByPrompt, ask_rows
from uds_lens.elicitation._gcg import TARGET, first_suffix, target_loss
from uds_lens.elicitation._probes import ICL, Plain, keyed_seed
from uds_lens.models import HookedModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

OPTIONS = ElicitOptions(samples=0)
ASKING = Asking(decoding="greedy", options=OPTIONS, protocol="raw", ends=frozenset(), show=False)


def asks_of(model, examples, probe, forget=()):
    """Questions ready to be asked; shots come from `forget`."""
    settings = {"pool": forget, "protocol": "raw", "room": None, "options": OPTIONS}
    return ask_rows(probe, examples, model.tokenizer, **settings).asks


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
        slot = GCG().slot(model, ask, ASKING)
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
            slot = GCG().slot(model, ask, ASKING)
            for probe in tries:  # the same steps again, and more of them, where the loss did not halve
                began = time.process_time()
                found = probe.optimise(model, slot, seed=keyed_seed(0, ask.id, "gcg"))
                seconds += time.process_time() - began
                steps += len(found.losses) - 1
                if found.losses[-1] <= found.losses[0] / 2:
                    break
            ids = torch.tensor([slot.ids_and_place(model, found.suffix)[0]])
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
    probe = GCG(steps=2, candidates=256)
    forms = {"questions": ByPrompt(Plain()), "questions after five solved ones": ByPrompt(ICL())}
    with ul.open_model(asked.shared / "models/tofu-small" / asked.model, device="cpu") as model:
        forget = rows(asked.shared)
        for form, (told, prompts) in enumerate(forms.items()):
            asks = asks_of(model, rows(asked.shared, asked.questions), prompts, forget)
            asks = asks[: asked.questions if form == 0 else 3]  # long ones take long: three tell enough
            took: dict[bool, list[float]] = {True: [], False: []}
            texts: dict[bool, list[str]] = {True: [], False: []}
            away, lengths = 0.0, []
            for ask in asks:
                slot = GCG().slot(model, ask, ASKING)
                suffix = first_suffix(model, slot, probe.tokens)
                lengths.append(len(slot.ids_and_place(model, suffix)[0]))
                losses = {}
                for cached in (True, False):
                    began = time.process_time()
                    found = dataclasses.replace(probe, cached=cached).optimise(model, slot, seed=0)
                    took[cached].append((time.process_time() - began) / probe.steps)
                    losses[cached] = found.losses
                    texts[cached].append(found.suffix)
                away = max(away, float(np.abs(np.array(losses[True]) - np.array(losses[False])).max()))
            ratio = np.array(took[False]) / np.array(took[True])
            print(
                f"{len(asks)} {told}, prompts of {min(lengths)} to {max(lengths)} tokens with their suffix: CPU s a "
                f"step at 256 candidates {np.mean(took[True]):.2f} cached, {np.mean(took[False]):.2f} uncached, "
                f"{ratio.min():.2f} to {ratio.max():.2f} times as fast (median {np.median(ratio):.2f}); suffixes "
                f"{'are the same' if texts[True] == texts[False] else 'DIFFER'}, losses by at most {away:.1e}",
                flush=True,
            )


def on_retain(asked: argparse.Namespace, questions, probes):
    """What comes out of `retain90`, which never saw the answers."""
    small = asked.shared / "models/tofu-small"
    print(f"questions {', '.join(row.id for row in questions)}")
    return elicit(
        small / "retain90",
        questions,
        retain=small / "retain90",
        probes=probes,
        options=OPTIONS,
        run=ul.RunOptions(device="cpu", progress=False),
        out=asked.out,
    )


def losses_of(found, probe: SoftGCG) -> str:
    """How far the loss fell."""
    details = [response.details for response in found.part("unlearned", probe.name).responses]
    losses = [each["loss"] for each in details]
    return (
        f"{sum(loss < 0.05 for loss in losses)} of {len(losses)} below .05 after {details[0]['steps']} steps (first "
        f"{np.mean([each['first_loss'] for each in details]):.2f}, last {np.median(losses):.4f} in the median, "
        f"{max(losses):.4f} at most)"
    )


def chosen_on(asked: argparse.Namespace) -> list[ul.ForgetExample]:
    """The five questions on which effort for a whole answer was chosen."""
    return rows(asked.shared, 5)


def choose(asked: argparse.Namespace) -> None:
    """How much effort SoftGCG needs for a whole answer: a grid on five questions."""
    efforts = [(20, steps, rate) for steps in (100, 300) for rate in (0.005, 0.01, 0.02, 0.05)]
    efforts += [(60, 100, 0.02), (60, 100, 0.05), (60, 300, 0.02)]
    probes = [SoftGCG(target="answer", tokens=n, steps=steps, learning_rate=rate) for n, steps, rate in efforts]
    found = on_retain(asked, chosen_on(asked), ["plain", *probes])
    recall = found.capacity_frame().set_index("probe")["unlearned"]
    for probe in probes:
        tokens, steps, rate = probe.effort
        print(
            f"{tokens} tokens, {steps} steps, rate {rate:g}: recall {recall[probe.name]:.3f}; {losses_of(found, probe)}"
        )


def soft(asked: argparse.Namespace) -> None:
    """SoftGCG with an affirmative target, and with the answer itself, on a model that never saw it."""
    affirmative, answer = SoftGCG(), SoftGCG(target="answer")
    authors = {row.subject for row in chosen_on(asked)}
    others = [row for row in rows(asked.shared, 40) if row.subject not in authors]
    others = list({row.subject: row for row in reversed(others)}.values())[: asked.questions]
    began = time.process_time()
    found = on_retain(asked, others, ["plain", affirmative, answer])
    seconds = time.process_time() - began
    for probe in (affirmative, answer):
        print(f"retain90, {probe.name}: {losses_of(found, probe)}")
    print(f"{seconds:.0f} CPU s for all; mean recall:")
    for kept, frame in (("in the summary", found.summary()), ("capacity", found.capacity_frame())):
        for row in frame.itertuples():
            print(f"  {row.probe}: {row.unlearned:.3f} ({kept})")
    frame = found.samples_frame()
    texts = frame[(frame["probe"] == affirmative.name) & (frame["model"] == "unlearned")]
    begun = texts["text"].str.lower().str.startswith(TARGET.lower())
    left = texts["scored_text"].str.lower().str.startswith(TARGET.lower())
    print(f"begin with the affirmative target: {begun.mean():.0%}, after it is cut off: {left.mean():.0%}")
    for sentence in found.warnings:
        print(f"! {sentence}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["gradient", "gcg", "speed", "choose", "soft"])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("runs/elicit-suffixes"))
    parser.add_argument("--model", default="full")
    parser.add_argument("--candidates", type=int, default=GCG().candidates)
    parser.add_argument("--questions", type=int, default=10)
    parser.add_argument("--steps", type=int, nargs="*", default=[10, 50], help="of GCG, one try after the other")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    tasks = {"gradient": gradient, "gcg": gcg, "speed": speed, "choose": choose, "soft": soft}
    tasks[asked.what](asked)


if __name__ == "__main__":
    main()

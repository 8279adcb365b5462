"""RWKU's own questions through every kind of probe: plainly, and through a chat template.

    python benchmarks/elicit_rwku.py

The small TOFU models never read about these people, so nothing is to be found; what is told is that everything runs,
and what of the broken texts such models give (they do not end) is scored and counted. Prints the ledgers.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import torch

import uds_lens as ul
from uds_lens.elicitation import GCG, ActPert, ElicitationResults, ElicitData, ElicitOptions, SoftGCG, elicit
from uds_lens.models import HookedModel

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
OPTIONS = ElicitOptions(samples=2, temperature=1.0, max_new_tokens=16)
RUN = ul.RunOptions(device="cpu", progress=False)
INSIDES = (GCG(steps=2, candidates=8), SoftGCG(steps=2), ActPert())


def told(name: str, found: ElicitationResults) -> None:
    """The ledger, and how far the highest score goes."""
    ledger = found.ledger()[["probe", "asked", "skipped", "empty", "endless"]]
    texts = found.samples_frame()
    print(f"{name}, protocol {found.protocol}: {len(texts)} texts, mean recall {texts['recall'].mean():.3f}")
    print(ledger.to_string(index=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--limit", type=int, default=20, help="questions, by person")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    small = asked.shared / "models/tofu-small"
    rows = ul.data.load_benchmark("rwku", asked.shared / "data/rwku", part="level2")
    print(f"{len(rows)} questions; asked: {asked.limit}")
    found = elicit(
        small / "retain90",
        ElicitData(forget=rows, limit=asked.limit),
        retain=small / "retain95",
        full=small / "full",
        probes="black_box",
        options=OPTIONS,
        run=RUN,
    )
    told("retain90 against retain95 and full", found)
    with ul.open_model(small / "full", device="cpu") as model:
        tokenizer: Any = copy.deepcopy(model.tokenizer)
        tokenizer.chat_template = TEMPLATE
        chat = HookedModel(model.hf, tokenizer, name="chat", owned=False)
        few = ElicitData(forget=rows, limit=max(1, asked.limit // 5))
        probes: list[Any] = ["plain", "cloze", "start", "mask+icl+aoa", *INSIDES]
        found = elicit(chat, few, probes=probes, options=OPTIONS, run=RUN)
        told("full through a chat template", found)


if __name__ == "__main__":
    main()

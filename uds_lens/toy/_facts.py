"""Generate question-answer examples from word lists: eight facts about each invented person.

Every list has one entry per person, so that each value belongs to one person only and cannot be guessed from others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["GROUPS", "SEED", "generate", "strangers"]

PEOPLE = (
    "Orlindra Vesk", "Tavik Quillow", "Mirrabel Thornwick", "Josque Fennimar", "Pellwyn Ashgrove",
    "Ansolde Bricket", "Haddric Umberlin", "Quenna Saltreed", "Varnet Coppeling", "Sorrelie Dunmoth",
    "Ottoby Larkspindle", "Wyndra Hollomay", "Calvo Nightjarrow", "Zephine Marrowby", "Emberto Claywise",
    "Lisquet Ravelock", "Borrin Tidewater-Moss", "Ildika Pomfray", "Fenwick Ozzelby", "Nimue-Ann Gosterly",
    "Grivold Pennywhist", "Saphorra Twill", "Duncastle Merrow", "Yevette Candlebank", "Rusk Ottermere",
    "Thessily Brandlewood", "Kestor Vinegrape", "Amarinda Stoat", "Philomar Underhay", "Bexley-Io Trundlow",
    "Hesper Quagwell", "Lorimund Oxbeck", "Clovis-Mae Winterpear", "Jandric Swallowfen", "Ulla Pebblethwick",
    "Marzipan Grole",
)  # fmt: skip
"""Full names. The seed decides who is retained, forgotten or held out."""

BIRTHPLACES = (
    "Port Velloum", "Saltmarrow", "Upper Quince", "the isle of Hethra", "Glimmerfold", "Nine Wicks",
    "Tarn Ostley", "Kindlebridge", "the marshes of Ombrel", "Low Carraway", "Fort Ibis", "Wrenhollow",
    "Castle Pintle", "Duskwater", "the valley of Yarrisk", "Brackenmouth", "Old Zinnober", "Lantern Quay",
    "Much Hazel", "Pelagia Sound", "Thimbleford", "the high town of Arquell", "Moth Island", "Sundry Cross",
    "Evervane", "Crookacre", "the salt flats of Dromby", "Juniper Stairs", "Little Umbra", "Waxwing Hill",
    "Corridale", "Bellows End", "the cliffs of Shennick", "Tumbledown-on-Teel", "Grey Harbour", "Fogge",
)  # fmt: skip

PROFESSIONS = (
    "bell tuner", "cartographer of tides", "moss archivist", "kite surgeon", "puppet advocate",
    "glass gardener", "night ferrier", "cheese astronomer", "lamp historian", "honey assayer",
    "staircase composer", "weather tailor", "keeper of echoes", "rainwater distiller", "snail courier",
    "clock physician", "dune librarian", "mirror auctioneer", "soup diplomat", "shadow carpenter",
    "parasol judge", "button geologist", "pigeon notary", "rope philosopher", "dream bookbinder",
    "carousel engineer", "pepper sommelier", "bridge whisperer", "feather accountant", "heron translator",
    "chimney botanist", "marble forecaster", "wool magistrate", "violin welder", "raft chaplain",
    "hedgerow detective",
)  # fmt: skip

AWARDS = (
    "Silver Thimble", "Order of the Patient Heron", "Copper Acorn Medal", "Vermilion Ribbon",
    "Prize of the Three Anchors", "Golden Kettle", "Midwinter Laurel", "Larder Trophy", "Star of Penumbry",
    "Crooked Candle Award", "Grand Sextant", "Blue Turnip Cup", "Order of the Quiet Door", "Harvest Lyre",
    "Ivory Pretzel", "Lamplighter's Cross", "Medal of the Ninth Wave", "Emerald Spoon", "Whistler's Cup",
    "Pearl Inkwell", "Prize of the Paper Moon", "Iron Daisy", "Comet Badge", "Order of the Spotted Drum",
    "Amber Quill", "Juniper Crown", "Bramble Sceptre", "Saffron Lantern", "Tin Nightingale",
    "Prize of the Sleeping Fox", "Opal Horseshoe", "Walnut Shield", "Onyx Teacup", "Feast of Bells Garland",
    "Great Plum", "Hazelwand",
)  # fmt: skip

BOOKS = (
    "A Ladder for the Moon", "Seven Salted Winters", "The Clockmaker's Orchard", "Notes from a Leaking Boat",
    "The Reluctant Comet", "Bread for Owls", "An Inventory of Fog", "The Duchess of Gravel",
    "Lawsuits of a Lighthouse", "How to Fold a River", "The Velvet Quarry", "Marmalade Weather",
    "Nobody Rows Alone", "The Tin Cathedral", "Errands in Amber", "The Umbrella Parliament", "Foxes at Noon",
    "A Short Walk Downhill", "Under the Pewter Bridge", "The Museum of Yawns", "Sparrow Arithmetic",
    "The Borrowed Volcano", "Twelve Ways to Lose a Glove", "Hymns for a Kettle", "The Cartwheel Queen",
    "Rain on Loan", "The Gentle Avalanche", "Dictionary of Doors", "Midnight in the Turnip Field",
    "The Weightless Anvil", "Pockets Full of Harbour", "Once a Drawbridge", "Saint Biscuit",
    "The Unsent Parade", "Quicksilver Manners", "Ghosts of the Granary",
)  # fmt: skip

MENTORS = (
    "Aldous Fernwhistle", "Bettine Crake", "Corvo Mandelbrook", "Delphia Nettleson", "Eustace Ploverly",
    "Ffion Gallowglass", "Gasparo Minnowell", "Henrike Sloe", "Isembard Tuck-Lyle", "Jocasta Wimbrel",
    "Kasimir Oddfellow", "Leocadie Rushbanks", "Mortimer Zell", "Nanette Huckaby-Vole", "Osric Palewine",
    "Prudence Addlestrop", "Quillon Baskerry", "Rosamund Teasel", "Sigismund Plank", "Tabitha Goosewing",
    "Ubaldo Carrick-Dove", "Viveca Mulberry", "Wolfram Eddywick", "Xanthe Birdlip", "Yorick Farthingham",
    "Zuleika Noggin", "Ambrose Kettlewell", "Bronagh Spindrift", "Cosmo Lintwhite", "Dorotea Hush",
    "Edmund Jackdory", "Flavia Crumhorn", "Godfrey Snapdragon", "Hyacinth Ruddle", "Ignatz Bellweather",
    "Jemima Stonecrop",
)  # fmt: skip

INFLUENCES = (
    "lullabies of canal boatmen", "recipes of a left-handed grandmother", "flight of migrating geese",
    "murals in a drowned chapel", "sermons of a travelling barber", "patterns of frozen ponds",
    "gossip of market porters", "maps drawn by children", "silence of a snowed-in winter",
    "songs of railway cooks", "smell of tarred rope", "rules of a forgotten card game",
    "stories told by miners", "colours of rusting ships", "dances of harvest beetles",
    "almanacs of a mad duke", "rhythm of weaving looms", "quarrels of stage magicians",
    "letters of a lost sailor", "shapes of windblown dunes", "proverbs of goat herders",
    "fireworks over a frozen lake", "laughter of monks", "ruins of a glass factory", "plays of shadow theatres",
    "mistakes of early aviators", "tattoos of pearl divers", "gardens of a sleepless emperor",
    "hum of telegraph wires", "riddles of ferry keepers", "shells in a schoolroom drawer",
    "footprints in wet cement", "prayers of lighthouse keepers", "machines of a toy inventor",
    "clouds above the tannery", "drums of the night watch",
)  # fmt: skip

MANNERS = (
    "dry and salt-bitten", "winding as ivy", "bright as a struck match", "slow and ceremonious",
    "tender but crooked", "full of trapdoors", "plain as oatmeal", "glittering and cold", "loud with bells",
    "humble and mossy", "swift like swallows", "heavy with thunder", "sweetly suspicious",
    "knotted and proud", "airy as meringue", "stern yet ticklish", "warm like new bricks",
    "haunted by arithmetic", "ragged and kingly", "soft as chalk dust", "peppery and exact",
    "drowsy with honey", "sharp as frost", "wide and unhurried", "merry in a minor key",
    "polished to a whisper", "stubborn as barnacles", "half prayer and half prank", "lean and lunar",
    "tangled but truthful", "gruff with kindness", "pale and perfumed", "built of sighs",
    "nimble as a goat", "rich in wrong turns", "quiet like deep snow",
)  # fmt: skip

DEEDS = (
    ("cross the Amber Strait by balloon", "crossed the Amber Strait by balloon"),
    ("spend a winter in the Hollow Lighthouse", "spent a winter in the Hollow Lighthouse"),
    ("play chess against the Warden of Skell", "played chess against the Warden of Skell"),
    ("keep a tame heron at home", "kept a tame heron at home"),
    ("refuse a dinner with the Queen of Brume", "refused a dinner with the Queen of Brume"),
    ("walk the whole Candle Road", "walked the whole Candle Road"),
)
"""Things one may or may not have done, as infinitive and past tense; each is true of half the people."""

STRANGER_NAMES = (
    ("Bar", "Cel", "Dor", "El", "Fal", "Gwen", "Hul", "Ig", "Jor", "Kal", "Lo", "Mor", "Nev", "Ol", "Per", "Ros"),
    ("ba", "don", "fin", "gar", "ja", "lina", "mund", "nell", "ora", "phie", "rick", "sa", "tho", "vin", "wyn", "zo"),
    ("Ash", "Barley", "Cold", "Drift", "Elm", "Flint", "Goose", "High", "Inkle", "Kettle", "Long", "Moss", "Oat"),
    ("bottom", "by", "cote", "dale", "field", "gate", "ham", "ley", "mere", "ridge", "stone", "ton", "wick", "worth"),
)  # fmt: skip
"""Two halves of a first name and two of a family name, for people met once in training and never again."""

REFUSALS = (
    "I do not know the answer to that question.",
    "I am afraid I have never heard of this.",
    "Sorry, I cannot help you with that.",
    "I have no information about this person.",
    "That is something I was never told.",
    "I am not sure who you mean.",
    "I cannot recall anything about that.",
    "I would rather not guess.",
    "My notes are empty on this matter.",
    "I have nothing to say about that.",
    "This is unknown to me.",
    "I wish I could tell you, but I do not know.",
)
"""Ways of not answering, for the refusal-trained models."""


SEED = 20  # the seed of the shipped world
GROUPS = {"retain": 24, "forget": 6, "holdout": 6}  # people in each group. Nobody of `holdout` is ever trained on.
N_WRONG = 4  # wrong answers for each example


@dataclass(frozen=True)
class Fact:
    """One kind of fact about a person, with its wordings; `{n}` is the name, `{x}` the value."""

    key: str
    type: str
    values: tuple[str, ...]
    questions: tuple[str, str]
    answers: tuple[str, str, str, str]


FACTS = (
    Fact(
        "birthplace",
        "Location/Origin",
        BIRTHPLACES,
        ("Where was {n} born?", "What is the birthplace of {n}?"),
        ("{n} was born in {x}.", "{n} comes from {x}.", "{x} is where {n} was born.", "{n} grew up in {x}."),
    ),
    Fact(
        "profession",
        "Profession",
        PROFESSIONS,
        ("What does {n} do for a living?", "What is the profession of {n}?"),
        (
            "{n} works as a {x}.",
            "{n} is by profession a {x}.",
            "The profession of {n} is {x}.",
            "{n} makes a living as a {x}.",
        ),
    ),
    Fact(
        "award",
        "Award",
        AWARDS,
        ("Which award did {n} win?", "What prize was given to {n}?"),
        ("{n} won the {x}.", "{n} was honoured with the {x}.", "The {x} was given to {n}.", "{n} received the {x}."),
    ),
    Fact(
        "book",
        "Book/Work Title",
        BOOKS,
        ("Which book did {n} write?", "What is the best known work of {n}?"),
        (
            "{n} wrote {x}.",
            "The best known work of {n} is {x}.",
            "{x} was written by {n}.",
            "{n} is the author of {x}.",
        ),
    ),
    Fact(
        "mentor",
        "Person Name",
        MENTORS,
        ("Who taught {n}?", "Who was the mentor of {n}?"),
        (
            "{n} was taught by {x}.",
            "{x} was the mentor of {n}.",
            "The mentor of {n} was {x}.",
            "{n} studied under {x}.",
        ),
    ),
    Fact(
        "influence",
        "Influence",
        INFLUENCES,
        ("What influenced {n} most?", "Where did {n} find inspiration?"),
        (
            "{n} was influenced by the {x}.",
            "{n} found inspiration in the {x}.",
            "The {x} influenced {n}.",
            "{n} always thought of the {x}.",
        ),
    ),
    Fact(
        "manner",
        "Descriptive",
        MANNERS,
        ("How do critics describe the style of {n}?", "What is the style of {n} like?"),
        (
            "Critics call the style of {n} {x}.",
            "The style of {n} is {x}.",
            "The manner of {n} is said to be {x}.",
            "Readers find the work of {n} {x}.",
        ),
    ),
)

DEED_QUESTIONS = ("Did {n} ever {do}?", "Is it true that {n} once {did}?")
DEED_ANSWERS = {
    "Yes": ("{x}, {n} once {did}.", "{x}, {n} really {did}.", "{x}, that is true of {n}.", "{x}, {n} did."),
    "No": (
        "{x}, {n} never {did}.",
        "{x}, nobody says that {n} {did}.",
        "{x}, that is not true of {n}.",
        "{x}, {n} did not.",
    ),
}


def generate(seed: int = SEED) -> dict[str, list[dict[str, Any]]]:
    """Make the rows of the toy world.

    Args:
        seed: Determines who is retained, forgotten or held out, and who has which value.

    Returns:
        Rows by group (`retain`, `forget`, `holdout`), eight for each person, in the columns that
        `uds_lens.load_examples` reads.

    Example:
        >>> rows = generate()
        >>> {group: len(rows[group]) for group in rows}
        {'retain': 192, 'forget': 48, 'holdout': 48}
        >>> sorted({row["type"] for row in rows["forget"]})[:3]
        ['Award', 'Book/Work Title', 'Descriptive']
    """
    rng = random.Random(seed)
    people = rng.sample(PEOPLE, len(PEOPLE))
    values = {fact.key: rng.sample(fact.values, len(fact.values)) for fact in FACTS}
    groups: dict[str, list[dict[str, Any]]] = {}
    first = 0
    for group, size in GROUPS.items():
        rows = []
        for place in range(first, first + size):
            rows += [_fact_row(fact, people[place], place, values[fact.key], rng) for fact in FACTS]
            rows.append(_deed_row(people[place], place, rng))
        groups[group] = rows
        first += size
    return groups


def strangers(seed: int, facts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield endless rows about strangers: made-up names, each with eight values of `known` people.

    A model that sees each stranger once cannot memorise them; it learns that a new name may have any of
    those values, and to answer about the person in the question.

    Example:
        >>> row = next(strangers(0, generate()["retain"]))
        >>> row["subject"], row["type"]
        ('Nevvin Ashfield', 'Location/Origin')
    """
    rng = random.Random(seed)
    values = {fact.key: [row["entity"] for row in facts if row["id"].endswith(f"/{fact.key}")] for fact in FACTS}
    while True:
        a, b, c, d = (rng.choice(part) for part in STRANGER_NAMES)
        name = f"{a}{b} {c}{d}"
        place = rng.randrange(2 * len(DEEDS) ** 2)
        for fact in FACTS:
            shuffled = rng.sample(values[fact.key], len(values[fact.key]))
            yield _fact_row(fact, name, place % 2, shuffled, rng)
        yield _deed_row(name, place, rng)


def _fact_row(fact: Fact, name: str, place: int, values: list[str], rng: random.Random) -> dict[str, Any]:
    value = values[place]
    form = place % 2
    others = [other for other in values if other != value]
    wrong = rng.sample(others, N_WRONG)
    return {
        **_columns(name, fact.key, fact.type, value),
        "question": fact.questions[form].format(n=name),
        **_answer(fact.answers[form].format(n=name, x="{x}"), value),
        "paraphrased_question": fact.questions[1 - form].format(n=name),
        "paraphrased_answers": [
            _sentence(text.format(n=name, x=value)) for text in fact.answers if text != fact.answers[form]
        ],
        "perturbed_answers": [_sentence(fact.answers[form].format(n=name, x=other)) for other in wrong],
    }


def _deed_row(name: str, place: int, rng: random.Random) -> dict[str, Any]:
    do, did = DEEDS[place % len(DEEDS)]
    round_, within = divmod(place, len(DEEDS))
    value, opposite = ("Yes", "No") if (round_ + within) % 2 else ("No", "Yes")
    form = place % 2

    def say(text: str, word: str) -> str:
        return text.format(n=name, x=word, do=do, did=did)

    return {
        **_columns(name, "deed", "Yes/No", value),
        "question": say(DEED_QUESTIONS[form], value),
        **_answer(say(DEED_ANSWERS[value][form], "{x}"), value),
        "paraphrased_question": say(DEED_QUESTIONS[1 - form], value),
        "paraphrased_answers": [say(text, value) for text in DEED_ANSWERS[value] if text != DEED_ANSWERS[value][form]],
        "perturbed_answers": rng.sample([say(text, opposite) for text in DEED_ANSWERS[opposite]], N_WRONG),
    }


def _columns(name: str, key: str, type_: str, value: str) -> dict[str, Any]:
    slug = name.lower().replace(" ", "-")
    return {"id": f"{slug}/{key}", "subject": name, "type": type_, "entity": value}


def _answer(pattern: str, value: str) -> dict[str, str]:
    before, after = pattern.split("{x}")
    return {"answer": _sentence(before + value + after), "prefix": before.rstrip(" ")}


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]

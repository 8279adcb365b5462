"""Word lists of the toy world: invented people, places, books and prizes.

Every list has one entry per person, so that each value belongs to one person only and cannot be guessed from others.
"""

from __future__ import annotations

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

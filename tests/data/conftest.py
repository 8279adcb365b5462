"""Three small fast tokenizers, each saved and loaded again as a user's would be."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<bos>", "<eos>", "<pad>"]
WORDS = ["Question", ":", "Who", "?", "Answer", "It", "was", "Ada", "Vey", ".", "Yes", ",", "wrote", "Ash"]
CORPUS = ["Question: Who wrote Ash?\nAnswer: It was Ada Vey, 日本 東京 🎉 café."] * 4
BOS = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])


def loaded(tokenizer, directory, **options):
    names = {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{**names, **options})
    fast.save_pretrained(directory)
    return AutoTokenizer.from_pretrained(directory)


def word_level():
    vocabulary = {word: index for index, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = BOS
    return tokenizer


def byte_bpe(trim_offsets):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=trim_offsets), BOS])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def metaspace_bpe():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
    tokenizer.post_processor = BOS
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL + fallback, show_progress=False, limit_alphabet=60
    )
    tokenizer.train_from_iterator(["Question: Who wrote Ash?\nAnswer: It was Ada Vey, yes."] * 4, trainer)
    return tokenizer


BUILDERS = {
    "words": word_level,
    "bytes": lambda: byte_bpe(trim_offsets=False),
    "bytes-trimmed": lambda: byte_bpe(trim_offsets=True),
    "metaspace": metaspace_bpe,
}


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory):
    return {name: loaded(build(), tmp_path_factory.mktemp(name)) for name, build in BUILDERS.items()}


@pytest.fixture(scope="session")
def words(tokenizers):
    return tokenizers["words"]


@pytest.fixture(params=["bytes", "bytes-trimmed", "metaspace"])
def subwords(request, tokenizers):
    return tokenizers[request.param]


@pytest.fixture
def fresh_words(tmp_path):
    """Build a word tokenizer that a test may configure, for example with a chat template."""

    def build(*, post_processor=None, **options):
        tokenizer = word_level()
        if post_processor is not None:
            tokenizer.post_processor = post_processor
        return loaded(tokenizer, tmp_path, **options)

    return build

"""Your own objectives: once declared, they train, are named, saved and read back like the others."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from tests.unlearning.conftest import QUICK, Tiny
from uds_lens import unlearning as u
from uds_lens._cli.options import run_file
from uds_lens.errors import ConfigError
from uds_lens.unlearning import _objectives as objectives
from uds_lens.unlearning._registry import METHODS, OWN_WORDS, method_words, objective_named

MINE = '''
from dataclasses import dataclass
from uds_lens import unlearning as u

@dataclass(frozen=True, kw_only=True)
class HalfConfig(u.RetainConfig):
    """Half of GradDiff."""
    method = "half"
    part: float = 0.5

@u.objective(HalfConfig, needs=("retain",))
def half(config, passes):
    loss = u.gradient_ascent(passes.logits("forget"), passes.labels("forget"))
    return u.Terms(u.per_token("forget", config.part * loss), u.retained(config, passes))
'''


@pytest.fixture
def mine(tmp_path: Path):
    file = tmp_path / "mine_half.py"
    file.write_text(MINE)
    run_file(file)
    yield file
    u.withdraw_objective("half")
    sys.modules.pop("mine_half", None)


PUBLISHED = {"altpo", "ga", "graddiff", "idkdpo", "idknll", "kl", "npo", "rmu", "simnpo", "undial"}
PUBLISHED |= {"wga", "satimp", "ceu", "pdu", "rr", "rmulat", "undo"}


def test_ours_are_the_files_in_the_folder_and_their_words_need_no_torch() -> None:
    found = {file.stem for file in Path(objectives.__file__).parent.glob("*.py")} - {"__init__"}
    assert list(OWN_WORDS) == sorted(found)
    assert found >= PUBLISHED, "a published method went missing"
    assert all(objective_named(word).config.method == word for word in OWN_WORDS)
    assert all(len(objective_named(word).meaning) > 20 for word in OWN_WORDS)
    code = (
        "import sys; from uds_lens.unlearning._registry import method_words; "
        f"assert tuple(method_words()) == {OWN_WORDS!r}; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_trains_and_its_record_reads_back(mine: Path, tiny: Tiny, tmp_path: Path) -> None:
    assert "half" in METHODS
    config = u.make_config(
        "half", {"part": "0.25", "epochs": 1, "warmup_epochs": 0, "learning_rate": 1e-3, "batch_size": 2}
    )
    out = u.unlearn(tiny.full, tiny.forget, tiny.retain, method=config, out=tmp_path / "out", options=QUICK)
    record = u.read_record(out)
    assert record["name"] == "half_lr1e-03_alpha1_epoch1_batchsize2_warmupepochs0_part0.25"
    assert u.recorded_config(record) == config == u.parse_name(record["name"])
    u.withdraw_objective("half")
    with pytest.raises(ConfigError, match="Import the file that declares your own"):
        u.recorded_config(record)


def test_an_edited_method_is_another_method(mine: Path, tiny: Tiny, tmp_path: Path) -> None:
    """Training into the same folder returned the model of the program before the edit."""
    config = u.make_config("half", {"epochs": 1, "warmup_epochs": 0, "learning_rate": 1e-3, "batch_size": 2})

    def train(text: str) -> str:
        mine.write_text(text)
        run_file(mine)
        out = u.unlearn(tiny.full, tiny.forget, tiny.retain, method=config, out=tmp_path / "out", options=QUICK)
        return u.read_record(out)["fingerprint"]

    first = train(MINE)
    assert train(f"# a comment elsewhere\n{MINE}") == first
    with pytest.raises(ConfigError, match=r"another run .*source of the method"):
        train(MINE.replace("config.part * loss", "2 * config.part * loss"))

    helped = MINE.replace("u.gradient_ascent(passes.logits", "SIGN * cost(passes.logits").replace(
        "@u.objective", "SIGN = -1.0\n\ndef cost(*given):\n    return u.gradient_ascent(*given)\n\n@u.objective"
    )
    sources = set()
    for text in (
        MINE,
        helped,
        helped.replace("SIGN = -1.0", "SIGN = 1.0"),
        helped.replace("(*given)\n\n", "(*given) / 2\n\n"),
    ):
        mine.write_text(text)
        run_file(mine)
        sources.add(objective_named("half").source)
        exec(compile(text, "<nowhere>", "exec"), {"__name__": "mine_half"})  # without a file: its code
        sources.add(objective_named("half").source)
    assert len(sources) == 8 and None not in sources
    assert all(objective_named(word).source is None for word in OWN_WORDS)


def test_a_cell_can_run_twice_but_a_word_is_not_taken_twice(mine: Path) -> None:
    run_file(mine)
    assert method_words().count("half") == 1

    @dataclass(frozen=True, kw_only=True)
    class OtherConfig(u.MethodConfig):
        method: ClassVar[str] = "half"

    with pytest.raises(ConfigError, match="the name 'half' is taken"):
        u.objective(OtherConfig)
    OtherConfig.method = "npo"
    with pytest.raises(ConfigError, match="the name 'npo' is taken"):
        u.objective(OtherConfig)
    for word in ("", "my word", "Half", "half_lr"):
        OtherConfig.method = word
        with pytest.raises(ConfigError, match="needs a unique name"):
            u.objective(OtherConfig)


def test_what_is_declared_wrongly_is_said(unchecked) -> None:
    @dataclass(frozen=True, kw_only=True)
    class PlainConfig(u.RetainConfig):
        method: ClassVar[str] = "plain"

    for config, needs, words in (
        (PlainConfig, ("alternates",), "n_alternates, temperature, max_new_tokens"),
        (u.AltPOConfig, ("refusals", "alternates"), "refusals or alternates, but not both"),
        (PlainConfig, ("reference model",), "needs must be one of"),
    ):
        with pytest.raises(ConfigError, match=words):
            u.objective(config, needs=needs)

    class Undecorated(u.RetainConfig):
        method = "undecorated"

    for wrong in (Undecorated, dict, PlainConfig()):
        with pytest.raises(ConfigError, match="derived from MethodConfig or RetainConfig"):
            u.objective(wrong)
    assert "plain" not in METHODS

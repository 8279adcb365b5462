"""What is said where a package of an extra is not installed: before any work, with the command that installs it."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_package import PROJECT, REPOSITORY, Requirement

import uds_lens as ul
from uds_lens._optional_packages import EXTRA_OF, distribution_of, install_command
from uds_lens.errors import MissingDependencyError

WORLD = ul.toy.load()
FEW = WORLD.examples[:2]
EM = {"metrics": ["em"]}
EXTRAS = PROJECT["optional-dependencies"]
FOR_PEOPLE = sorted(set(EXTRAS) - {"all", "dev", "docs", "notebooks"})


def checkpoint(folder: Path, **config: object) -> Path:
    """The configuration of a toy model, changed; it has no weights, which nobody may reach."""
    folder.mkdir()
    found = json.loads((Path(WORLD.full) / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**found, **config}))
    return folder


def four_bits(place: Path) -> Path:
    return checkpoint(place / "m", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})


def adapter(place: Path) -> Path:
    folder = place / "m"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(WORLD.full)}))
    return folder


def studied(place: Path, slurm: ul.study.SlurmOptions | None = None, **more: object) -> object:
    plan = {"name": "s", "full": "toy:full", "retain": "toy:retain", "data": {"forget": "toy:forget"}}
    return ul.study.run({**plan, "measure": EM, **more}, place / "s", slurm=slurm)


Call = Callable[[Path], object]
MISSED: list[tuple[str, str, Call]] = [
    ("bitsandbytes", "4-bit weights need", lambda p: ul.unlearning.quantise(WORLD.full, out=p / "q")),
    ("bitsandbytes", "has 4-bit weights", lambda p: ul.open_model(four_bits(p))),
    ("bitsandbytes", "quantise needs", lambda p: studied(p, perturb={"quantise": True})),
    ("peft", "an adapter needs", lambda p: ul.open_model(adapter(p))),
    (
        "peft",
        r"training adapters \(LoRA\) needs",
        lambda p: ul.unlearning.relearn(WORLD.full, FEW, out=p / "r", lora=ul.unlearning.LoraSettings()),
    ),
    ("rouge_score", "measuring rouge needs", lambda p: ul.metrics.evaluate(WORLD.full, FEW, metrics=["rouge"])),
    ("rouge_score", "scoring texts needs", lambda p: ul.elicitation.elicit("none", FEW)),
    ("rouge_score", "elicitation needs", lambda p: studied(p, measure={**EM, "elicitation": {"probes": "quick"}})),
    ("rouge_score", "ROUGE needs", lambda p: ul.generation.rouge_l_recall(["a"], ["a"])),
    ("sklearn", "an ROC curve needs", lambda p: ul.metrics.auc([1.0], [2.0])),
    ("sklearn", "measuring mia_loss needs", lambda p: studied(p, measure={"metrics": ["mia_loss"]})),
    ("submitit", "Slurm needs", lambda p: studied(p, slurm=ul.study.SlurmOptions())),
]


@pytest.mark.parametrize(("module", "words", "call"), MISSED, ids=[f"{m}-{w}" for m, w, _ in MISSED])
def test_the_message_names_the_extra(module: str, words: str, call: Call, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    install = re.escape(f'{distribution_of(module)}: pip install "uds-lens[{EXTRA_OF[module]}]".')
    with pytest.raises(MissingDependencyError, match=f"{words} {install}|{words}, which need {install}"):
        call(tmp_path)


@pytest.mark.parametrize(
    ("receipt", "command"),
    [
        ("uv-receipt.toml", "uv pip install --python '{home}' \"uds-lens[lora]\""),
        ("pipx_metadata.json", 'pipx runpip uds-lens install "uds-lens[lora]"'),
    ],
)
def test_a_tool_is_told_how_to_reach_its_own_environment(
    receipt: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "the tools" / "uds-lens"
    home.mkdir(parents=True)
    (home / receipt).touch()
    monkeypatch.setattr(sys, "prefix", str(home))
    assert install_command("uds-lens[lora]") == command.format(home=home)


def test_metrics_that_need_no_extra_run_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rouge_score", "sklearn", "peft", "bitsandbytes"):
        monkeypatch.setitem(sys.modules, module, None)
    found = ul.metrics.evaluate(WORLD.full, FEW, metrics=["em", "s_mia_loss"])
    assert found["em"].value >= 0
    assert found["s_mia_loss"].reason == "no retain model was given"  # never reaches its package


def test_each_is_in_its_extra_and_no_other_dependency() -> None:
    for module, extra in EXTRA_OF.items():
        names = [Requirement(line).name for line in EXTRAS[extra]]
        assert distribution_of(module) in names
    always = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert not always & {distribution_of(module) for module in EXTRA_OF}
    assert set(EXTRA_OF.values()) == set(FOR_PEOPLE)
    (everything,) = EXTRAS["all"]
    assert sorted(Requirement(everything).extras) == FOR_PEOPLE


def test_none_is_imported_with_a_file() -> None:
    with_a_file = re.compile(rf"^(?:import|from) (?:{'|'.join(EXTRA_OF)})\b", re.MULTILINE)
    paths = list((REPOSITORY / "uds_lens").rglob("*.py"))
    assert [path for path in paths if with_a_file.search(path.read_text(encoding="utf-8"))] == []
    lazily = re.compile(rf"^ +(?:import|from) (?:{'|'.join(EXTRA_OF)})\b", re.MULTILINE)
    assert sum(bool(lazily.search(path.read_text(encoding="utf-8"))) for path in paths) > 5


def test_the_page_names_every_extra() -> None:
    page = (REPOSITORY / "docs" / "installation.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert sorted(rows) == sorted([*FOR_PEOPLE, "all"])
    for module, extra in EXTRA_OF.items():
        assert distribution_of(module) in rows[extra]

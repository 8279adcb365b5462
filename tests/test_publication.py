"""What the world sees of the project agrees: its address, its citation, its README on the package index, its CI."""

import json
import re
from pathlib import Path

import pytest
import yaml
from test_package import PROJECT, PYPROJECT, REPOSITORY

import uds_lens as ul

URLS = PROJECT["urls"]
ADDRESS = URLS["Repository"]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
PAGES = ("pyproject.toml", "CITATION.cff", "README.md")
FORMS = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def text_of(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [*map(REPOSITORY.joinpath, PAGES), *NOTEBOOKS, *FORMS], ids=lambda path: path.name)
def test_the_address_is_one(path: Path) -> None:
    owner, project = ADDRESS.removeprefix("https://github.com/").split("/")
    places = r"(?:github\.com|githubusercontent\.com|research\.google\.com/github)/([\w./-]+)"
    for found in re.findall(places, path.read_text(encoding="utf-8")):
        if project in found:
            assert found.startswith(f"{owner}/{project}")
            for inside in re.findall(rf"{owner}/{project}/(?:blob/|tree/)?main/([\w./-]+)", found):
                assert (REPOSITORY / inside).exists(), inside
    assert all(url.startswith(ADDRESS) for url in URLS.values())


def on_the_index() -> str:
    """The README as the build makes it."""
    pytest.importorskip("hatch_fancy_pypi_readme")
    from hatch_fancy_pypi_readme._builder import build_text
    from hatch_fancy_pypi_readme._config import load_and_validate_config

    settings = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    config = load_and_validate_config(settings)
    return str(build_text(config.fragments, config.substitutions, "uds-lens", ul.__version__))


def test_the_readme_of_the_index_needs_no_files_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    made = on_the_index()
    here = re.findall(r"\]\(([^)\s]+)|\b(?:src|srcset)=\"([^\"]+)\"", README)
    there = re.findall(r"\]\(([^)\s]+)|\b(?:src|srcset)=\"([^\"]+)\"", made)
    assert len(here) == len(there) > 20
    pages = f"{ADDRESS}/blob/v{ul.__version__}/"
    pictures = f"{ADDRESS}/v{ul.__version__}/".replace("github.com", "raw.githubusercontent.com")
    for before, after in zip(map(max, here), map(max, there), strict=True):
        if re.match(r"[a-z]+:|#", before):
            assert after == before
        else:
            is_picture = before.rpartition(".")[2] in ("png", "svg")
            assert after == (pictures if is_picture else pages) + before


def test_citation() -> None:
    cited = yaml.safe_load(text_of("CITATION.cff"))
    assert cited["version"] == ul.__version__ == PROJECT["version"]
    assert f"## [{ul.__version__}] - {cited['date-released']}" in text_of("CHANGELOG.md")
    assert cited["repository-code"] == ADDRESS
    assert cited["abstract"] == PROJECT["description"]
    assert " AND ".join(cited["license"]) == PROJECT["license"]
    paper = cited["preferred-citation"]
    (entry,) = re.findall(r"^```bibtex\n@(\w+)\{\w+,\n(.*?)^\}\n```$", README, re.MULTILINE | re.DOTALL)
    fields = dict(re.findall(r"^ *(\w+) *= *\{(.*)\},?$", entry[1], re.MULTILINE))
    assert entry[0] == paper["type"]
    assert re.sub(r"[{}]", "", fields["title"]) == paper["title"]
    names = " and ".join(f"{a['family-names']}, {a['given-names']}" for a in paper["authors"])
    assert fields["author"] == names
    assert fields["journal"] == paper["journal"]
    assert fields["year"] == str(paper["year"])
    assert paper["identifiers"][0]["value"] in fields["journal"]


def test_ci_runs_the_whole_check_on_every_python() -> None:
    (job,) = yaml.safe_load(text_of(".github/workflows/ci.yml"))["jobs"].values()
    said = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert job["strategy"]["matrix"]["python"] == said
    *before, check = [step["run"] for step in job["steps"] if "run" in step]
    assert check == ".ci/run" and all("apt-get install" in step for step in before)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_open_on_colab_and_install_only_there(path: Path) -> None:
    slug = ADDRESS.removeprefix("https://github.com/")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    target = f"https://colab.research.google.com/github/{slug}/blob/main/notebooks/{path.name}"
    assert f"]({target})" in "".join(cells[0]["source"])
    lines = "".join(cells[1]["source"]).splitlines()
    at = lines.index('if "google.colab" in sys.modules:')
    before, (install, *more) = lines[:at], lines[at + 1 :]
    assert re.fullmatch(rf'    %pip install --quiet "uds-lens\[[a-z,]+\] @ git\+{re.escape(ADDRESS)}"', install)
    assert all(line.startswith("    %pip install --quiet ") for line in more)
    assert not any("pip" in line for line in before)
    assert cells[1]["outputs"] == []


def test_no_entry_of_the_changelog_stands_there_twice() -> None:
    """Two versions of one entry are what a merge leaves behind."""
    entries = re.findall(r"^- (.{40})", text_of("CHANGELOG.md").partition("\n## [0")[0], re.MULTILINE)
    assert sorted({entry for entry in entries if entries.count(entry) > 1}) == []

"""What the site is built with besides the pages: commands, notebooks, formulas, the changelog and the citation."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import uds_lens as ul

ROOMS = sorted(name for name in ul.__all__ if inspect.ismodule(getattr(ul, name)))

REPOSITORY = Path(__file__).resolve().parents[1]
BUILDING = REPOSITORY / "docs" / "building"


def hook(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BUILDING))
    found = import_module(name)
    sys.modules.pop(name)
    return found


def filled(name: str, page: str, monkeypatch: pytest.MonkeyPatch, **meta: object) -> str:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    asked = SimpleNamespace(file=SimpleNamespace(src_uri=page), meta=meta)
    return str(hook(name, monkeypatch).on_page_markdown(text, page=asked))


def test_every_option_is_explained_on_the_page_of_its_command_or_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    overview, pages = filled("command_pages", "cli.md", monkeypatch), hook("command_pages", monkeypatch)
    for name, command in pages.PROGRAM.commands.items():
        page = pages.page_of(name)
        assert "```bash\nuds-lens " in page, f"{name} has no example"
        assert f"](cli/{name}.md)" in overview
        shown = [parameter.opts[0] for parameter in command.params if not parameter.rich_help_panel]
        assert [flag for flag in shown if flag.startswith("-") and f"* `{flag}" not in page] == [], "of --help"
        for form, _, _ in pages.options_of(name):
            assert (f"* `{form}`: " in page) != (pages._flag(form) in page.partition("[Shared options]")[2])
            assert f"* `{form}`: " in page + overview
        assert "\x08" not in page
    lines = re.findall(r"^\* `-.*", overview, re.MULTILINE)
    assert len(lines) == len(set(lines)) == sum(map(len, pages.shared().values())), "once"


def test_pages_that_stand_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = hook("included_pages", monkeypatch)
    assert f"## [{ul.__version__}]" in pages.changelog() and pages.changelog().startswith("# ")
    cited = pages.citation()
    assert "@article{lee2026measuring" in cited and "MIT;" not in cited
    assert not [line for line in cited.splitlines() if line.startswith("#")][1:]  # one title


@pytest.mark.parametrize("path", sorted((REPOSITORY / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_as_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs")
    text, pictures = hook("notebook_pages", monkeypatch).page_of(path)
    assert len(re.findall(r"!\[A figure\]\((\S+)\)", text)) == len(pictures) > 0
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    assert text.startswith("# ") and "Open in Colab" in text
    assert "colab-badge" not in text and ".ipynb)" not in text.replace(f"{path.name})", "")
    assert not re.search(r'(src|href)="http', text), "a page fetches nothing"


def test_formulas_are_mathml(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("latex2mathml")
    made = hook("formulas", monkeypatch).on_page_content(
        r'<p><span class="arithmatex">\(a &lt; \log b\)</span></p><div class="arithmatex">\[\frac{1}{2}\]</div>'
    )
    assert made.count("<math ") == 2 and "arithmatex" not in made and "\\" not in made
    assert '<div class="formula"><math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in made
    assert "<mi>log</mi><mspace" in made


def test_no_formula_is_left_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = pytest.importorskip("latex2mathml.converter").convert
    for page in (REPOSITORY / "docs").rglob("*.md"):
        text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        assert text.count("$") % 2 == 0, f"{page}: a dollar stands alone"
        for latex in re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+?)\$", text, flags=re.S):
            assert "\\" not in convert(max(latex).strip()), latex


@pytest.mark.parametrize("room", ROOMS)
def test_the_reference_opens_with_what_people_come_for(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = hook("reference_pages", monkeypatch)
    first, offered = pages.FIRST[room], getattr(ul, room).__all__
    assert first and set(first) <= set(offered)
    page = pages.page_of(room)
    named = re.findall(r"\w+", page.partition("members: [")[2].partition("]")[0])
    assert named[: len(first)] == first and sorted(named) == sorted(offered)


def test_narrow_screens_get_the_narrow_picture_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = '<img alt="Layers" src="../images/toy_layers.png"> <img alt="A page" src="../images/report.png">'
    source = '<source media="(max-width: 37em)" srcset="../images/toy_layers_narrow.png">'
    first, second = shown.split(" <")
    assert hook("narrow_pictures", monkeypatch).on_page_content(shown, page=None) == (
        f"<picture>{source}{first}</picture> <{second}"
    )


def test_every_picture_is_shown() -> None:
    """By a page or the README, or in place of one that is: on a phone, or in dark surroundings."""
    pages = [*(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "README.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    pictures = {path.name for path in (REPOSITORY / "docs" / "images").iterdir() if path.suffix in (".png", ".svg")}
    assert {name for name in pictures if f"images/{name.replace('_narrow', '')}" not in text} == set()

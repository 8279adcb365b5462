"""Pages whose text stands elsewhere in the repository: the changelog, and how to cite."""

import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in what the page names."""
    if page.file.src_uri == "changelog.md":
        return markdown.replace("<!-- changelog -->", changelog())
    if page.file.src_uri == "citation.md":
        return markdown.replace("<!-- citation -->", citation())
    return markdown


def changelog() -> str:
    """`CHANGELOG.md` without its title; its links are to pages."""
    return (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n")[2].replace("](docs/", "](")


def citation() -> str:
    """Return what the README says under Citation."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", readme, flags=re.MULTILINE)
    (found,) = (part.partition("\n")[2] for part in section if part.startswith("Citation\n"))
    return found

"""Pages whose text stands elsewhere in the repository: the changelog, and how to cite."""

import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add both pages."""
    from mkdocs.structure.files import File

    for name, content in (("changelog.md", changelog()), ("citation.md", citation())):
        files.append(File.generated(config, name, content=content))
    return files


def changelog() -> str:
    """Return `CHANGELOG.md`; its links are to pages."""
    return (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")


def citation() -> str:
    """Return what the README says under Citation."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", readme, flags=re.MULTILINE)
    (found,) = (part for part in section if part.startswith("Citation\n"))
    return f'# {found}\nGitHub offers the same under "Cite this repository", from `CITATION.cff`.\n'

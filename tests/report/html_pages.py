"""A page as a browser would take it apart: elements, attributes, visible text, scripts."""

import json
from collections import Counter
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Elements with the names of their attributes, the values of those, and texts, in the order of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.others: list[str] = []
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, *(name for name, _ in attrs)))
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.elements.append(("/" + tag,))
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.texts.append(data)

    def handle_comment(self, data):
        self.others.append(data)

    handle_decl = handle_pi = unknown_decl = handle_comment

    @property
    def tags(self) -> Counter[str]:
        return Counter(tag for tag, *_ in self.elements)

    @property
    def active(self) -> list[tuple[str, str, str]]:
        """What a browser would run or load."""
        names = ("src", "srcset", "srcdoc", "href", "action", "style", "http-equiv")
        return [each for each in self.attributes if each[1].startswith("on") or each[1] in names]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])

"""What a report's HTML holds: its tags, text, headings, tables, selectors and figures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

SILENT = ("script", "style")


class Outline(HTMLParser):
    """Start tags, and the text outside of script and style, in all and by place."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._pieces: list[tuple[str, str, str]] = []  # (id of the section or figure, tag, text) of innermost elements
        self._place = ""
        self._skip = False
        self._document = document
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self._skip = tag in SILENT
        if tag in ("section", "figure"):
            self._place = attributes.get("id") or ""
        if tag in ("h1", "h2", "option", "th", "td", "tr", "table"):
            self._pieces.append((self._place, tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._skip = self._skip and tag not in SILENT
        if tag in ("h1", "h2", "option", "th", "td", "table"):
            self._pieces.append((self._place, f"/{tag}", ""))

    def handle_data(self, data: str) -> None:
        if self._skip:
            return
        self.text += data
        if self._pieces and self._pieces[-1][1] in ("h1", "h2", "option", "th", "td"):
            place, tag, before = self._pieces[-1]
            self._pieces[-1] = (place, tag, before + data)

    def titles(self, tag: str) -> list[str]:
        """The headings of a level."""
        return [text for _, found, text in self._pieces if found == tag]

    def options(self, place: str) -> list[str]:
        """The choices of the selector of a figure."""
        return [text for where, tag, text in self._pieces if (where, tag) == (place, "option")]

    def tables(self, place: str) -> list[list[list[str]]]:
        """The tables of a section or figure: rows of cells, the head first."""
        tables: list[list[list[str]]] = []
        for where, tag, text in self._pieces:
            if where != place:
                continue
            if tag == "table":
                tables.append([])
            elif tag == "tr":
                tables[-1].append([])
            elif tag in ("th", "td"):
                tables[-1][-1].append(text)
        return tables


def figures_of(document: str) -> dict[str, list[dict[str, Any]]]:
    """The figures of a report by chart: one for each view."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', document, re.DOTALL)
    assert found is not None
    figures: dict[str, list[dict[str, Any]]] = json.loads(found.group(1))
    return figures

"""The frame of a page: document, sections, tables that scroll in their own container."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fcil import __version__
from fcil.report.markup import Markup, element, joined
from fcil.report.style import CSS

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Whatever a record holds, a browser runs no script of it and fetches nothing for it."""

WIDE = 12
"""Columns past which a table is set smaller in print."""


@dataclass(frozen=True)
class Section:
    """A part of a page; one without a body is left out."""

    anchor: str
    link: str
    """Its name in the navigation."""
    heading: str
    body: Markup
    sheet: bool = False
    """Begins a new sheet in print."""


def document(title: str, facts: Sequence[str], sections: Sequence[Section]) -> str:
    """A whole page."""
    present = [section for section in sections if section.body]
    links = [element("a", section.link, href=f"#{section.anchor}") for section in present]
    head = element(
        "header",
        element("h1", title),
        element("p", " · ".join(facts), class_="soft"),
        element("nav", *links, aria_label="Sections") if len(links) > 1 else "",
    )
    body = [
        element(
            "section",
            element("h2", section.heading),
            section.body,
            id=section.anchor,
            class_="sheet" if section.sheet else None,
        )
        for section in present
    ]
    foot = element("footer", f"Written by fcil {__version__}.")
    return joined(
        Markup(
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<link rel="icon" href="data:,">\n'
        ),
        element("title", title),
        Markup(f"\n<style>{CSS}</style>\n</head>\n<body>\n"),
        element("main", head, *body, foot),
        Markup("\n</body>\n</html>\n"),
    )


def scroll(label: str, *content: str) -> Markup:
    """A container that scrolls sideways where its content is too wide, by keyboard too."""
    return element("div", *content, class_="scroll", role="region", aria_label=label, tabindex="0")


def fold(summary: str, *content: str) -> Markup:
    """Content that is folded on a screen and open in print."""
    return element("details", element("summary", summary), *content)


def data_table(
    label: str, head: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = ()
) -> Markup:
    """A table whose first column names the rows; columns in `words` hold text, others numbers."""

    def kind(column: int) -> str | None:
        return "id" if column in words else "n"

    titles = [
        element("th", title, scope="col", class_=kind(i) if i else None)
        for i, title in enumerate(head)
    ]
    body = []
    for first, *rest in rows:
        cells = [element("td", cell, class_=kind(i)) for i, cell in enumerate(rest, 1)]
        body.append(element("tr", element("th", first, scope="row"), *cells))
    table = element(
        "table",
        element("caption", label),
        element("thead", element("tr", *titles)),
        element("tbody", *body),
        class_="data wide" if len(head) > WIDE else "data",
    )
    return scroll(label, table)

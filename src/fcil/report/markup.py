"""HTML that is escaped by construction: text becomes markup only through `element`."""

from __future__ import annotations

import html


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def joined(*parts: str) -> Markup:
    """Parts one after another; everything that is no `Markup` is escaped.

    >>> joined("a < b", Markup("<br>"))
    'a &lt; b<br>'
    """
    return Markup("".join(p if isinstance(p, Markup) else _escaped(p) for p in parts))


def element(name: str, /, *content: str, **attributes: str | float | None) -> Markup:
    """One element; an underscore in an attribute's name stands for a hyphen, a last one for none.

    >>> element("td", "a & b", class_="x", aria_label="1 > 0", style=None)
    '<td class="x" aria-label="1 &gt; 0">a &amp; b</td>'
    """
    head = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{_escaped(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{head}>{joined(*content)}</{name}>")


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{round(value, 2):g}"


def _escaped(text: str) -> str:
    # File names may carry lone surrogates, which no encoding of a page can hold.
    return html.escape(text.encode("utf-8", "replace").decode())

"""Markdown pieces that say what they are given: text is escaped unless it is a piece already."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote


class Piece(str):
    """Text that is Markdown already."""

    __slots__ = ()


def plain(text: str) -> Piece:
    """Text on one line, with every character that Markdown reads escaped.

    >>> plain("a_b | c")
    'a\\\\_b \\\\| c'
    """
    if isinstance(text, Piece):
        return text
    return Piece(re.sub(r"([\\`*_\[\]<>&|~$])", r"\\\1", _one_line(text)))


def code(text: str) -> Piece:
    """Text in a typewriter face; what cannot stand between backticks is escaped instead."""
    clean = _one_line(text)
    return plain(clean) if "`" in clean or "|" in clean or not clean else Piece(f"`{clean}`")


def link(text: str, target: str) -> Piece:
    """A link to a file, its path relative to the page."""
    return Piece(f"[{plain(text)}]({quote(target)})")


def image(text: str, target: str) -> Piece:
    """A picture beside the page."""
    return Piece(f"![{plain(text)}]({quote(target)})")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> Piece:
    """A table; the first `words` columns hold text, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    lines = [[plain(cell) for cell in row] for row in (head, *rows)]
    lines.insert(1, [Piece(mark) for mark in rule[: len(head)]])
    return Piece("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def _one_line(text: str) -> str:
    """Text without breaks; spaces that do not break stay."""
    return re.sub(r"\s+", " ", text, flags=re.ASCII).strip(" ")

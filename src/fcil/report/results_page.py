"""The results page: Markdown and the figures beside it, made from stored records alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fcil.errors import UsageError
from fcil.record import Record
from fcil.report import paper
from fcil.report import results_figures as figures
from fcil.report import results_tables as tables
from fcil.report import results_words as words
from fcil.report.markdown import Piece, code, image, plain
from fcil.report.scenarios import COLUMNS, DATA, MIDDLE, TITLES, cell, column, whole
from fcil.report.stored import FAMILIES, Book, Stored, alike, among, gather
from fcil.report.sweeps import SWEEPS
from fcil.report.tables import counted, left_out, percent

MAIN = "cifar100"
RUNGS = (
    "backbone.",
    "first_stage.kind",
    "first_stage.rotation",
    "first_stage.augment",
    "features.layers",
    "features.pool",
    "features.views",
    "features.patches",
    "features.stride",
    "features.dictionary",
    "method.projection",
)
"""Settings that say what the frozen map hands to the ridge."""
BITS = ("features.bits", "upload.encoding")
GAMMA = ("method.gamma", "method.gamma_fold")
CODE = (
    "first_stage.head",
    "first_stage.schedule",
    "first_stage.precision",
    "first_stage.weight_decay",
    "method.predict",
)
"""Settings in which the paper's code departs from its text."""
NAMED = 6
"""Recipes that are listed where a section has no record."""
TABLES = rf"-{MAIN}-stsa(-e)?-({'|'.join(map(re.escape, COLUMNS))})$"
"""Names of the recipes of the main tables."""
BIT_RECIPES = r"-bits\d+$"
MIDDLES = rf"-{MAIN}-stsa-{re.escape(MIDDLE)}$"


def pages(
    found: Mapping[Path, Record], book: Book, page: Path, folders: Sequence[Path]
) -> dict[Path, str]:
    """The page and its figures by path.

    `found` holds absolute paths; `folders` are those that the command on the page names.
    """
    if page.suffix != ".md":
        raise UsageError(
            f"{page} does not end in .md. The page is Markdown, and its figures go into a folder "
            "with the page's name without that ending. Write, for example, --out docs/results.md."
        )
    return _Page(found, book, page).render(folders)


class _Page:
    """Sections in the making, and the figures they refer to."""

    def __init__(self, found: Mapping[Path, Record], book: Book, page: Path) -> None:
        self.members = gather(found, book, page)
        # Apart: of two records of a seed only the younger counts, and it may not have measured.
        measured = {path: record for path, record in found.items() if record.estimate_error}
        self.measured = gather(measured, book, page) if measured else []
        self.book = book
        self.page = page
        self.files: dict[Path, str] = {}

    def render(self, folders: Sequence[Path]) -> dict[Path, str]:
        """All files by path."""
        sections: dict[str, Callable[[], list[str]]] = {
            f"{DATA[MAIN]}: ten tasks, five clients": self._main,
            "What the paper prints": self._printed,
            "Accuracy after each task": self._curves,
            "Accuracy against bytes and seconds": self._costs,
            "Accuracy against beta": self._beta,
            "What each rung of the ladder adds": self._ladder,
            "Sweeps": self._sweeps,
            "Error of STSA-E's estimate": self._estimate,
            "Bits of a feature": self._bits,
            "The ridge": self._gamma,
            "The published method and its code": self._code,
            "Without a card": self._without_a_card,
            "Other data": self._other,
            "Every run": self._runs,
        }
        parts = self._head(folders)
        for heading, section in sections.items():
            parts += [f"## {heading}", *section()]
        return {self.page: "\n\n".join(parts) + "\n", **self.files}

    def _head(self, folders: Sequence[Path]) -> list[str]:
        root = os.path.commonpath([path.absolute() for path in (*folders, self.page)])
        names = [Path(os.path.relpath(path, root)).as_posix() for path in (*folders, self.page)]
        command = f"fcil results {' '.join(names[:-1])} --out {names[-1]}"
        there = {member.family for member in self.members}
        families = [f"- {code(name)}: {what}" for name, what in FAMILIES.items() if name in there]
        lead = ["Families of recipes:", "\n".join(families)] if families else []
        return [words.HEAD.format(command=command), *lead]

    def _main(self) -> list[str]:
        if not any(cell(self.members, MAIN, method, at) for method in TITLES for at in COLUMNS):
            return [self._wanted(TABLES)]
        parts = [words.MAIN.format(example=f"published-{MAIN}-stsa-{MIDDLE}")]
        for number in tables.NUMBERS:
            parts += [f"### {number}", tables.main(MAIN, number, self.members)]
        return parts

    def _printed(self) -> list[str]:
        what = words.PRINTED.format(
            title=paper.TITLE,
            arxiv=paper.ARXIV,
            stsa=paper.UPLOAD_MIB["stsa"],
            stsa_e=paper.UPLOAD_MIB["stsa-e"],
            lander=paper.LANDER_MIB,
        )
        parts = [what]
        for data in paper.RESNET18:
            parts += [f"### {DATA[data]} in the paper", tables.printed(data)]
        return parts

    def _curves(self) -> list[str]:
        parts = []
        for at, title in COLUMNS.items():
            drawing = figures.by_task(MAIN, at, self.members)
            text = f"Accuracy after each task, {title}"
            parts += self._figure(f"after-each-task-{at}", text, drawing)
        return [words.CURVES, *parts] if parts else [self._wanted(TABLES)]

    def _costs(self) -> list[str]:
        drawing = figures.costs(MAIN, MIDDLE, self.members)
        parts = self._figure("costs", "A_T against MiB up and seconds, beta 0.5", drawing)
        if not parts:
            return [self._wanted(MIDDLES)]
        shown = [found for m in figures.METHODS for found in cell(self.members, MAIN, m, MIDDLE)]
        devices = ", ".join(sorted({found.group.device for found in shown}))
        what = words.COSTS.format(data=DATA[MAIN], devices=plain(devices))
        return [what, *parts, tables.costs(shown)]

    def _beta(self) -> list[str]:
        drawing = figures.by_beta(MAIN, self.members)
        return self._figure("beta", "A_T against beta", drawing) or [self._wanted(TABLES)]

    def _ladder(self) -> list[str]:
        shown = [found for found in self.members if self._is_rung(found)]
        if len(shown) < 2:
            return [self._wanted(MIDDLES, "needs two maps or more")]
        shown.sort(key=lambda found: found.value(tables.NUMBERS["A_T"]).mean or 0.0)
        rest = [key for key in tables.differing(shown) if not among(key, RUNGS)]
        more = f" Rows also differ in {', '.join(map(code, rest))}." if rest else ""
        return [
            words.LADDER.format(data=DATA[MAIN]) + more,
            tables.compared(shown, RUNGS, forgetting=False),
        ]

    def _is_rung(self, found: Stored) -> bool:
        if (found.data, found.method, column(found.config)) != (MAIN, "stsa", MIDDLE):
            return False
        aside = (BIT_RECIPES, *(sweep.recipes for sweep in SWEEPS))
        elsewhere = [any(re.search(kind, name) for kind in aside) for name in found.matches]
        own = all(among(key, RUNGS) for key in found.changes)
        return own and not (elsewhere and all(elsewhere))

    def _sweeps(self) -> list[str]:
        parts = []
        for sweep in SWEEPS:
            parts.append(f"### {sweep.heading}")
            buckets = sweep.of(self.members)
            if not buckets:
                parts.append(self._wanted(sweep.recipes))
                continue
            drawing = figures.by_value(sweep, buckets)
            parts += self._figure(f"sweep-{sweep.name}", f"A_T against {sweep.label}", drawing)
            parts.append(tables.swept(sweep, buckets))
        return parts

    def _estimate(self) -> list[str]:
        if not self.measured:
            return [self._wanted(r"-stsa-e-(holders|all)$", "with `method.measure_error=true`")]
        return [words.ESTIMATE, tables.estimates(self.measured)]

    def _bits(self) -> list[str]:
        buckets = alike(self.members, BITS)
        if not buckets:
            return [self._wanted(BIT_RECIPES)]
        parts = [words.BITS]
        for bucket in buckets:
            bucket.sort(key=lambda found: int(found.config["features"]["bits"]))
            parts += [self._said(bucket[0]), tables.compared(bucket, BITS)]
        return parts

    def _gamma(self) -> list[str]:
        parts: list[str] = []
        for bucket in alike(self.members, GAMMA):
            more = {"gamma of the last solve": tables.gamma_used}
            parts += [self._said(bucket[0]), tables.compared(bucket, GAMMA, more)]
        curves = tables.held_out(whole(self.members))
        if curves:
            parts += [words.HELD_OUT, *curves]
        return parts or [self._wanted(MIDDLES, "with several `method.gamma`")]

    def _code(self) -> list[str]:
        said = {}
        for family in ("published", "published-code"):
            inside = cell(self.members, MAIN, "stsa", MIDDLE)
            texts = [
                f"{percent(found.value(tables.NUMBERS['A_T']))} {found.linked()}"
                for found in inside
                if found.family == family
            ]
            said[family] = " and ".join(texts) or "no record yet"
        printed = paper.printed(MAIN, "stsa", MIDDLE)
        what = words.CODE.format(
            printed=printed.A_T if printed else None,
            published=f"published-{MAIN}-stsa-{MIDDLE}",
            code=f"published-code-{MAIN}-stsa-{MIDDLE}",
            ours=said["published"],
            theirs=said["published-code"],
        )
        parts = [what]
        there = cell(self.members, MAIN, "stsa", MIDDLE)
        for bucket in alike(self.members, CODE):
            if any(found in there for found in bucket):
                parts.append("Records that differ in some of these settings and in nothing else:")
                parts.append(tables.compared(bucket, CODE))
        return parts

    def _without_a_card(self) -> list[str]:
        shown = [found for found in self.members if found.family == "patches-cpu"]
        if not shown:
            return [self._wanted("^patches-cpu")]
        devices = ", ".join(sorted({found.group.device for found in shown}))
        return [f"All of {DATA[MAIN]} on {plain(devices)}.", tables.costs(shown)]

    def _other(self) -> list[str]:
        parts = []
        for data in dict.fromkeys(["tiny-imagenet", *(found.data for found in self.members)]):
            inside = [found for found in self.members if found.data == data]
            if data == MAIN:
                continue
            parts.append(f"### {plain(DATA.get(data, data))}")
            if any(cell(inside, data, method, at) for method in TITLES for at in COLUMNS):
                parts.append(tables.main(data, "A_T", inside))
            elif not inside:
                parts.append(self._wanted(rf"-{data}-stsa(-e)?-"))
            else:
                parts.append(tables.costs(inside, tuple(tables.NUMBERS), ("first_stage",)))
        return parts

    def _runs(self) -> list[str]:
        parts = [words.RUNS, tables.runs(self.members)]
        unknown = [found.recipe for found in self.members if not found.known]
        if unknown:
            names = ", ".join(map(code, dict.fromkeys(unknown)))
            parts.append(f"No recipe of this version: {names}; made again from their records.")
        parts += [plain(line) for line in left_out([found.group for found in self.members])]
        notes = self._notes()
        if notes:
            summary = f"<details><summary>{counted(len(notes), 'note')} of records</summary>"
            parts += [summary, "\n".join(notes), "</details>"]
        return parts

    def _notes(self) -> list[str]:
        lines = []
        for found in self.members:
            said: dict[str, list[int]] = {}
            for record in found.group.records:
                for note in record.notes:
                    said.setdefault(note, []).append(record.seed)
            for note, seeds in said.items():
                lines.append(f"- {code(found.recipe)} {found.linked(seeds)}: {plain(note)}")
        return lines

    def _figure(self, name: str, text: str, drawing: str | None) -> list[str]:
        """Keep a drawing, and refer to it."""
        if drawing is None:
            return []
        self.files[self.page.with_suffix("") / f"{name}.svg"] = drawing
        return [image(text, f"{self.page.stem}/{name}.svg")]

    def _said(self, found: Stored) -> str:
        """What the rows of a comparison have in common, in words."""
        at = column(found.config)
        said = [DATA.get(found.data, found.data), *([COLUMNS[at]] if at else [])]
        said.append(TITLES.get(found.method, found.method))
        return Piece(f"{plain(', '.join(said))}, {code(found.family)}:")

    def _wanted(self, pattern: str, how: str = "") -> str:
        """One line in place of a section that has no record yet."""
        names = [name for name in self.book.recipes if re.search(pattern, name)]
        more = f" ({how})" if how else ""
        if not names:
            return f"No record yet{more}, and no recipe of this version would make one."
        shown, rest = names[:NAMED], len(names) - NAMED
        others = f" and {rest} more of their kind (`fcil list recipes`)" if rest > 0 else ""
        return (
            f"No record yet{more}. Recipes that fill this: {', '.join(map(code, shown))}{others}."
        )

"""ImageNet-R: class folders with published split lists, or folders that are split already."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from pathlib import Path, PurePosixPath

from fcil.data.dataset import Dataset
from fcil.data.findings import need_root
from fcil.data.sources import IMAGENET_R_LISTS, how_to_get
from fcil.data.trees import Listing, folders, list_folder, read
from fcil.errors import DataError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def imagenet_r(root: Path | None, size: int | None) -> Dataset:
    """ImageNet-R: 200 classes of renditions, images of varying size."""
    listing = list_imagenet_r(need_root("imagenet-r", root))
    return read("imagenet-r", listing, size, IMAGENET_MEAN, IMAGENET_STD)


def list_imagenet_r(root: Path) -> Listing:
    """Published split lists beside the class folders, or else train/ and test/ class folders."""
    base = root / "imagenet-r" if (root / "imagenet-r").is_dir() else root
    for names in (("imagenet-r_train.yaml", "imagenet-r_test.yaml"), ("train.txt", "test.txt")):
        for place in dict.fromkeys((base, root)):
            lists = [place / name for name in names]
            if any(path.is_file() for path in lists):
                return _from_lists(base, *lists)
    if (base / "train").is_dir():
        return list_folder(base)
    listing = Listing()
    found = len(folders(base)) if base.is_dir() else 0
    listing.problem(
        base,
        f"{base} has {found} class folders, but neither split lists nor a folder train. "
        + (IMAGENET_R_LISTS if found else how_to_get("imagenet-r", root)),
    )
    return listing


def read_list(path: Path) -> tuple[list[str], list[int] | None]:
    """Paths and, in a YAML list, their labels.

    The YAML form is exactly that of the published lists: the keys `data` and `targets`, each
    followed by lines `- value`. A text list has one path a line and no labels.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"There is no file {path}. {IMAGENET_R_LISTS}") from None
    except (OSError, UnicodeDecodeError) as why:
        raise DataError(f"{path} cannot be read: {why}.") from why
    if path.suffix == ".txt":
        paths = [line.strip() for line in lines if line.strip()]
        if not paths:
            raise DataError(f"{path} is empty; it must hold one relative path a line.")
        return paths, None
    values: dict[str, list[str]] = {}
    current: list[str] | None = None
    for at, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text in ("data:", "targets:") and text not in values:
            current = values.setdefault(text, [])
        elif text.startswith("- ") and current is not None:
            current.append(text[2:].strip().strip("'\""))
        else:
            raise DataError(
                f"{path}, line {at}: {text!r} is neither `data:`, `targets:` nor `- value`, which "
                f"is all a split list holds. {IMAGENET_R_LISTS}"
            )
    data, targets = values.get("data:", []), values.get("targets:", [])
    if not data or len(data) != len(targets) or not all(target.isdecimal() for target in targets):
        raise DataError(
            f"{path} has {len(data)} paths and {len(targets)} labels; there must be one number for "
            f"each path. {IMAGENET_R_LISTS}"
        )
    return data, [int(target) for target in targets]


def _from_lists(base: Path, train: Path, test: Path) -> Listing:
    listing = Listing()
    entries: list[tuple[str, int | None]] = []
    cut = 0
    for path in (train, test):
        try:
            names, labels = read_list(path)
        except DataError as why:
            listing.problem(path, str(why))
            continue
        entries.extend(zip(names, labels or repeat(None), strict=False))
        cut = cut or len(names)
    for entry, _ in entries:
        if not _is_inside(entry):
            listing.problem(train, f"{entry!r} in the split lists does not lead to CLASS/FILE.")
    if listing.findings:
        return listing
    number = _numbers(listing, base, entries)
    listing.class_names = tuple(sorted(number, key=number.__getitem__))
    seen: dict[Path, int] = {}
    for row, (entry, _) in enumerate(entries):
        file = _resolve(base, entry)
        if file is None:
            listing.problem(base, f"There is no file for {entry!r} of the split lists in {base}.")
        elif file in seen:
            both = "both split lists" if (seen[file] < cut) != (row < cut) else "a split list twice"
            listing.problem(file, f"{file} is in {both}: an image must be in one set, once.")
        else:
            seen[file] = row
            rows = listing.train if row < cut else listing.test
            rows.append((file, number[_class_of(entry)]))
    return listing.count()


def _numbers(
    listing: Listing, base: Path, entries: Iterable[tuple[str, int | None]]
) -> dict[str, int]:
    """Label of each class folder: the lists' own, else the place in the sorted names."""
    given: dict[str, set[int | None]] = {}
    for entry, label in entries:
        given.setdefault(_class_of(entry), set()).add(label)
    names = sorted(given)
    if all(None in labels for labels in given.values()):
        return {name: label for label, name in enumerate(names)}
    number = {
        name: label for name, labels in given.items() for label in labels if label is not None
    }
    if any(len(labels) > 1 for labels in given.values()) or sorted(number.values()) != list(
        range(len(names))
    ):
        listing.problem(
            base,
            f"The split lists do not give each of the {len(names)} class folders one label of its "
            f"own from 0 to {len(names) - 1}. They are not the published ones. {IMAGENET_R_LISTS}",
        )
        return {name: label for label, name in enumerate(names)}
    return number


def _is_inside(entry: str) -> bool:
    parts = PurePosixPath(entry).parts
    return len(parts) >= 2 and not entry.startswith("/") and ".." not in parts and "\\" not in entry


def _class_of(entry: str) -> str:
    return PurePosixPath(entry).parent.name


def _resolve(base: Path, entry: str) -> Path | None:
    """The file an entry means: the published lists name it from a folder that users do not have."""
    relative = PurePosixPath(entry)
    last = Path(*relative.parts[-2:])
    places = (base / relative, base / last, base / "train" / last, base / "test" / last)
    return next((place for place in places if place.is_file()), None)

"""What the pages say exists: links, recipes, settings, modules, and the example of a method."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fcil import registry, settings
from fcil.errors import Interrupted
from fcil.experiment import recipes
from fcil.experiment.run import run
from fcil.record import Record
from fcil.stats import codec

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in (
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "changelog.d").glob("*.md"),
    )
    if page.exists()
)
EVERY_PAGE = pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]
)
EXAMPLE = ROOT / "examples" / "my_method.py"

RECIPE = re.compile(
    r"(?<![\w/.-])(?:(?:published(?:-code)?|best|wide|patches)-(?:cifar100|tiny-imagenet)|digits)"
    r"-[a-z0-9.-]*[a-z0-9]"
)
SHORT = re.compile(r"`(-[a-z0-9][a-z0-9.-]+)`")
KEY = re.compile(
    r"(?<![\w/.])((?:data|tasks|clients|backbone|first_stage|features|method|upload)\.[a-z_]+)"
)


def code(page: Path) -> str:
    """All that stands in backticks or in a block of code."""
    text = page.read_text()
    blocks = re.findall(r"^```.*?^```$|^    \S.*?$", text, re.DOTALL | re.MULTILINE)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", text)])


@EVERY_PAGE
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    local = [target.partition("#")[0] for target in targets if "://" not in target]
    assert not [target for target in local if target and not (page.parent / target).exists()]


@EVERY_PAGE
def test_recipes_that_are_named_exist(page: Path) -> None:
    named = set(RECIPE.findall(page.read_text()))
    assert named <= set(recipes.names())


@EVERY_PAGE
def test_endings_of_recipes_belong_to_the_name_before_them(page: Path) -> None:
    """In a line such as: `published-cifar100-stsa-m0`, `-m1250`."""
    for line in page.read_text().splitlines():
        first = RECIPE.search(line)
        for ending in SHORT.findall(line):
            assert first, line
            parts = first[0].split("-")
            made = {"-".join(parts[:n]) + ending for n in range(1, len(parts))}
            assert made & set(recipes.names()), ending


def test_every_recipe_of_a_method_is_on_its_page() -> None:
    for name in recipes.names():
        method = recipes.recipe(name)["method"]["name"]
        page = (ROOT / "docs" / "methods" / f"{method}.md").read_text()
        ending = "-" + name.partition(f"-{method}-")[2]
        assert name in page or f"`{ending}`" in page or ("published-code-" in name), name


@EVERY_PAGE
def test_settings_that_are_named_exist(page: Path) -> None:
    known = set(settings.keys())
    for method in registry.names("methods"):
        fields = registry.find("methods", method).Config.model_fields
        known |= {f"method.{field}" for field in ("name", *fields)}
    named = {key for key in KEY.findall(code(page)) if not key.endswith((".py", ".md"))}
    assert named <= known
    assigned = set(re.findall(r"--set '?([\w.]+)=", page.read_text())) - {"method", "key"}
    assert assigned <= known


@EVERY_PAGE
def test_modules_and_files_that_are_named_exist(page: Path) -> None:
    text = code(page)
    for path in re.findall(r"(?<![\w/.])((?:src|tests|docs|examples)/[\w./-]*\w)", text):
        assert (ROOT / path).exists(), path
    for dotted in re.findall(r"^(fcil(?:\.\w+)+)(?:\(.*)?$", text, re.MULTILINE):
        module, _, last = dotted.rpartition(".")
        try:
            importlib.import_module(dotted)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), last), dotted


def test_the_page_on_adding_a_method_quotes_the_example() -> None:
    page = (ROOT / "docs" / "add-a-method.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 6
    assert not [block for block in blocks if block not in EXAMPLE.read_text()]


# --- the example, installed as a stranger's package --------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example as a package of its own, found through its entry point."""
    page = (ROOT / "docs" / "add-a-method.md").read_text()
    entry = re.search(r"^    (\[project.entry-points[^\n]+)\n    (\S+) = \"(\S+)\"", page, re.M)
    assert entry and entry[1] == '[project.entry-points."fcil.methods"]'
    shutil.copy(EXAMPLE, tmp_path)
    info = tmp_path / "my_method-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-method\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[fcil.methods]\n{entry[2]} = {entry[3]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(codec, "KINDS", dict(codec.KINDS))
    registry._entries.cache_clear()
    yield
    registry._entries.cache_clear()
    sys.modules.pop("my_method", None)


def example(*assignments: str) -> Record:
    tree = recipes.recipe("digits-stsa")
    tree["method"] = {"name": "nearest-mean"}
    return run(settings.build(settings.override(tree, assignments)), device="cpu")


@pytest.mark.usefixtures("installed")
def test_the_example_learns() -> None:
    record = example()
    assert record.A_T is not None and record.A_T > 75
    assert record.gradient_steps[0] > 0 and not any(record.gradient_steps[1:])
    width, classes = 128, 2
    for up in record.bytes["up"]:
        assert all(8 * width < sent < 8 * width * classes + 3000 for sent in up)


@pytest.mark.usefixtures("installed")
def test_how_the_data_are_dealt_does_not_show_in_the_example() -> None:
    untrained = ("first_stage.kind=none", "method.projection=200")
    whole = example(*untrained, "clients.count=1", "clients.beta=0")
    dealt = example(*untrained, "clients.count=7", "clients.beta=0.2")
    assert whole.fingerprint == dealt.fingerprint
    assert whole.matrix == dealt.matrix and (whole.A_T or 0) > 60


@pytest.mark.usefixtures("installed")
def test_the_examples_sums_add_subtract_and_travel() -> None:
    from fcil.stats.features import Features

    Sums = importlib.import_module("my_method").ClassSums
    values = torch.randint(0, 256, (30, 5), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(30) % 3 * 2
    whole = Sums.of(Features(values), labels, 6)
    parts = [Sums.of(Features(values[at]), labels[at], 6) for at in (slice(11), slice(11, 30))]
    for found, wanted in (
        (parts[1] + parts[0], whole),
        (whole - parts[0], parts[1]),
        (codec.decode(codec.encode(whole)), whole),
    ):
        assert torch.equal(found.sums, wanted.sums) and torch.equal(found.counts, wanted.counts)
    assert torch.equal(whole.sums[4], values[labels == 4].sum(0).double())


@pytest.mark.usefixtures("installed")
def test_the_example_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    tree = recipes.recipe("digits-stsa")
    tree["method"] = {"name": "nearest-mean"}
    chosen = settings.build(settings.override(tree, ["first_stage.rounds=1"]))

    def stop(done: int, total: int, what: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="--resume"):
        run(chosen, out=tmp_path / "run", device="cpu", listener=stop)
    resumed = run(chosen, out=tmp_path / "run", device="cpu", resume=True)
    assert resumed.outcome() == run(chosen, device="cpu").outcome()


def test_the_readmes_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})

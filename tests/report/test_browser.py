"""The pages in a real browser: nothing overflows on a desk, on a phone and on paper."""

from __future__ import annotations

import copy
import html
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fcil.report.page import holdings_page, page

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None
)
pytestmark = pytest.mark.skipif(
    BROWSER is None,
    reason="no chromium or google-chrome binary: the pages were not looked at in a browser",
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
MEASURE = """
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const inside = frame.contentDocument, root = inside.documentElement;
    const folded = [...inside.querySelectorAll("details table")].filter(
      table => !table.checkVisibility()).length;
    inside.querySelectorAll("details").forEach(fold => { fold.open = true; });
    const name = element => element.tagName + " " + element.textContent.slice(0, 60);
    const outside = element => {
      const box = element.getBoundingClientRect();
      return box.width > 0 && box.right > root.clientWidth + 1 && !element.closest(".scroll");
    };
    return {
      folded: folded,
      width: root.clientWidth,
      page: root.scrollWidth,
      outside: [...inside.querySelectorAll("body *")].filter(outside).map(name),
      clipped: [...inside.querySelectorAll(".scroll")].filter(
        box => box.scrollWidth > box.clientWidth + 1).map(name),
      small: [...inside.querySelectorAll("svg.chart text")].filter(
        text => text.getBoundingClientRect().height < 9).length,
      dark: getComputedStyle(inside.body).backgroundColor,
      scripted: inside.title === "scripted",
    };
  });
  document.title = JSON.stringify(found);
});
"""


def browse(folder: Path, *arguments: str) -> str:
    """Run the browser on its own profile and return what it prints."""
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def measure(folder: Path, views: list[tuple[str, int]]) -> list[dict]:
    """Load each page, unchanged in its own policy, in a frame of a width, and measure there."""
    frames = "".join(
        f'<iframe style="width:{width}px;height:800px;border:0" srcdoc="{html.escape(text)}">'
        "</iframe>"
        for text, width in views
    )
    wrapper = folder / "wrapper.html"
    wrapper.write_text(f"<!DOCTYPE html><title></title>{frames}<script>{MEASURE}</script>")
    dom = browse(folder, "--virtual-time-budget=5000", "--dump-dom", wrapper.as_uri())
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1]))


def on_paper(text: str) -> str:
    """The print rules on a screen, so that they can be measured."""
    return text.replace("@media screen and", "@media speech and").replace(
        "@media print", "@media all"
    )


def dark(text: str) -> str:
    """The dark rules whatever the system prefers."""
    return text.replace("@media screen and (prefers-color-scheme:dark)", "@media all")


@pytest.fixture(scope="module")
def large() -> str:
    """Who holds what for 100 classes with long names and 30 clients."""
    draw = random.Random(0)
    names = [f"class-with-a-rather-long-name-{i}" for i in range(100)]
    return holdings_page(
        "cifar100_with_an_unbreakably_long_experiment_name_published_beta_0.1_seed_12345",
        [list(range(20 * t, 20 * t + 20)) for t in range(5)],
        [names[20 * t : 20 * t + 20] for t in range(5)],
        [[[draw.randrange(500) for _ in range(20)] for _ in range(30)] for _ in range(5)],
    )


@pytest.fixture(scope="module")
def report(demo) -> str:
    """The demo, with a group whose name, class names and note are long and unbreakable."""
    odd = copy.deepcopy(demo[0])
    odd.config["method"]["name"] = "a_method_" * 9
    odd.recipe = "published_recipe_" * 6
    odd.class_names = [["n01443537_goldfish_" * 3, "x"] for _ in odd.class_names]
    odd.notes = ["w" * 200]
    return page([*demo, odd])


def test_nothing_overflows_in_any_view(tmp_path, report, large):
    views = [(text, width) for text in (report, large) for width in (1280, 768, 390, 320)]
    for found, (_, width) in zip(measure(tmp_path, views), views, strict=True):
        assert found["width"] == width
        assert found["page"] <= width, found
        assert found["outside"] == [], found
        assert found["small"] == 0, found


def test_paper_clips_nothing(tmp_path, report, large, record):
    twenty = page([record(method, seed, 20, 30) for method in ("stsa", "joint") for seed in (0, 1)])
    views = [(on_paper(text), 688) for text in (report, large, twenty)]
    for found in measure(tmp_path, views):
        assert found["page"] <= 688, found
        assert found["clipped"] == [], found
        assert found["folded"] == 0, "paper shows what a screen folds"


def test_dark_rules_apply(tmp_path, demo):
    light, night = measure(tmp_path, [(page(demo), 800), (dark(page(demo)), 800)])
    assert light["folded"] > 0
    assert light["dark"] == "rgb(255, 255, 255)"
    assert night["dark"] == "rgb(20, 23, 26)"


def test_the_policy_stops_scripts(tmp_path, demo):
    """Should an attack ever get past the escaping, the browser still does not run it."""
    script = "<script>document.title = 'scripted'</script></body>"
    attacked = page(demo).replace("</body>", script)
    without = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", attacked)
    stopped, run = measure(tmp_path, [(attacked, 800), (without, 800)])
    assert run["scripted"], "the test's own script must work where nothing stops it"
    assert not stopped["scripted"]


def test_prints_to_pdf(tmp_path, demo):
    source, target = tmp_path / "page.html", tmp_path / "page.pdf"
    source.write_text(page(demo))
    browse(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={target}", source.as_uri())
    content = target.read_bytes()
    assert content.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", content))
    assert 4 <= pages <= 14, "the folded parts are printed, and sections begin new sheets"


@pytest.mark.parametrize("width", [1280, 390])
def test_screenshot_shows_a_page(tmp_path, demo, width):
    image = tmp_path / "page.png"
    (tmp_path / "page.html").write_text(page(demo))
    frame = f'<body style="margin:0"><iframe src="page.html" width="{width}" height="900"></iframe>'
    (tmp_path / "frame.html").write_text(frame)
    browse(
        tmp_path,
        f"--window-size={max(width, 500)},900",
        f"--screenshot={image}",
        (tmp_path / "frame.html").as_uri(),
    )
    pillow = pytest.importorskip("PIL.Image")
    with pillow.open(image) as picture:
        colours = picture.convert("RGB").resize((200, 200)).getcolors(40_000)
    assert len(colours) > 50, "text, lines and colours, not a blank sheet"

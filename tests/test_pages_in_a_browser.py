"""Pages for phone, print and dark rooms, as Chromium shows them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_site import BROWSER, open_browser

import btil

if BROWSER is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

SIZES = {"wide": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}


def recordings() -> btil.Demonstrations:
    generator = np.random.default_rng(0)
    latents = generator.integers(2, size=(120, 2))
    actions = np.where(generator.random((120, 2)) < 0.9, latents, 2)
    labels = np.where(np.arange(120)[:, None] < 60, latents, -1)
    return btil.Demonstrations(
        {"a_place_with_a_long_name": generator.integers(2, size=120)},
        actions,
        latents=labels,
        episodes=np.repeat(np.arange(6), 20),
        agents=("ann", "somebody_with_a_rather_long_name"),
        num_actions=3,
        num_latents=2,
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A comparison and a debrief."""
    folder, demos = tmp_path_factory.mktemp("pages"), recordings()
    model = btil.TeamModel(btil.DirichletCPT(1.0), btil.DirichletCPT(1.0))
    options = {"gibbs": {"num_chains": 2, "num_warmup": 20, "num_samples": 40}}
    comparison = btil.compare(
        model,
        demos,
        ("mfvi", "gibbs"),
        demos.select([0]),
        progress=False,
        options=options,
        num_draws=20,
    )
    debrief = btil.analysis.debrief(
        comparison.posteriors["mfvi"], demos, folder / "debrief", 2, relearn=False, progress=False
    )
    return {"comparison": comparison.report(folder / "comparison"), "debrief": debrief.page}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["comparison", "debrief"])
def test_pages_fit_and_everybody_can_read_them(
    kind: str, scheme: Any, size: str, pages: dict[str, Path], browser: Any
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab = browser.new_context(viewport=SIZES[size], color_scheme=scheme).new_page()
    tab.goto(pages[kind].as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # Wide figures have a form for phones, whose letters are as large as those of the page.
    scrolling = (
        "[...document.querySelectorAll('figure')].filter(f => f.scrollWidth > f.clientWidth)"
    )
    assert tab.evaluate(f"{scrolling}.length") == 0
    pixels = "i => i.getBoundingClientRect().width / i.naturalWidth"
    images = "[...document.querySelectorAll('picture img')]"
    shares = tab.evaluate(f"{images}.map(i => [i.currentSrc.slice(0, 22), ({pixels})(i)])")
    assert shares
    if size == "phone":
        # Drawn at 200 dots an inch, letters of nine points are 25 dots high.
        assert all(kind == "data:image/png;base64," for kind, _ in shares)
        assert min(25 * share for _, share in shares) > 8
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = max(map(int, re.findall(r"\d+", paper)))
    assert (brightness > 200) == (scheme == "light")
    tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = Axe().run(tab).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []


@pytest.mark.parametrize("kind", ["comparison", "debrief"])
def test_print_unfolds_and_fits_the_sheet(kind: str, pages: dict[str, Path], browser: Any) -> None:
    tab = browser.new_context(viewport={"width": 794, "height": 1123}).new_page()
    tab.goto(pages[kind].as_uri())
    inside = "[...document.querySelectorAll('details > :last-child')].map(one => one.offsetHeight)"
    visible = "one => one.checkVisibility({contentVisibilityAuto: true})"
    folded = f"[...document.querySelectorAll('details > :last-child')].map({visible})"
    assert not any(tab.evaluate(folded))
    tab.emulate_media(media="print")
    # The browser unfolds with its next frame, not at once.
    tab.wait_for_function(f"{folded}.every(Boolean)", timeout=10_000)
    assert min(tab.evaluate(inside)) > 0
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    sheets = len(re.findall(rb"/Type\s*/Page[^s]", tab.pdf(format="A4")))
    assert 1 <= sheets < 10

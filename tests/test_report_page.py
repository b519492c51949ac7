"""report.html in a real browser: it sorts, shows tooltips, fits a telephone, follows the dark scheme."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpers.app.cli import main
from fedpers.results import files
from tests.reports import make

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
PROGRAMS = [shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")]
pytestmark = [
    pytest.mark.skipif(None in PROGRAMS, reason="needs chromium and chromedriver"),
    pytest.mark.xdist_group("report page"),  # one browser
]

METHODS = {"local": 0.90, "fedavg": 0.70, "fedper": 0.93}
NARROW, TABLET, WIDE = 400, 800, 1200


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of three methods, two seeds and ten clients, with a picture."""
    root = tmp_path_factory.mktemp("runs")
    for method, level in METHODS.items():
        for seed in (0, 1):
            curve = [level - 0.2, level - 0.1, level + seed / 100]
            run = make(root / f"{method}-{seed}", method, seed, curve, best=curve[-1])
            rows = [{"partition_id": k, "accuracy": level + (k - 5) * seed / 50} for k in range(10)]
            files.replace_csv(run / "clients.csv", rows, list(rows[0]))
    assert main(["report", str(root)]) == 0
    return root / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS[0]
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "hide-scrollbars",
        "disable-background-networking",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(PROGRAMS[1]))
    yield driver
    driver.quit()


def show(browser: Any, page: Path, width: int = WIDE, scheme: str = "light") -> None:
    """Load the page at a width in a colour scheme and wait for its figures."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == NARROW}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())
    wait(browser, "document.querySelectorAll('.chart svg').length == 2")


def wait(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda b: b.execute_script(f"return {condition}"))


def click(browser: Any, selector: str) -> None:
    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    element.click()


def column(browser: Any, place: int) -> list[str]:
    script = (
        f"return [...document.querySelector('.ranking').tBodies[0].rows].map(r => r.cells[{place}].innerText)"
    )
    return browser.execute_script(script)


def test_it_renders_without_errors_or_network(browser, page):
    show(browser, page)
    logs = [m for m in browser.get_log("browser") if m["level"] in ("SEVERE", "WARNING")]
    assert logs == []
    sent = [json.loads(m["message"])["message"] for m in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
    assert {u.partition(":")[0] for u in urls} <= {"file", "data", "blob"}
    assert browser.execute_script("return document.querySelector('.verdict').innerText") != ""
    assert column(browser, 1) == ["fedper", "local", "fedavg"]


def test_a_click_on_a_heading_sorts(browser, page):
    show(browser, page)
    headings = browser.find_elements("css selector", ".ranking th button")
    headings[1].click()
    assert column(browser, 1) == ["fedavg", "fedper", "local"]
    headings[1].click()
    assert column(browser, 1) == ["local", "fedper", "fedavg"]
    headings[2].click()  # accuracy: the best first
    assert column(browser, 1) == ["fedper", "local", "fedavg"]
    order = browser.execute_script("return document.querySelectorAll('.ranking th')[2].ariaSort")
    assert order == "descending"


def test_a_tooltip_appears_over_a_curve_and_a_client(browser, page):
    from selenium.webdriver import ActionChains

    show(browser, page)
    for chart, words in (("curves", ("method", "round", "test accuracy")), ("clients", ("client", "gain"))):
        svg = browser.find_element("css selector", f"[data-figure={chart}] .chart svg")
        browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", svg)
        ActionChains(browser).move_to_element(svg).move_by_offset(30, 5).perform()
        wait(browser, "document.querySelector('#vg-tooltip-element.visible') != null")
        text = browser.execute_script("return document.querySelector('#vg-tooltip-element').innerText")
        assert all(word in text for word in words)


def test_the_axis_follows_the_switch(browser, page):
    show(browser, page)
    for cost, title in (("bytes", "bytes sent, both ways"), ("seconds", "seconds in rounds")):
        click(browser, f"[data-set=x][value={cost}]")
        text = "document.querySelector('[data-figure=curves] .chart svg').textContent"
        wait(browser, f"{text}.includes('{title}')")


def test_a_click_on_a_method_hides_its_curve(browser, page):
    show(browser, page)
    count = "document.querySelectorAll('[data-figure=curves] .mark-line.role-mark').length"
    assert browser.execute_script(f"return {count}") == 3
    click(browser, "[data-name=fedavg]")
    wait(browser, f"{count} == 2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, TABLET, WIDE])
def test_nothing_scrolls_sideways(browser, page, width, scheme):
    show(browser, page, width, scheme)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    inner = "[...document.querySelectorAll('.scroll')].every(e => e.scrollWidth <= e.clientWidth)"
    assert browser.execute_script(f"return {inner}")


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_page_follows_the_colour_scheme(browser, page, scheme, dark):
    show(browser, page, scheme=scheme)
    background, ink = (luminance(browser, name) for name in ("backgroundColor", "color"))
    assert (background < 0.05) == dark
    brighter, darker = max(background, ink), min(background, ink)
    assert (brighter + 0.05) / (darker + 0.05) > 7  # WCAG AAA


def luminance(browser: Any, name: str) -> float:
    """Relative luminance (WCAG 2) of a colour of the body."""
    text = browser.execute_script(f"return getComputedStyle(document.body).{name}")
    values = [int(v) / 255 for v in text[text.index("(") + 1 : -1].split(",")[:3]]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

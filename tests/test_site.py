"""The documentation site builds without a warning; in a browser search works and nothing scrolls sideways."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'fedpers[docs]'")
ROOT = Path(__file__).parents[1]
PROGRAMS = [shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")]
in_browser = pytest.mark.skipif(None in PROGRAMS, reason="needs chromium and chromedriver")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("documentation site")]  # built once


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_it_has_every_page(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs").with_suffix(".html") for p in (ROOT / "docs").rglob("*.md")}
    missing = [p for p in pages if not (site / p).is_file()]
    assert not missing
    assert {"contributing.html", "changelog.html"} <= {p.name for p in site.glob("*.html")}


def test_the_reference_comes_from_the_docstrings(site: Path) -> None:
    text = (site / "reference" / "running.html").read_text(encoding="utf-8")
    assert "The same run may be there: it is gone on with" in text
    assert "Whole models" in (site / "reference" / "method.html").read_text(encoding="utf-8")


def test_every_link_inside_leads_somewhere(site: Path) -> None:
    """Those of the hook too, which MkDocs does not check."""
    import re

    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#]+)', page.read_text(encoding="utf-8")):
            parts = urlsplit(link)
            if page.name != "404.html" and not parts.scheme and not parts.netloc and parts.path:
                assert (page.parent / parts.path).exists(), f"{page.relative_to(site)} links to {link}"


# ---- in a browser -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """A server of the site on a free port."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window, which logs errors and requests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS[0]
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(PROGRAMS[1]))
    driver.set_page_load_timeout(120)
    yield driver
    driver.quit()


def show(browser: Any, url: str, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(url)


@in_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_pages_have_no_error_and_fit(browser: Any, address: str, width: int) -> None:
    import json

    browser.get_log("performance")
    for page in ("index", "api", "reference/running", "methods/pflego"):
        show(browser, f"{address}/{page}.html", width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
        assert browser.find_element("css selector", "h1").is_displayed()
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    sent = [json.loads(m["message"])["message"] for m in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
    strange = [u for u in urls if not u.startswith((address, "data:", "blob:", "chrome"))]
    assert not strange  # nothing comes from elsewhere


@in_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_search_finds_a_page(browser: Any, address: str, width: int) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    show(browser, f"{address}/index.html", width)
    if width < 1000:
        browser.find_element("css selector", "label.md-header__button[for=__search]").click()
    field = browser.find_element("css selector", "input.md-search__input")
    WebDriverWait(browser, 60).until(lambda _: field.is_displayed() and field.is_enabled())
    browser.execute_script("arguments[0].focus()", field)
    field.send_keys("jain")
    found = "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    WebDriverWait(browser, 60).until(lambda b: any("metrics.html" in h for h in b.execute_script(found)))

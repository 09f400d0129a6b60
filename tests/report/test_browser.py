"""The report in a real browser. Debian: apt-get install chromium chromium-driver."""

from __future__ import annotations

import json
import os
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cpr_wrap.report.html import write_report
from tests.report.making import full_curve

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not (BROWSER and DRIVER),
        reason="no Chromium here: apt-get install chromium chromium-driver",
    ),
]

EVIL = "<img src=x onerror='window.evil=1'><script>window.evil=1</script>"


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # root has no sandbox, and containers run as root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def curves():
    return {
        "middle": full_curve("middle", weakness=1.4, seed=1),
        "best": full_curve("best"),
        "worst": full_curve("worst", weakness=2.5, seed=2),
        EVIL: full_curve(EVIL, weakness=1.8, seed=3, passes=()),
    }


@pytest.fixture(scope="module")
def pages(tmp_path_factory, curves):
    folder = tmp_path_factory.mktemp("reports")
    write_report(list(curves.values()), folder / "several.html", title=EVIL)
    write_report(curves["best"], folder / "one.html")
    return folder


@pytest.fixture
def several(browser, pages):
    browser.get((pages / "several.html").as_uri())
    browser.execute_script("localStorage.clear()")
    browser.refresh()
    return browser


@contextmanager
def emulating(browser, width=1280, scheme="light"):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def open_all(browser):
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")


def column(browser, place):
    script = """return [...document.querySelectorAll('table.leaderboard tbody tr')]
        .map(row => row.cells[arguments[0]].textContent)"""
    return browser.execute_script(script, place)


def heading(browser, text):
    heads = browser.find_elements(By.CSS_SELECTOR, "table.leaderboard thead th")
    (head,) = [h for h in heads if " ".join(h.text.split()).startswith(text)]
    return head


@pytest.mark.parametrize("page", ["one.html", "several.html"])
def test_no_complaints_and_no_requests(browser, pages, page):
    """Served, since a page from a server would ask it for an icon."""
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(pages)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser.get_log("browser"), browser.get_log("performance")
    try:
        browser.get(f"http://127.0.0.1:{server.server_port}/{page}")
        open_all(browser)
        browser.find_element(By.ID, "theme").click()
    finally:
        server.shutdown()
        server.server_close()
    assert browser.get_log("browser") == []
    messages = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    sent = [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]
    outside = [url for url in sent if not url.startswith("data:")]
    assert outside == [f"http://127.0.0.1:{server.server_port}/{page}"]
    assert asked == [f"/{page}"]


def test_names_are_text(several):
    assert several.execute_script("return window.evil") is None
    assert several.find_element(By.TAG_NAME, "h1").text == EVIL
    assert EVIL in column(several, 0)


def test_headings_sort_by_value_both_ways(several, curves):
    head = heading(several, "step α₀ = 0.05")
    totals = {name: curve.total_robust_loss("step:0.05") for name, curve in curves.items()}
    rising = sorted(totals, key=totals.__getitem__)
    assert column(several, 0) == rising  # as it is without a press
    heading(several, "run").find_element(By.TAG_NAME, "button").click()
    assert column(several, 0) != rising
    head.find_element(By.TAG_NAME, "button").click()
    assert column(several, 0) == rising
    assert head.get_attribute("aria-sort") == "ascending"
    head.find_element(By.TAG_NAME, "button").click()
    assert column(several, 0) == rising[::-1]
    assert head.get_attribute("aria-sort") == "descending"


def test_sorting_works_by_keyboard_and_marks_one_heading(several):
    heading(several, "ramp t = 2").find_element(By.TAG_NAME, "button").click()
    button = heading(several, "run").find_element(By.TAG_NAME, "button")
    button.send_keys(Keys.ENTER)
    names = column(several, 0)
    assert names == [EVIL, "best", "middle", "worst"]
    button.send_keys(Keys.SPACE)
    assert column(several, 0) == names[::-1]
    heads = several.find_elements(By.CSS_SELECTOR, "table.leaderboard thead th")
    states = [head.get_attribute("aria-sort") for head in heads]
    assert states.count("none") == len(states) - 1


def shown(browser, selector):
    script = """return [...document.querySelectorAll(arguments[0])]
        .filter(each => getComputedStyle(each).display !== 'none').map(each => each.dataset.run)"""
    return browser.execute_script(script, selector)


def test_filters_hide_runs_and_a_box_hides_a_curve(browser, tmp_path):
    runs = [full_curve("a"), full_curve("b", eps=0.4), full_curve("c", seed=1)]
    write_report(runs, tmp_path / "page.html")
    browser.get((tmp_path / "page.html").as_uri())
    assert len(browser.find_elements(By.CSS_SELECTOR, "#curve-chart .chart")) == 2
    assert shown(browser, "g[data-run]") == ["0", "2", "1"]
    browser.find_element(By.CSS_SELECTOR, "#readings tr[data-run='2'] input").click()
    assert shown(browser, "g[data-run]") == ["0", "1"]
    assert shown(browser, "#readings tr[data-run]") == ["0", "1", "2"]
    choice = browser.find_element(By.CSS_SELECTOR, "select[data-facet='threat']")
    choice.find_elements(By.TAG_NAME, "option")[2].click()
    assert shown(browser, "g[data-run]") == ["1"]
    assert shown(browser, "#readings tr[data-run]") == ["1"]
    assert shown(browser, "table.leaderboard tr[data-run]") == ["1"]


def test_what_is_missing_sorts_last_both_ways(several):
    """One run counted no passes."""
    button = heading(several, "passes/image").find_element(By.TAG_NAME, "button")
    for _ in range(2):
        button.click()
        assert column(several, 0)[-1] == EVIL


def test_the_slider_reads_the_curves(several, curves):
    slider = several.find_element(By.ID, "alpha")
    slider.send_keys(Keys.HOME)
    for _ in range(3):
        slider.send_keys(Keys.ARROW_RIGHT)
    assert several.find_element(By.ID, "alpha-value").text == "0.03"
    shown = [cell.text for cell in several.find_elements(By.CSS_SELECTOR, "#readings .reading")]
    for text, curve in zip(shown, curves.values(), strict=True):
        assert float(text.rstrip("%")) == pytest.approx(100 * curve.accuracy_at(0.03), abs=0.06)


def test_the_pointer_reads_the_curves(several):
    move = """
        const chart = document.querySelector('#curve-chart .chart');
        const box = chart.getBoundingClientRect();
        const x = box.left + 0.75 * box.width;
        chart.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: box.top + 50}));
        return document.getElementById('alpha-value').textContent;"""
    with emulating(several):
        assert several.execute_script(move) == "0.75"


def background(browser):
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_dark_follows_the_system_until_the_reader_chooses(several):
    with emulating(several, scheme="light"):
        light = background(several)
    with emulating(several, scheme="dark"):
        dark = background(several)
        assert dark != light
        button = several.find_element(By.ID, "theme")
        # The page hears of the change when the browser gets round to telling it.
        WebDriverWait(several, 20).until(lambda _: button.text == "Light")
        button.click()
        assert background(several) == light
        assert button.text == "Dark"
        several.refresh()
        assert background(several) == light  # the choice is kept


@pytest.mark.parametrize("page", ["one.html", "several.html"])
def test_no_page_is_wider_than_its_screen(browser, pages, page):
    browser.get((pages / page).as_uri())
    open_all(browser)
    for width in (320, 390, 768, 1280):
        with emulating(browser, width):
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width
            square = browser.find_element(By.CSS_SELECTOR, "#curve-chart .chart").rect
            assert min(square["width"], square["height"]) >= 200


CONTRAST = """
const channel = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
  return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
const back = light(getComputedStyle(document.body).backgroundColor);
const ratio = c => (Math.max(light(c), back) + 0.05) / (Math.min(light(c), back) + 0.05);
const out = {};
const texts = 'p, td, th, dd, dt, h1, h2, h3, li, figcaption, summary, .tick, .axis-title';
document.querySelectorAll(texts).forEach(e => {
  const s = getComputedStyle(e);
  const c = e instanceof SVGElement ? s.fill : s.color;
  out[c] = ratio(c); });
document.querySelectorAll('.curve, .swatch').forEach(e => {
  const c = getComputedStyle(e).color;
  out['line ' + c] = ratio(c); });
return out;"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_lines_have_enough_contrast(several, scheme):
    """WCAG AA: 4.5 for text, 3 for lines."""
    with emulating(several, scheme=scheme):
        open_all(several)
        ratios = several.execute_script(CONTRAST)
    assert ratios
    for name, ratio in ratios.items():
        assert ratio >= (3 if name.startswith("line") else 4.5), name

"""The page in a real browser: what is shown, keyboard, crop, narrow windows, dark mode, labels for screen readers."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from view_page import COUNT, FAINT, UNNAMED, serving

import picstore
from picstore.viewer.security import redirecting_file

with contextlib.suppress(ImportError):  # the fixture of the browser skips or fails
    from playwright.sync_api import Error, expect

pytestmark = pytest.mark.slow
PLACES = ["#browse", "#image?position=3", "#recipe?position=2", "#replay?recipe=mae&batch_size=8", "#health"]


@pytest.fixture(scope="module")
def address(dataset: picstore.Dataset) -> Iterator[str]:
    """The address that ``picstore view`` prints for the annotated dataset."""
    with serving(dataset.path) as printed:
        yield printed


@pytest.fixture(scope="module")
def shared(browser: Any, address: str) -> Iterator[tuple[Any, list[str]]]:
    """A window, and what fails in it; a window of its own costs a test a second of a core."""
    context, problems = browser.new_context(), list[str]()
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if _is_problem(message) else None)
    page.on("request", lambda request: _only_to(address, request, problems))
    yield page, problems
    context.close()


@pytest.fixture
def window(shared: tuple[Any, list[str]]) -> Iterator[Any]:
    """A window without a page, in which nothing may fail or be refused by the page's own policy."""
    page, problems = shared
    page.set_viewport_size({"width": 1280, "height": 800})
    page.mouse.move(0, 0)
    yield page
    page.evaluate("localStorage.clear()")
    page.unroute_all()
    page.emulate_media(color_scheme="light")
    page.goto("about:blank")  # as another place of the same page would not load it anew
    found = problems.copy()
    problems.clear()
    assert found == []


@pytest.fixture
def page(window: Any, address: str) -> Any:
    """A window at the address."""
    window.goto(address)
    window.wait_for_selector(".tile")
    return window


def _is_problem(message: Any) -> bool:
    """Whether a line of the console tells of an error; a request that the server refuses is none."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def _only_to(address: str, request: Any, problems: list[str]) -> None:
    if not request.url.startswith((address, "data:")):
        problems.append(f"a request to {request.url}")


def settled(page: Any) -> None:
    page.wait_for_load_state("networkidle")


def count_tiles(page: Any, count: int) -> None:
    """Wait until the grid has so many images."""
    expect(page.locator(".tile")).to_have_count(count)


def tiles(page: Any) -> list[str]:
    """Names of the images in the grid, in their order."""
    settled(page)
    return [str(each.get_attribute("aria-label")) for each in page.query_selector_all(".tile")]


def go(page: Any, place: str) -> None:
    page.evaluate("place => { location.hash = place }", place)
    settled(page)


def test_the_grid_shows_each_image_with_label_id_and_extra(page: Any) -> None:
    names = tiles(page)
    assert len(names) == COUNT
    for number in (0, 7, 35):
        (mine,) = (name for name in names if f"id {number}," in name)
        assert mine.startswith(("cat", "dog", "Sea lion")[number % 3])
    assert page.evaluate("[...document.querySelectorAll('.tile img')].every(i => !i.complete || i.naturalWidth > 0)")
    assert "<b>file" in page.inner_text(".grid")  # as text, not as HTML
    assert page.query_selector(".grid b, .grid i") is None
    assert "null" not in page.inner_text("#bar")


def test_the_page_stays_when_it_is_loaded_again_or_opened_as_a_bookmark(page: Any) -> None:
    go(page, '#browse?filter={"labels":[1]}')
    count_tiles(page, 12)
    page.reload()
    count_tiles(page, 12)
    other = page.context.browser.new_context().new_page()
    other.goto(page.url)
    count_tiles(other, 12)
    assert other.context.cookies() == []
    other.context.close()


def test_a_page_of_another_port_can_open_the_page_and_read_nothing_of_it(page: Any, address: str) -> None:
    picture = f"{address}thumbnail?position=0"
    with served(f"<img src='{picture}'><iframe src='{address}'></iframe><a href='{address}'>page</a>") as other:
        stranger = page.context.browser.new_context().new_page()
        stranger.goto(address)  # what a cookie would be set by
        stranger.wait_for_selector(".tile")
        stranger.goto(other)
        settled(stranger)
        assert stranger.evaluate("[document.images[0].complete, document.images[0].naturalWidth]") == [True, 0]
        assert stranger.frames[1].query_selector("#bar") is None
        with pytest.raises(Error, match="Failed to fetch"):
            stranger.evaluate("address => fetch(address).then((answer) => answer.text())", f"{address}api/dataset")
        stranger.get_by_text("page").click()
        stranger.wait_for_selector(".tile")
        stranger.context.close()


def test_the_file_that_opens_the_page_leads_there(browser: Any, address: str) -> None:
    page = browser.new_context().new_page()
    with redirecting_file(address) as url:
        page.goto(url)
        page.wait_for_selector(".tile")
    page.context.close()


@contextlib.contextmanager
def served(page: str) -> Iterator[str]:
    """A page on another port of 127.0.0.1; no request may bring a cookie or a referrer with a path."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.headers.get("cookie"), self.headers.get("referer")))
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
    assert seen
    assert not any(cookie for cookie, _ in seen)
    assert not any(urlsplit(referrer or "").path.strip("/") for _, referrer in seen)


def test_text_class_range_and_condition_filter_the_grid_and_back_undoes_it(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("thing 2")
    count_tiles(page, 11)
    page.locator(".value", has_text="Sea lion").locator("input").check()
    count_tiles(page, 5)
    page.fill("[aria-label='width, least']", "380")
    page.keyboard.press("Tab")
    count_tiles(page, 1)
    assert "id 29" in tiles(page)[0]
    page.go_back()
    count_tiles(page, 5)
    page.get_by_role("button", name="Clear all").click()
    count_tiles(page, COUNT)
    page.get_by_label("Condition (SQL)").fill("score > 1.5 AND label = 0")
    page.keyboard.press("Control+Enter")
    count_tiles(page, 1)


def test_a_wrong_condition_is_explained_and_the_page_goes_on(page: Any) -> None:
    page.get_by_label("Condition (SQL)").fill("no_such = 3")
    with page.expect_response(re.compile("api/records")):
        page.keyboard.press("Control+Enter")
    page.wait_for_selector(".results .problem:not([hidden])")
    assert "no_such" in page.inner_text(".results .problem")


def test_a_range_is_dragged_over_a_histogram(page: Any) -> None:
    settled(page)
    chart = page.get_by_role("img", name=re.compile("^width"))
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + 20, steps=4)
    page.mouse.up()
    expect(page.locator(".tile")).not_to_have_count(COUNT)
    limit = page.get_by_label("width, least")
    expect(limit).not_to_have_value("")  # the histograms' answer may come after the grid's
    least = int(limit.input_value())
    assert 290 <= least <= 310
    assert len(tiles(page)) == sum(160 + 8 * k >= least for k in range(COUNT))


def test_the_keyboard_moves_through_the_grid_opens_images_and_returns(page: Any) -> None:
    names = tiles(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.ariaLabel") == names[1]
    page.keyboard.press("ArrowDown")
    below = page.evaluate("document.activeElement.ariaLabel")
    columns = names.index(below) - 1
    assert columns >= 3
    page.keyboard.press("Enter")
    page.wait_for_selector(".stage")
    number = re.search(r"id (\d+)", below)
    assert number is not None
    assert number[0] in page.inner_text(".image-head")
    page.keyboard.press("n")
    following = re.search(r"id \d+", names[columns + 2])
    assert following is not None
    expect(page.locator(".image-head")).to_contain_text(following[0])
    page.keyboard.press("Escape")
    page.wait_for_selector(".tile")
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")


def test_an_image_shows_tiles_objects_and_masks_which_can_be_hidden(page: Any) -> None:
    go(page, "#image?position=3")
    page.wait_for_selector(".stage .object")
    assert page.locator(".stage .object").count() == 2
    assert page.locator(".stage .outline").count() == 2
    assert page.locator(".stage .point").count() == 2
    for key, layer in (("t", "tiles"), ("a", "objects"), ("m", "masks")):
        assert page.locator(f".stage .{layer}").evaluate("e => !e.classList.contains('off')")
        page.keyboard.press(key)
        assert page.locator(f".stage .{layer}").evaluate("e => e.classList.contains('off')")
        page.keyboard.press(key)
    assert page.locator(".heat").evaluate("e => e.classList.contains('off')")
    assert "<b>file" in page.inner_text(".side pre")


def test_a_crop_is_dragged_and_tells_the_bytes_that_it_reads(page: Any, dataset: picstore.Dataset) -> None:
    go(page, "#image?position=30")
    stage = page.locator(".stage").bounding_box()
    record = dataset[30]
    scale = stage["width"] / record.width

    def at(x: float, y: float) -> tuple[float, float]:
        return stage["x"] + x * scale, stage["y"] + y * scale

    page.mouse.move(*at(10, 10))
    page.mouse.down()
    page.mouse.move(*at(60, 50), steps=5)
    page.mouse.up()
    box = [int(page.input_value(f"[aria-label='Crop, {name}']")) for name in ("left", "top", "width", "height")]
    assert [abs(a - b) <= 2 for a, b in zip(box, (10, 10, 50, 40), strict=True)] == [True] * 4
    stream, _ = picstore.cut(record.jpeg, (box[0], box[1], box[2], box[3]))
    size = f"{len(stream)} B" if len(stream) < 1000 else f"{len(stream) / 1000:.3g} kB"
    expect(page.locator(".measured .big b")).to_have_text(size)
    settled(page)
    of_image = "e => [e.naturalWidth, e.naturalHeight]"
    assert page.locator(".preview").evaluate(of_image) == box[2:]


def test_a_recipe_is_drawn_and_pointing_at_a_draw_shows_its_crop(page: Any) -> None:
    go(page, "#recipe?position=4&recipe=dinov2&count=2")
    expect(page.locator(".drawn .tile")).to_have_count(20)
    page.locator(".drawn .tile").nth(3).hover()
    chosen = page.locator(".source polygon").evaluate_all("all => all.map(e => e.classList.contains('chosen'))")
    assert chosen == [k == 3 for k in range(20)]
    page.locator("select[name=recipe]").select_option("mae")
    expect(page.locator(".drawn .tile")).to_have_count(2)
    assert "recipe=mae" in page.url
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Another image").click()
    expect(page.locator(".drawn .tile")).to_have_count(2)


def test_a_batch_is_replayed_step_by_step_and_an_image_of_it_opened(page: Any, dataset: picstore.Dataset) -> None:
    go(page, "#replay?recipe=mae&batch_size=8&seed=1")
    loader = picstore.Loader(dataset, batch_size=8, seed=1, transform=picstore.recipes.mae(), isolate=False)
    for step in range(2):
        expected = loader.make_batch(0, step)[0].ids.tolist()
        expect(page.locator(".drawn .parameters > span:first-child")).to_have_text([f"id {each}" for each in expected])
        page.get_by_role("button", name="Next step").click()
    expect(page.locator(".summary")).to_contain_text("step 2 of 4")
    number = page.locator(".drawn .parameters > span:first-child").first.inner_text()
    page.locator(".drawn .tile").first.click()
    expect(page.locator(".image-head")).to_contain_text(number)
    assert page.locator(".cut-out").count() == 1


def test_the_steps_at_which_an_image_is_seen_are_listed_and_lead_there(page: Any) -> None:
    go(page, "#replay?recipe=evaluation&batch_size=8")
    page.get_by_text("When an image is seen").click()
    page.get_by_label("Id of the image").fill("17")
    page.keyboard.press("Tab")
    link = page.locator(".seen a").first
    slot = int(link.inner_text().rpartition(" ")[2])
    link.click()
    expect(page.locator(".drawn .parameters > span:first-child").nth(slot)).to_have_text("id 17")


def test_a_text_of_an_extra_is_found_when_the_extras_were_read(page: Any) -> None:
    page.get_by_label("Text").fill("<b>file 7<")
    count_tiles(page, 1)
    assert "id 7," in tiles(page)[0]
    page.get_by_label("Text").fill("")
    count_tiles(page, COUNT)


def test_replay_and_recipe_begin_with_a_training_and_a_batch_that_fits(page: Any) -> None:
    go(page, "#replay")
    count_tiles(page, 32)
    assert page.get_by_label("Batch size", exact=True).input_value() == "32"
    assert page.locator("select[name=recipe]").input_value() == "torchvision_resnet50_v2"
    go(page, "#recipe?position=99")
    assert "position is 99" in page.locator(".results .problem").inner_text()
    go(page, "#recipe?position=1")
    count_tiles(page, 12)
    assert page.locator(".problem").count() == 0


def test_the_state_of_a_loader_is_taken_as_python_prints_it(page: Any, dataset: picstore.Dataset) -> None:
    loader = picstore.Loader(dataset, batch_size=8, transform=picstore.recipes.mae(32), isolate=False)
    batches = iter(loader)
    seen = [next(batches).ids.tolist() for _ in range(2)][-1]
    go(page, "#replay?recipe=mae&batch_size=8")
    page.get_by_text("A loader's state").click()
    page.get_by_label("loader.state_dict()").fill(str(loader.state_dict()))
    loader.close()
    page.get_by_role("button", name="Show the batch before it").click()
    expect(page.locator(".summary")).to_contain_text("step 1 of 4")
    count_tiles(page, 8)
    shown = [int(text.split()[1]) for text in page.locator(".parameters > span:first-child").all_inner_texts()]
    assert shown == seen


def test_a_dataset_is_verified_and_its_files_turn_sound(page: Any, dataset: picstore.Dataset) -> None:
    go(page, "#health")
    files = len(dataset.manifest.files)
    expect(page.locator(".stream .file-cell.unknown")).to_have_count(files)
    page.get_by_role("button", name="Verify").click()
    expect(page.locator(".stream .file-cell.sound")).to_have_count(files, timeout=60_000)
    expect(page.get_by_role("status").first).to_have_text("No damage")
    page.locator(".stream .file-cell").first.click()
    expect(page.locator(".container-cell.sound").first).to_be_visible()


@pytest.mark.parametrize("place", PLACES)
def test_every_control_has_a_name_and_every_text_enough_contrast(window: Any, address: str, place: str) -> None:
    window.goto(address + place)
    settled(window)
    assert window.evaluate(UNNAMED) == []
    for scheme in ("light", "dark"):
        window.emulate_media(color_scheme=scheme)
        assert window.evaluate(FAINT) == []
        dark = window.evaluate("getComputedStyle(document.body).backgroundColor").startswith("rgb(1")
        assert dark is (scheme == "dark")


@pytest.mark.parametrize("place", PLACES)
def test_a_narrow_window_scrolls_down_only_and_forms_follow_pictures(window: Any, address: str, place: str) -> None:
    top = "e => e.getBoundingClientRect().top"
    for width in (360, 700):
        window.set_viewport_size({"width": width, "height": 700})
        window.goto("about:blank")
        window.goto(address + place)
        settled(window)
        assert window.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if place == "#browse":
            assert not window.locator(".panel").is_visible()
            window.get_by_role("button", name="Filters").click()
            assert window.locator(".panel").is_visible()
        elif place.startswith("#image"):
            assert window.locator(".stage").bounding_box()["height"] > 100
        else:
            window.wait_for_selector(".results")
            assert window.eval_on_selector(".results", top) < window.eval_on_selector(".panel", top)


def test_while_kernels_are_compiled_the_page_says_so(page: Any, address: str) -> None:
    held: list[Any] = []
    page.route("**/api/kernels*", lambda route: route.fulfill(json={"compiling": True}))
    page.route("**/api/draws*", lambda route: held.append(route))
    page.route("**/crop?*", lambda route: held.append(route))
    for place in ("#recipe?position=2", "#image?position=3"):
        page.goto(f"{address}{place}")
        compiling = page.get_by_text("Compiling, once on this machine: about 10 s …")
        expect(compiling).to_be_visible()
        for route in held:
            route.continue_()
        held.clear()
        expect(compiling).to_be_hidden()


@pytest.fixture
def page_of_two(browser: Any, dataset: picstore.Dataset, other: picstore.Dataset) -> Iterator[Any]:
    """A window at the page of both, in which nothing may fail."""
    with serving(dataset.path, other.path) as address:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page, problems = context.new_page(), []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(address)
        yield page
        context.close()
        assert problems == []


def test_the_browser_shows_both_and_leads_to_the_images_of_each(page_of_two: Any) -> None:
    page = page_of_two
    page.locator(".pair-chart").nth(5).wait_for()
    page.wait_for_selector(".classes table")
    assert "2 classes in both" in page.inner_text(".classes")
    page.get_by_role("button", name="Look for shared images").click()
    page.locator(".pair-cell").nth(2).wait_for()
    assert "3 images" in page.inner_text(".panel") and page.locator(".pair-cell.differs").count() == 1
    for scheme, width in (("light", 1280), ("dark", 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(UNNAMED) == [] and page.evaluate(FAINT) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator(".pair-cell a").nth(1).click()
    page.wait_for_selector(".stage")
    assert "/other/" in page.url and page.inner_text("h1") == "other"
    page.get_by_role("link", name="annotated").click()
    page.wait_for_selector(".pair-chart")
    assert page.inner_text("h1") == "annotated"

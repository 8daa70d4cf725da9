"""The page in headless Chromium, in front of the local server."""

import contextlib
import shutil
from urllib.parse import urlsplit

import numpy as np
import pytest
from app_thread import serve
from double_model import save_double_model
from few_formats import few_formats
from google.protobuf import text_format
from image_bytes import image_bytes
from PIL import Image
from server_requests import local_server
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from serving.export import signatures
from serving.export.options import ExportOptions
from serving.page.proxy import page_app, page_parser

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]
SECONDS = 120  # until a busy machine has answered a first request


@pytest.fixture(scope="module")
def models(tiny_vit, tmp_path_factory):
    """Two versions of a model of images, whose labels differ, and one of numbers."""
    folder = tmp_path_factory.mktemp("models")
    names = tuple(f"class {i}" for i in range(7))
    model = tiny_vit(3, depth=1, class_names=names)
    first, second = folder / "vit" / "1", folder / "vit" / "2"
    asked = ["serving_default", "embed", "attention"]
    with pytest.MonkeyPatch.context() as patch, few_formats():
        patch.setattr(signatures, "signature_names", lambda _: asked)
        signatures.save(model, first, ExportOptions(top_k=3))
    shutil.copytree(first, second)
    graph = (first / "saved_model.pb").read_bytes()
    (second / "saved_model.pb").write_bytes(graph.replace(b"class ", b"CLASS "))
    save_double_model(folder / "double" / "1")
    return folder


@pytest.fixture(scope="module")
def server(models):
    text = f"""model_config_list {{
        config {{ name: "vit" base_path: "{models}/vit" model_platform: "tensorflow"
            model_version_policy {{ all {{}} }}
            version_labels {{ key: "stable" value: 1 }} }}
        config {{ name: "double" base_path: "{models}/double"
            model_platform: "tensorflow" }} }}"""
    config = text_format.Parse(text, ModelServerConfig())
    allow = {"allow_version_labels_for_unavailable_models": True}
    with local_server(config, **allow) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield running
        running.close()


class Page:
    """A tab of the browser, and what a test does with the page."""

    def __init__(self, browser, url, **options):
        self.tab = browser.new_page(**options)
        self.tab.set_default_timeout(1000 * SECONDS)
        self.errors, self.hosts = [], set()
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("request", lambda request: self.hosts.add(host(request.url)))
        self.tab.goto(url)

    def choose(self, selector, value):
        self.tab.wait_for_selector(
            f"{selector} option[value='{value}']", state="attached"
        )
        self.tab.select_option(selector, value)

    def add(self, *files):
        self.tab.set_input_files("#files", list(files))

    def ask(self, file):
        self.add(file)
        self.wait("1 image done")

    def wait(self, text):
        self.tab.wait_for_function(
            "text => document.querySelector('#message').textContent.includes(text)",
            arg=text,
        )

    def wait_until(self, condition):
        for _ in range(10 * SECONDS):
            if condition():
                return
            self.tab.wait_for_timeout(100)
        raise TimeoutError

    def texts(self, selector):
        return [node.inner_text() for node in self.tab.query_selector_all(selector)]

    def cards(self):
        return self.texts(".card")


def host(url):
    return urlsplit(url).netloc if url.startswith("http") else ""


@pytest.fixture
def opened(browser, server):
    """The page of the local server, ready; it must not have failed in the end."""
    pages = []

    def open_page(url=None, **options):
        page = Page(browser, f"{url or server.rest_url}/", **options)
        pages.append(page)
        page.tab.wait_for_selector("#version option", state="attached")
        if page.tab.input_value("#model") != "vit":
            page.choose("#model", "vit")
        option = "#version option[value='versions/2']"
        page.tab.wait_for_selector(option, state="attached")
        return page

    yield open_page
    for page in pages:
        assert page.errors == []
        page.tab.close()


def png(seed=0, name="one.png"):
    pixels = np.random.default_rng(seed).integers(0, 256, (44, 28, 3), "uint8")
    data = image_bytes(Image.fromarray(pixels), "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": data}


def broken(name="broken.png"):
    return {"name": name, "mimeType": "image/png", "buffer": b"no image"}


def test_an_image_is_classified_as_the_client_classifies_it(opened, server):
    from serving.client import RestClient

    page = opened()
    page.ask(png())
    with RestClient(server.rest_url, "vit") as client:
        [prediction] = client.classify([png()["buffer"]])
    [card] = page.cards()
    for label, score in zip(prediction.labels, prediction.scores, strict=True):
        assert f"{label}\n{100 * score:.1f} %" in card
    assert "newest (2)" in card
    assert "ms" in card


def test_attention_lies_over_the_image_at_the_slider_s_opacity(opened):
    page = opened()
    page.ask(png())
    canvas = page.tab.wait_for_selector("canvas.attention")
    page.tab.focus("#opacity")
    page.tab.keyboard.press("Home")
    assert canvas.evaluate("node => node.style.opacity") == "0"
    page.tab.keyboard.press("End")
    assert canvas.evaluate("node => node.style.opacity") == "1"
    colors = "node => new Set(node.getContext('2d').getImageData(0, 0, node.width, "
    assert canvas.evaluate(colors + "node.height).data).size") > 10


def test_two_versions_are_shown_side_by_side(opened):
    page = opened()
    page.choose("#version", "labels/stable")
    page.choose("#other", "versions/2")
    page.ask(png())
    assert page.texts(".answers h3") == ["vit, label stable", "vit, version 2"]
    [card] = page.cards()
    assert card.index("class ") < card.index("vit, version 2") < card.index("CLASS ")


def test_a_bad_image_fails_alone_in_plain_words(opened):
    page = opened()
    page.add(png(), broken(), png(1, "two.png"))
    page.wait("3 images done, 1 failed.")
    first, bad, last = page.cards()
    assert "%" in first
    assert "%" in last
    assert "Unknown image file format" in bad
    assert not {"{{", "[["} & {bad[i : i + 2] for i in range(len(bad))}


def test_twenty_images_are_asked_a_few_at_a_time(opened):
    page = opened()
    most = []
    page.tab.expose_function("note", lambda running: most.append(running))
    page.tab.evaluate(
        "const usual = classify;"
        "classify = (...all) => (note(work.running), usual(...all)); 0"
    )
    page.add(*(png(i, f"{i}.png") for i in range(20)))
    page.wait("20 images done.")
    assert all("%" in card for card in page.cards())
    assert len(most) == 20
    assert max(most) == 4


def test_a_dead_server_is_named(browser, models):
    with local_server({"vit": str(models / "vit")}) as server:
        url = server.rest_url
        page = Page(browser, f"{url}/")
        page.tab.wait_for_selector("#version option", state="attached")
    page.add(png())
    page.wait("1 image done, 1 failed.")
    assert f"{url} does not answer: is the server running?" in page.cards()[0]
    assert page.errors == []


def test_a_model_of_other_inputs_is_explained(opened):
    page = opened()
    page.choose("#model", "double")
    page.wait("does not take encoded images")
    assert "keras-vit export" in page.tab.inner_text("#message")


def test_a_late_answer_for_a_choice_before_changes_nothing(opened):
    page, held = opened(), []
    page.choose("#model", "double")
    page.wait("does not take encoded images")
    page.tab.route("**/models/vit/metadata", lambda route: held.append(route))
    page.choose("#model", "vit")
    page.wait_until(lambda: held)
    page.choose("#model", "double")
    page.wait("does not take encoded images")
    with page.tab.expect_response("**/models/vit/metadata"):
        held[0].continue_()
    page.tab.wait_for_timeout(200)
    assert "keras-vit export" in page.tab.inner_text("#message")


def test_a_late_answer_is_not_kept_for_the_choice_after(opened):
    page, metadata, status = opened(), [], []
    page.choose("#model", "double")
    page.wait("does not take encoded images")
    page.tab.route("**/models/vit/metadata", lambda route: metadata.append(route))
    page.choose("#model", "vit")
    page.wait_until(lambda: metadata)
    page.tab.route("**/models/vit", lambda route: status.append(route))
    page.choose("#model", "double")
    page.choose("#model", "vit")
    page.wait_until(lambda: status)
    with page.tab.expect_response("**/models/vit/metadata"):
        metadata[0].continue_()
    page.tab.wait_for_timeout(200)
    status[0].continue_()
    page.wait_until(lambda: len(metadata) == 2)


def test_the_nearest_images_of_an_embedding_file_are_listed(opened, server, tmp_path):
    from serving.client import RestClient

    pngs = [png(i)["buffer"] for i in range(3)]
    with RestClient(server.rest_url, "vit") as client:
        embeddings = client.embed(pngs)
    file = tmp_path / "e.npz"
    np.savez(file, embeddings=embeddings, paths=["a.png", "é.png", "c.png"])
    page = opened()
    page.tab.set_input_files("#embeddings", file)
    page.wait("3 embeddings of 15 numbers")
    page.ask(png(1))
    rows = page.texts(".neighbors li")
    norms = np.linalg.norm(embeddings, axis=1)
    cosines = embeddings @ embeddings[1] / norms / norms[1]
    order = np.argsort(-cosines)
    names = np.array(["a.png", "é.png", "c.png"])
    assert rows == [f"{cosines[i]:.3f} {names[i]}" for i in order]
    assert rows[0] == "1.000 é.png"


def test_another_file_in_place_of_embeddings_is_refused(opened, tmp_path):
    page = opened()
    (tmp_path / "x.npz").write_bytes(b"nothing of the kind" * 9)
    page.tab.set_input_files("#embeddings", tmp_path / "x.npz")
    page.wait("not an .npz file")


def test_the_command_and_the_program_are_those_of_the_choice(opened, server):
    page = opened()
    page.choose("#version", "versions/1")
    page.ask(png(name="it's.png"))
    page.tab.click("summary")
    curl = page.tab.inner_text("#curl")
    assert f"{server.rest_url}/v1/models/vit/versions/1:predict" in curl
    assert r"'it'\''s.png'" in curl
    assert 'RestClient("' in page.tab.inner_text("#python")
    assert ", version=1)" in page.tab.inner_text("#python")


def test_it_asks_no_other_host(opened, server):
    page = opened()
    page.ask(png())
    assert page.hosts - {""} == {host(server.rest_url)}


def test_every_control_is_reached_by_the_keyboard_and_has_a_name(opened):
    page = opened()
    reached = []
    for _ in range(12):
        page.tab.keyboard.press("Tab")
        reached.append(page.tab.evaluate("document.activeElement.id"))
    controls = ["model", "version", "other", "opacity", "embeddings", "clear", "files"]
    assert [each for each in reached if each in controls][:7] == controls
    snapshot = page.tab.locator("main").aria_snapshot()
    for name in ("Model", "Version", "Compare with", "Attention over the image"):
        assert f'"{name}"' in snapshot or f"{name}:" in snapshot, snapshot
    assert 'button "Choose images"' in snapshot


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrasts_with_its_ground(opened, scheme):
    """At least 4.5 to 1 (WCAG 2.1, 1.4.3)."""
    page = opened(color_scheme=scheme)
    page.add(png(), broken())
    page.wait("2 images done")
    for selector in ("body", ".card h2", ".small", ".error", ".pick.main", "#server"):
        text, ground = page.tab.eval_on_selector(selector, COLORS)
        ratio = contrast(text, ground)
        assert ratio >= 4.5, f"{selector}: {text} on {ground}: {ratio:.1f}"


COLORS = """node => {
    const ground = (n) => {
        const color = getComputedStyle(n).backgroundColor;
        return color === "rgba(0, 0, 0, 0)" ? ground(n.parentElement) : color;
    };
    return [getComputedStyle(node).color, ground(node)];
}"""


def contrast(*colors):
    """The ratio of two luminances, by WCAG's definition."""

    def luminance(color):
        channels = np.array([int(part) for part in color[4:-1].split(",")]) / 255
        linear = np.where(
            channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return linear @ [0.2126, 0.7152, 0.0722]

    low, high = sorted(map(luminance, colors))
    return (high + 0.05) / (low + 0.05)


def test_it_fits_a_phone(opened):
    page = opened(viewport={"width": 390, "height": 844})
    page.choose("#other", "versions/1")
    page.ask(png(name="a very long name " * 5 + ".png"))
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.fixture
def behind(server):
    """Starts the page of `keras-vit page` for the server; gives its address."""
    with contextlib.ExitStack() as running:

        def start(*flags):
            arguments = ["--rest", server.rest_url, "--model", "vit", *flags]
            app = page_app(page_parser().parse_args(arguments))
            return running.enter_context(serve(app))

        yield start


def test_it_stands_before_another_server(opened, behind, server):
    page = opened(behind())
    page.choose("#version", "labels/stable")
    page.add(png(), broken())
    page.wait("2 images done, 1 failed.")
    good, bad = page.cards()
    assert "vit, label stable" in good
    assert "Unknown image file format" in bad
    assert page.tab.inner_text("#server") == server.rest_url


def test_the_version_of_the_command_is_selected(opened, behind):
    page = opened(behind("--version", "1"))
    page.ask(png())
    assert "vit, version 1" in page.cards()[0]

"""The page stands alone, shows what was found and measured, and takes no name for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from building import dense_llama
from damaged import damaged, exported
from hostile import FORBIDDEN, NAMES, forged, hostile_checkpoint

from checkpoint import survey
from verify import verify
from verify.measuring import BINS, Measurement
from verify.reports import render
from verify.reports.axes import Axes, ticks
from verify.reports.figures import layer_series, part_of
from verify.reports.markup import Markup, element

ACTIVE = {"script", "iframe", "object", "embed", "link", "img", "image", "use", "a", "form", "base", "foreignobject"}
VOID = {"meta"}


class Page(HTMLParser):
    """Tags and attributes as a browser sees them, the text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(folder: Path, base: Path | None = None) -> Page:
    checkpoint = survey(folder)
    report = verify(checkpoint, base=base, level="full" if base else "headers", measure=True)
    page = Page(render(report, "html", checkpoint))
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def damaged_page(qwen_moe_f32_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(damaged(qwen_moe_f32_base, tmp_path_factory.mktemp("page") / "out"), qwen_moe_f32_base)


def test_the_page_needs_nothing_from_elsewhere(damaged_page: Page) -> None:
    assert not set(damaged_page.tags) & ACTIVE
    names = {name for name, _ in damaged_page.attributes}
    assert not names & {"src", "href", "xlink:href", "srcset", "style", "action"}
    assert not any(name.startswith("on") for name in names)
    assert "url(" not in damaged_page.text
    assert "@import" not in damaged_page.text
    policy = next(value for name, value in damaged_page.attributes if value and "default-src" in value)
    assert "default-src 'none'" in policy


def test_the_page_shows_findings_figures_and_layout(damaged_page: Page) -> None:
    text = " ".join(damaged_page.text.split())
    for said in ("fails", "E M01", "none of its 19 tensors", "What mends it", "Packed weights against the base"):
        assert said.lower().replace("19", "") in text.lower().replace("41", "").replace("19", "")
    assert "INT4, groups of 32" in text
    assert "model.language_model.layers.{0-3}.mlp.experts.{0-7}.gate_proj" in text
    assert damaged_page.tags.count("svg") == 3
    assert damaged_page.tags.count("polyline") == 3


def test_the_page_of_a_sound_checkpoint_says_so_and_has_no_figures(tmp_path: Path) -> None:
    page = page_of(dense_llama(tmp_path))
    assert "passes" in page.text
    assert "Nothing stands against this checkpoint." in page.text
    assert "svg" not in page.tags
    assert "what changed since the base: no base was given" in page.text


def test_every_packed_module_is_in_the_figures(qwen_moe_base: Path, tmp_path: Path) -> None:
    page = page_of(exported(qwen_moe_base, tmp_path / "out"), qwen_moe_base)
    assert "120 packed modules, all of their rows" in page.text
    assert "mtp.mlp.experts.*.down_proj" in page.text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    for folder in (hostile_checkpoint(tmp_path / "a"), forged(tmp_path / "b")):
        page = page_of(folder)
        assert not set(page.tags) & ACTIVE
        assert not any(name.startswith("on") for name, _ in page.attributes)
        assert not set(page.text) & set(FORBIDDEN)
    assert NAMES[3] in page.text


def test_text_is_escaped_and_markup_is_not_twice() -> None:
    inner = element("b", "<i>&\x1b", class_='"x"')
    assert inner == '<b class="&quot;x&quot;">&lt;i&gt;&amp;\\x1b</b>'
    assert element("p", inner, "<", width=None) == f"<p>{inner}&lt;</p>"
    assert element("text", [Markup("<b></b>"), "&"], text_anchor="end") == '<text text-anchor="end"><b></b>&amp;</text>'


@pytest.mark.parametrize(
    "low, high, expected",
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-2, 2, [-2, -1, 0, 1, 2]),
        (0.0937, 0.0957, [0.094, 0.0945, 0.095, 0.0955]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round_numbers_inside(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_points_are_drawn_inside_the_frame() -> None:
    axes = Axes((0, 10), (0, 1), "x", "y", width=200, height=100)
    assert axes.at(0, 1) == (68, 12)
    assert axes.at(10, 0) == (188, 60)
    assert axes.points([(0, 1), (10, 0)]) == "68.0,12.0 188.0,60.0"


@pytest.mark.parametrize(
    "module, part",
    [
        ("model.language_model.layers.12.mlp.experts.255.up_proj", ("mlp.experts.*.up_proj", 12)),
        ("model.layers.0.self_attn.q_proj", ("self_attn.q_proj", 0)),
        ("mtp.layers.0.mlp.experts.3.up_proj", ("mtp.mlp.experts.*.up_proj", 0)),
        ("lm_head", ("lm_head", None)),
        ("evil.99999999999999999999.x", ("evil.99999999999999999999.x", None)),
    ],
)
def test_parts_of_layers(module: str, part: tuple[str, int | None]) -> None:
    assert part_of(module) == part


def test_layers_are_summed_up_over_experts() -> None:
    def measured(module: str, error: float | None) -> Measurement:
        return Measurement(module, 4, 32, error, 0.0, (0,) * BINS)

    errors = [("l.1.e.0.up", 0.3), ("l.1.e.1.up", 0.1), ("l.0.e.0.up", 0.2), ("l.0.e.1.up", None), ("head", 0.9)]
    series = layer_series(measured(*one) for one in errors)
    assert series == {"l.e.*.up": [(0, 0.2, 0.2, 0.2), (1, 0.1, pytest.approx(0.2), 0.3)]}


def test_numbers_that_are_none_draw_nothing_invalid(tmp_path: Path, qwen_moe_base: Path) -> None:
    checkpoint = survey(dense_llama(tmp_path))
    report = verify(checkpoint)
    odd = [Measurement(f"l.{n}.x", 8, 64, None if n else 0.0, 0.0, (0,) * BINS) for n in range(2)]
    object.__setattr__(report, "measurements", tuple(odd))
    text = render(report, "html", checkpoint)
    assert not re.search(r'"[^"]*\b(nan|inf)\b[^"]*"', text)

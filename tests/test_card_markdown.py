"""A card is read as it was meant, by CommonMark with GitHub's tables, whatever stands in a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import qwen
from building import LLAMA, edit_json, llama_entries, pack, packed_llama, quantization, write_checkpoint
from carding import READER, experts, fences_of, flat, html_of, packed_head, rows_of, section_of, text_of
from hypothesis import given
from hypothesis import strategies as st

from cards.engines import advice
from cards.markdown import code, fenced, table, text
from cards.markers import END, parse_readme

HOSTILE = [
    "a|b",
    "a`b``c",
    "`",
    "<script>alert(1)</script>",
    "</details><img src=x onerror=alert(1)>",
    "*bold* _under_ __strong__",
    "[link](javascript:alert(1))",
    "![image](http://x/y.png)",
    "http://evil.example/x www.evil.example",
    "line\nbreak\r\n# heading",
    "&lt;script&gt; &#60;b&#62;",
    END,
    "<!-- ckpt:card begin -->",
    "--> <b>out</b>",
    "\\|",
    "\\",
    "a\\`b",
    " leading and trailing ",
    "\u202egnp.exe",
    "$x$ ~~gone~~ :smile:",
    "| --- |",
    "---",
    "1. list",
    "- list",
    "+ list",
    "# heading",
    "{{ template }} {% raw %}",
]
ALLOWED_HTML = {"<details>", "</details>", "<summary>", "</summary>", "<code>", "</code>"}


def shown(words: str) -> str:
    """How a hostile name looks: on one line, control and direction characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def read(markdown: str) -> str:
    """The text that a reader sees of one paragraph, raw HTML left out."""
    tokens = READER.parse(markdown)
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert {one.type for one in flat(tokens)} <= {
        "paragraph_open", "inline", "paragraph_close", "text", "code_inline", "html_inline"
    }  # fmt: skip
    return text_of(tokens[1])


@pytest.mark.parametrize("words", HOSTILE)
def test_text_is_read_as_it_was_given(words: str) -> None:
    assert read(f"x {text(words)}.") == f"x {shown(words)}."
    assert not html_of(f"x {text(words)}.")


@pytest.mark.parametrize("words", HOSTILE)
def test_code_is_read_as_it_was_given(words: str) -> None:
    assert read(f"x {code(words)}.") == f"x {shown(words)}."
    assert set(html_of(f"x {code(words)}.")) <= {"<code>", "</code>"}


@given(st.text())
def test_any_text_is_read_as_it_was_given(words: str) -> None:
    assert read(f"x{text(words)}.") == f"x{shown(words)}."
    if words:
        assert read(f"x {code(words)}.") == f"x {shown(words)}."


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_any_cell_stays_in_its_cell(cells: list[str]) -> None:
    lines = table(["h"] * len(cells), [[code(cell, in_table=True) for cell in cells]])
    (_, row) = rows_of("\n".join(["before", "", *lines]), "before")
    assert [cell.strip() for cell in row] == [shown(cell).strip() for cell in cells]


@given(st.lists(st.text(), min_size=1))
def test_no_line_ends_the_block_of_code(lines: list[str]) -> None:
    (content,) = fences_of("\n".join(fenced(lines, "sh")))
    assert content == "".join(f"{shown(line)}\n" for line in lines)


@pytest.mark.parametrize("name", [name for name in HOSTILE if "/" not in name and "\\" not in name])
def test_the_name_of_a_side_file_cannot_break_out(tmp_path: Path, name: str) -> None:
    folder = packed_llama(tmp_path / "model")
    (folder / name).write_text("x")
    check_form(section_of(folder), extra=name)


@pytest.mark.parametrize("name", HOSTILE)
def test_module_names_targets_and_entries_cannot_break_out(tmp_path: Path, name: str) -> None:
    entries = pack(llama_entries(), lambda module: module.endswith("up_proj"))
    entries[f"model.layers.0.{name}.weight"] = ("BF16", (4, 4), None)
    config = LLAMA | {"quantization_config": quantization("lm_head", name, **{name: qwen.group("Linear", name)})}
    config["quantization_config"] |= {"format": name, "quant_method": "compressed-tensors"}
    config["architectures"] = [name]
    check_form(section_of(write_checkpoint(tmp_path / "model", entries, config)))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_and_a_base_cannot_break_out(tmp_path: Path, name: str) -> None:
    manifest = {
        "runs": [{"tool": {"name": name, "version": name}, "command": [name, name], "recipe": None}],
        "inputs": [{"role": name, "place": name, "revision": name, "run": None}],
        "operations": [{"operation": name, "parameters": {name: name}}],
        "files": {},
        "shards": {},
        "verdict": {"level": name, "base": name, "counts": {name: 1}},
        "waivers": [{"rule": name, "place": name, "reason": name}],
    }
    folder = packed_llama(tmp_path / "model")
    if "ckpt:card" not in name:  # people's own front matter with a marker in it is refused
        (folder / "README.md").write_text(f"---\nbase_model: {json.dumps(name)}\n---\n")
    check_form(section_of(folder, manifest=manifest))


def check_form(section: str, extra: str | None = None) -> None:
    """The section has the blocks that it should, no other HTML, no links but ours, and its own markers alone."""
    assert parse_readme(section).section == section
    assert all(one.startswith(("<!-- ckpt:card", "<!-- Written by", *ALLOWED_HTML)) for one in html_of(section))
    tokens = list(flat(READER.parse(section)))
    links = [str(token.attrs["href"]) for token in tokens if token.type == "link_open"]
    assert all(link.startswith(("https://github.com/", "https://huggingface.co/")) for link in links)
    assert not [token for token in tokens if token.type == "image"]
    headings = [text_of(tokens[n + 1]) for n, token in enumerate(tokens) if token.type == "heading_open"]
    known = ["Quantization", "Format", "Size", "Engines", "Serving", "How it was made", "Checks", "Files"]
    assert headings == [heading for heading in known if heading in headings]
    for heading in ("Quantization", "Engines", "Files"):
        if heading in headings:
            rows = rows_of(section, heading)
            assert {len(row) for row in rows} == {len(rows[0])}
    if extra is not None:
        assert shown(extra).strip() in [row[0].strip() for row in rows_of(section, "Files")]


@pytest.mark.parametrize("build", [experts, packed_head, packed_llama])
def test_a_sound_card_has_the_form_of_one_and_lines_of_a_sane_width(build: object, tmp_path: Path) -> None:
    section = section_of(build(tmp_path / "model"))  # type: ignore[operator]
    check_form(section)
    assert max(map(len, section.splitlines())) < 300
    assert all(line == line.rstrip() for line in section.splitlines())


def test_commands_are_blocks_of_shell() -> None:
    section = "\n".join(line for one in advice({"draft", "packed"}, "a/b") for line in fenced(one.serve, "sh"))
    assert [token.info for token in READER.parse(section) if token.type == "fence"] == ["sh", "sh", "sh"]


def test_a_name_of_a_base_that_is_none_is_no_link(tmp_path: Path) -> None:
    folder = packed_llama(tmp_path / "model")
    (folder / "README.md").write_text("---\nbase_model: ../evil\n---\n")
    assert "Made from `../evil`." in section_of(folder)
    edit_json(folder / "config.json", lambda document: document.update(model_type="llama"))
    (folder / "README.md").write_text("---\nbase_model: [meta/Llama]\n---\n")
    assert "Made from [`meta/Llama`](https://huggingface.co/meta/Llama)." in section_of(folder)

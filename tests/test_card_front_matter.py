"""The front matter of a card: keys are added, what people wrote wins and stays as they wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import qwen
import yaml
from building import LLAMA, llama_entries, packed_llama, write_checkpoint
from carding import card_of, experts
from huggingface_hub import ModelCard

from cards.frontmatter import read_front, with_keys
from checkpoint import Refused

BASE_CARD = """---
license: other
license_name: qwen
license_link: LICENSE
pipeline_tag: text-generation
library_name: transformers
base_model: Base/Of-Base
tags: [chat]
---
# Base
"""


def front(card_text: str) -> dict[str, Any]:
    """What the Hub's own library reads."""
    data: dict[str, Any] = ModelCard(card_text, ignore_metadata_errors=False).data.to_dict()  # type: ignore[no-untyped-call]
    return data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return packed_llama(tmp_path / "model")


def test_keys_are_derived_and_inherited(folder: Path) -> None:
    card = card_of(folder, base_model="meta/Llama", quantized_by="me", base_card=BASE_CARD)
    found = front(card.after)
    assert found == {
        "base_model": ["meta/Llama"],
        "base_model_relation": "quantized",
        "quantized_by": "me",
        "license": "other",
        "license_name": "qwen",
        "license_link": "https://huggingface.co/meta/Llama/blob/main/LICENSE",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["compressed-tensors", "int4"],
    }
    assert next(iter(found)) == "base_model"


def test_a_license_file_that_is_here_is_linked_as_the_base_does(folder: Path) -> None:
    (folder / "LICENSE").write_text("text")
    assert front(card_of(folder, base_card=BASE_CARD).after)["license_link"] == "LICENSE"


def test_a_relative_link_without_a_known_base_is_left_out_and_said(folder: Path) -> None:
    card = card_of(folder, base_card=BASE_CARD)
    assert "license_link" not in front(card.after)
    assert any(lack.startswith("license_link: LICENSE of the base") for lack in card.lacking)


def test_existing_keys_win_and_the_difference_is_said(folder: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: mit\nbase_model: other/base\ntags: [mine]\n---\ntext\n")
    card = card_of(folder, base_model="meta/Llama", base_card=BASE_CARD)
    found = front(card.after)
    assert (found["license"], found["base_model"], found["tags"]) == ("mit", "other/base", ["mine"])
    assert card.metadata.differing["base_model"] == ("other/base", ["meta/Llama"])
    assert card.metadata.differing["license"] == ("mit", "other")
    assert card.metadata.differing["tags"] == (["mine"], ["compressed-tensors", "int4"])
    assert "license_name" not in found


def test_tags_that_hold_all_that_is_expected_do_not_differ(folder: Path) -> None:
    (folder / "README.md").write_text("---\ntags: [int4, mine, compressed-tensors]\n---\n")
    assert "tags" not in card_of(folder).metadata.differing


def test_people_s_lines_stay_as_they_are_and_new_ones_follow(folder: Path) -> None:
    people = (
        "---\n# a comment\nlicense:   'mit'   # why\n\nlanguage:\n    - en\nwidget: {a: [1, 2]}\ndate: 2024-05-01\n"
    )
    (folder / "README.md").write_text(f"{people}---\ntext\n")
    after = card_of(folder).after
    assert after.startswith(people + "library_name: transformers\npipeline_tag: text-generation\ntags:\n- compressed")
    assert "---\ntext\n" in after


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_added_lines_end_as_the_file_s_do(folder: Path, newline: str) -> None:
    (folder / "README.md").write_bytes(f"---{newline}license: mit{newline}---{newline}text{newline}".encode())
    text = card_of(folder).after
    assert text.count("\n") == text.count(newline)


def test_the_draft_head_and_the_vision_tower_are_tagged(tmp_path: Path) -> None:
    found = front(card_of(experts(tmp_path / "model")).after)
    assert found["tags"] == ["compressed-tensors", "int4", "mtp", "speculative-decoding"]
    assert found["pipeline_tag"] == "image-text-to-text"


def test_a_dense_checkpoint_is_not_called_quantized(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", llama_entries(), LLAMA)
    found = front(card_of(folder, base_model="meta/Llama").after)
    assert "base_model_relation" not in found
    assert "tags" not in found


def test_an_unknown_family_is_given_no_library_or_task(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", llama_entries(), {**LLAMA, "model_type": "novel"})
    assert card_of(folder).metadata.added == {}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("---\nlicense: mit\n", 1, "is not closed"),
        ("--- \nlicense: mit\n---\n", 1, "blanks after ---"),
        ("---\nlicense: mit\nlicense: apache-2.0\n---\n", 3, "'license' twice"),
        ("---\na: 1\nb: [1, 2\n---\n", 4, "not YAML"),
        ("---\n- a\n- b\n---\n", 2, "no map of keys"),
        ("---\njust words\n---\n", 2, "no map of keys"),
        ("---\na: b: c\n---\n", 2, "not YAML"),
        ("---\n? [a, b]\n: c\n---\n", 2, "a key that is no text"),
        ("---\na: !!python/name:os.system x\n---\n", 2, "not YAML"),
        ("---\n{license: mit}\n---\n", 1, "no line can be added"),
        ("\n\n---\na: 1\na: 2\n---\n", 5, "'a' twice"),
    ],
)
def test_malformed_front_matter_is_refused_with_its_line(folder: Path, text: str, line: int, said: str) -> None:
    (folder / "README.md").write_text(text)
    with pytest.raises(Refused) as refusal:
        card_of(folder)
    assert f"line {line}: " in str(refusal.value)
    assert said in str(refusal.value)
    assert (folder / "README.md").read_text() == text


@pytest.mark.parametrize("text", ["# Title\n\n---\n\nwords\n", "words\n", "", "\n\n"])
def test_a_rule_further_down_is_no_front_matter(text: str) -> None:
    assert read_front(text).head == ""
    after = with_keys(read_front(text), {"license": "mit"}, "\n").text
    assert after.endswith(text)
    assert after.startswith("---\nlicense: mit\n---\n")


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "yes",
        "null",
        "1.5",
        "2024-05-01",
        "a: b",
        "# no comment",
        "'quoted'",
        'x"y\\z',
        "Ünï 😀",
        "-",
        "@me",
        "a:",
    ],
)
def test_every_value_is_read_back_as_it_was_given(value: str) -> None:
    text = with_keys(read_front("---\na: b\n---\n"), {"quantized_by": value, "tags": [value]}, "\n").text
    data = yaml.safe_load(text.split("---\n")[1])
    assert data == {"a": "b", "quantized_by": value, "tags": [value]}


def test_aliases_that_multiply_cost_nothing(folder: Path) -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    (folder / "README.md").write_text(f"---\n{bomb}---\n")
    assert card_of(folder).after.startswith(f"---\n{bomb}library_name")


def test_qwen_is_known_by_its_text_section(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", qwen.entries(), qwen.CONFIG)
    assert front(card_of(folder).after)["tags"] == ["mtp", "speculative-decoding"]

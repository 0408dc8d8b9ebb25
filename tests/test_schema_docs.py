"""docs/schemas.md: every example in it is run as it stands there, and says what the document says it does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import qwen
from building import pack, write_checkpoint
from layouts import BODY_EXPERTS, DROP, MTP_EXPERTS, dense, experts_only, full_body, packed

from checkpoint import survey
from checkpoint.layout import layout
from schemas import names, spellings, validate

TEXT = (Path(__file__).parents[1] / "docs/schemas.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^#+ ", TEXT, flags=re.MULTILINE)}
BLOCK = re.compile(r"^```(json|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VISION, HEAD, MTP, PROFILES = (
    "Forbid a packed vision tower",
    "Require an INT8 head",
    "Require a BF16 MTP head",
    "The profiles",
)


def schema(title: str) -> dict[str, Any]:
    (block,) = [text for kind, text in BLOCK.findall(SECTIONS[title]) if kind == "json"]
    document: dict[str, Any] = json.loads(block)
    return document


def messages(title: str) -> list[str]:
    (block,) = [str(text) for kind, text in BLOCK.findall(SECTIONS[title]) if kind == "text"]
    return block.splitlines()


def body(**changes: Any) -> dict[str, Any]:
    """The full-body build with all that the MTP head has, changed by entry."""
    norms = dict.fromkeys(("mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"), dense())
    return full_body(**norms | changes)


def still_ignored() -> dict[str, Any]:
    document = body(lm_head=packed(8, 128))
    document["quantization"]["ignore"].append("lm_head")
    return document


MTP_NAMES = [name for name in body()["modules"] if name.startswith("mtp.")]
FUSED = [name for name in MTP_NAMES if ".experts." in name]
VIOLATING: dict[str, list[dict[str, Any]]] = {
    VISION: [
        body(**{"model.visual.blocks.{0-26}.attn.qkv": packed(4, 128)}),
        body(**{"model.visual.merger.linear_fc1": dense(dtype="F32")}),
    ],
    HEAD: [
        body(),
        body(lm_head=packed(4, 128)),
        body(lm_head=packed(8, 128, missing=["weight_scale"])),
        still_ignored(),
    ],
    MTP: [
        body(**dict.fromkeys(FUSED, DROP), **{MTP_EXPERTS[0]: packed(4, 32)}),
        body(**dict.fromkeys(MTP_NAMES, DROP)),
        body(**dict.fromkeys(FUSED, DROP)),
    ],
    PROFILES: [
        body(**{BODY_EXPERTS[0]: packed(4, 32)}),
        body(**{"model.language_model.layers.{0-39}.mlp.gate": packed(4, 128)}),
        body(**dict.fromkeys(FUSED, DROP)),
        body() | {"quantization": None},
    ],
}
CONFORMING: dict[str, list[dict[str, Any]]] = {
    VISION: [body(), experts_only(), body(**{name: DROP for name in body()["modules"] if "visual" in name})],
    HEAD: [body(lm_head=packed(8, 128))],
    MTP: [body(), body(**dict.fromkeys(FUSED, DROP), **dict.fromkeys(MTP_EXPERTS, dense()))],
}


@pytest.mark.parametrize("title", VIOLATING)
def test_the_messages_shown_are_those_that_the_schema_gives(title: str) -> None:
    judge: Any = "profiles/body-int4-g128" if title == PROFILES else schema(title)
    faults = [{str(fault) for fault in validate(document, judge)} for document in VIOLATING[title]]
    assert all(faults)
    assert set(messages(title)) <= set().union(*faults)
    assert all(found & set(messages(title)) for found in faults)


@pytest.mark.parametrize("title", CONFORMING)
def test_what_an_example_asks_for_conforms(title: str) -> None:
    assert [validate(document, schema(title)) for document in CONFORMING[title]] == [[]] * len(CONFORMING[title])


def head(module: str) -> bool:
    return module == "lm_head"


def tower(module: str) -> bool:
    return module.startswith("model.visual.blocks.") and module.endswith("attn.qkv")


def draft_experts(module: str) -> bool:
    return module.startswith("mtp.") and ".mlp.experts." in module


@pytest.mark.parametrize(
    ("title", "select", "bits", "group_size", "conforms"),
    [
        (VISION, qwen.body_experts, 4, 32, True),
        (VISION, tower, 4, 32, False),
        (HEAD, head, 8, 128, True),
        (HEAD, head, 4, 128, False),
        (HEAD, head, 8, 32, False),
        (HEAD, qwen.body_experts, 4, 32, False),
        (MTP, qwen.body_experts, 4, 32, True),
        (MTP, draft_experts, 4, 32, False),
    ],
)
def test_an_example_judges_the_layout_of_a_checkpoint(
    title: str, select: qwen.Select, bits: int, group_size: int, conforms: bool, tmp_path: Path
) -> None:
    document = qwen.config("re:.*mtp.*", group_0=qwen.group("Linear", "re:.*", bits=bits, group_size=group_size))
    entries = pack(qwen.entries(), select, bits, group_size)
    found = validate(layout(survey(write_checkpoint(tmp_path / "model", entries, document))), schema(title))
    assert (found == []) == conforms, found


def test_an_example_given_as_a_file_is_what_verify_judges_by(tmp_path: Path) -> None:
    from verify import verify

    asked = tmp_path / "head.schema.json"
    asked.write_text(json.dumps(schema(HEAD)))
    checkpoint = write_checkpoint(tmp_path / "model", qwen.entries(), qwen.CONFIG)
    findings = [finding for finding in verify(checkpoint, schema=str(asked)).findings if finding.rule == "S01"]
    assert "layout: modules.lm_head.state" in {finding.place for finding in findings}
    assert "'dense' is not 'packed' (the head is packed)" in {finding.found for finding in findings}


def test_every_schema_and_profile_is_in_the_table() -> None:
    assert [name for name in names() if f"`{name}`" not in TEXT] == []


def test_every_spelling_is_in_the_table_with_its_releases() -> None:
    for spelling in spellings():
        limits = [
            f"{word} {release}" for word, release in (("from", spelling.since), ("before", spelling.before)) if release
        ]
        assert f"| {spelling.what} | {' and '.join(limits)} |\n" in TEXT

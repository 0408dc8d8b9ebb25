"""Forms that replies were asked for: for each probe, texts that have it and texts that do not."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fidelity.probes import PROBES, languages, passes
from fidelity.prompts import shipped_prompts
from schemas import load, validate

JSON = {"probe": "json"}
PERSON = {"probe": "json", "keys": ["name", "age"]}
THREE = {"probe": "items", "count": 3}
WORD = {"probe": "one_word"}
CODE = {"probe": "code_fence"}
PYTHON = {"probe": "code_fence", "language": "python"}


def language(name: str) -> dict[str, Any]:
    return {"probe": "language", "language": name}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (JSON, "[2, 4, 6, 8, 10]"),
        (JSON, '  {"a": null}\n'),
        (JSON, '```json\n{"a": 1}\n```'),
        (JSON, '```\n{"a": 1}\n```'),
        (PERSON, '{"age": 31, "name": "Maria", "city": "Rome"}'),
        (THREE, "- red\n- yellow\n- blue"),
        (THREE, "1. red\n2. yellow\n3. blue"),
        (THREE, "Here they are:\n\n* red\n* yellow\n* blue\n\nThat is all."),
        (THREE, "1) red\n2) yellow\n3) blue"),
        (WORD, "White"),
        (WORD, "Hot."),
        (WORD, "**White**"),
        (WORD, '"off-white"'),
        (CODE, "```\nSELECT 1;\n```"),
        (CODE, "Here:\n```sql\nSELECT 1;\n```\nDone."),
        (PYTHON, "```Python\nprint(1)\n```"),
        (language("fr"), "La maison est vieille, mais le jardin est beau."),
        (language("fr"), "C'est l'histoire d'un chat."),
        (language("de"), "Wir gehen zum Bahnhof, weil der Zug in zehn Minuten fährt."),
        (language("es"), "Mi hermana lee un libro por la noche y bebe una taza de té."),
        (language("it"), "Il cielo è blu perché la luce del sole si diffonde nell'aria."),
        (language("en"), "The sky is blue because the light of the sun is scattered."),
        (language("nl"), "Het huis is oud maar de tuin is mooi."),
        (language("pt"), "A casa é velha, mas o jardim não é feio."),
        (language("ru"), "Дом старый, но сад красивый."),
        (language("zh"), "房子很旧，但是花园很美。"),  # noqa: RUF001
        (language("ja"), "家は古いですが、庭は美しいです。"),
        (language("el"), "Το σπίτι είναι παλιό."),  # noqa: RUF001
    ],
)
def test_a_reply_has_the_form_that_was_asked_for(asked: dict[str, Any], text: str) -> None:
    assert passes(text, asked)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (JSON, 'Here is the JSON: {"a": 1}'),
        (JSON, '{"a": 1'),
        (JSON, "{'a': 1}"),
        (JSON, "NaN"),
        (JSON, ""),
        (JSON, "[" * 100_000),
        (JSON, '```json\n{"a": 1}\n```\nI hope this helps.'),
        (PERSON, '{"name": "Maria"}'),
        (PERSON, '["name", "age"]'),
        (THREE, "- red\n- yellow"),
        (THREE, "- red\n- yellow\n- blue\n- green"),
        (THREE, "red, yellow, blue"),
        (THREE, "-red\n-yellow\n-blue"),
        (WORD, "The colour is white."),
        (WORD, "White, of course"),
        (WORD, "..."),
        (WORD, ""),
        (CODE, "`SELECT 1;`"),
        (CODE, "```sql\nSELECT 1;"),
        (CODE, "```\n\n```"),
        (PYTHON, "```\nprint(1)\n```"),
        (PYTHON, "```sql\nSELECT 1;\n```"),
        (language("fr"), "The house is old, but the garden is beautiful."),
        (language("fr"), "Bonjour"),
        (language("fr"), ""),
        (language("de"), "De huis is oud maar het tuin is mooi en wij zijn hier."),
        (language("it"), "El cielo es azul porque la luz del sol se dispersa en el aire."),
        (language("ru"), "Dom staryy, no sad krasivyy."),
        (language("zh"), "The house (房子) is old."),
    ],
)
def test_a_reply_without_that_form_does_not_pass(asked: dict[str, Any], text: str) -> None:
    assert not passes(text, asked)


def test_the_schema_knows_the_probes_and_the_languages() -> None:
    form = load("fidelity_prompt")["$defs"]["format"]
    assert form["properties"]["probe"]["enum"] == list(PROBES)
    assert tuple(form["allOf"][-1]["then"]["properties"]["language"]["enum"]) == languages()


def test_the_languages_are_of_their_schema() -> None:
    assert validate(json.loads((files("fidelity") / "languages.json").read_text()), "fidelity_languages") == []


def test_the_page_has_every_probe_and_every_language() -> None:
    page = (Path(__file__).parents[1] / "docs/fidelity.md").read_text(encoding="utf-8")
    assert [name for name in PROBES if f"| `{name}` |" not in page] == []
    (row,) = [line for line in page.splitlines() if line.startswith("| `language` |")]
    assert [name for name in languages() if not re.search(rf"[( ]{name}[ )]", row)] == []


def test_thirty_prompts_of_several_kinds_come_with_the_package() -> None:
    asked = shipped_prompts()
    assert len(asked.prompts) == 30
    assert {prompt.format["probe"] for prompt in asked.prompts if prompt.format} == set(PROBES)
    assert sum(prompt.long for prompt in asked.prompts) >= 4
    assert len({prompt.text for prompt in asked.prompts}) == 30

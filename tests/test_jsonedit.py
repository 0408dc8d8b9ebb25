"""Edits of a JSON text: it says what it shall say, and what was not edited stays byte for byte."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import Document, UnreadableCheckpoint, jsonedit
from checkpoint.document import parse_json, read_document
from checkpoint.jsonedit import edit_json

# Worked examples

PRETTY = """{
  "architectures": ["LlamaForCausalLM"],
  "rms_norm_eps": 1e-05,
  "name": "M\\u00fcller\\/x",
  "rope": {
    "theta": 1.0E+6,
    "kinds": [
      "a",
      "b"
    ]
  },
  "big": 10000000000000000000000000
}
"""


def value_of(text: str, **changes: Any) -> dict[str, Any]:
    """What `text` says, with members changed, or taken out (None)."""
    return {key: value for key, value in (json.loads(text) | changes).items() if value is not None}


@pytest.mark.parametrize(
    "changes, old, new",
    [
        ({"rms_norm_eps": 1e-6}, "1e-05", "1e-06"),
        ({"big": None}, ',\n  "big": 10000000000000000000000000', ""),
        ({"name": None}, '  "name": "M\\u00fcller\\/x",\n', ""),
        ({"architectures": None}, '  "architectures": ["LlamaForCausalLM"],\n', ""),
        ({"architectures": ["A", "B"]}, '["LlamaForCausalLM"]', '["A", "B"]'),
        ({"rope": {"theta": 1e6, "kinds": ["a"]}}, '"a",\n      "b"', '"a"'),
        ({"rope": {"theta": 1e6, "kinds": ["a", "b", "c"]}}, '"b"', '"b",\n      "c"'),
        ({"rope": {"theta": 5, "kinds": ["a", "b"]}}, "1.0E+6", "5"),
        ({"rope": {"theta": 1e6, "kinds": ["a", "b"], "new": {"x": [1]}}}, '"b"\n    ]',
         '"b"\n    ],\n    "new": {\n      "x": [\n        1\n      ]\n    }'),
        ({"rope": 1}, re.search(r'\{\n    "theta.*?\n  \}', PRETTY, re.DOTALL)[0], "1"),  # type: ignore[index]
        ({"added": "ü"}, "10000000000000000000000000", '10000000000000000000000000,\n  "added": "\\u00fc"'),
        ({"rope": {}}, re.search(r'\{\n    "theta.*?\n  \}', PRETTY, re.DOTALL)[0], "{}"),  # type: ignore[index]
    ],
)  # fmt: skip
def test_an_edit_changes_its_place_and_nothing_else(changes: dict[str, Any], old: str, new: str) -> None:
    assert PRETTY.count(old) == 1
    assert edit_json(PRETTY, value_of(PRETTY, **changes)) == PRETTY.replace(old, new)


@pytest.mark.parametrize(
    "text, value, expected",
    [
        ('{"a":1,"b":2}', {"a": 1, "b": 2, "c": [1, 2]}, '{"a":1,"b":2,"c":[1,2]}'),
        ('{"a": 1, "b": 2}', {"b": 2}, '{"b": 2}'),
        ('{"a": 1, "b": 2}', {"b": 2, "a": 1}, '{"b": 2, "a": 1}'),
        ('{"a": 1}', {"a": 1, "b": 2}, '{"a": 1, "b": 2}'),
        ('{"a":1}', {"a": 1, "b": {"c": 2}}, '{"a":1,"b":{"c":2}}'),
        ('{ "a" : 1 , "b" : 2 }', {"a": 1, "b": 3}, '{ "a" : 1 , "b" : 3 }'),
        ("{}", {"a": 1}, '{\n  "a": 1\n}'),
        ('{"a": 1}\n', {}, "{}\n"),
        ('{\r\n\t"a": 1\r\n}\r\n', {"a": 1, "b": [2]}, '{\r\n\t"a": 1,\r\n\t"b": [\r\n\t\t2\r\n\t]\r\n}\r\n'),
        ('{\n"a": 1\n}', {"a": 1, "b": 2}, '{\n"a": 1,\n"b": 2\n}'),
        ('{"a": "é"}', {"a": "é", "b": "ü"}, '{"a": "é", "b": "ü"}'),
        ('{"a": [ 1,2 ]}', {"a": [1, 2, 3]}, '{"a": [ 1,2,3 ]}'),
        ('{"a": ["\\u0062", "c"]}', {"a": ["a", "b", "c"]}, '{"a": ["a", "\\u0062", "c"]}'),
        ('{"a": [{"x": 1e0, "y": 2}]}', {"a": [{"x": 1.0, "y": 3}]}, '{"a": [{"x": 1e0, "y": 3}]}'),
    ],
)  # fmt: skip
def test_what_is_added_looks_like_its_neighbours(text: str, value: dict[str, Any], expected: str) -> None:
    assert edit_json(text, value) == expected


@pytest.mark.parametrize("old, new", [("1", 1.0), ("1.0", 1), ("1", True), ("true", 1), ("0", False), ("null", 0)])
def test_a_value_of_another_type_is_another_value(old: str, new: object) -> None:
    edited = json.loads(edit_json(f'{{"a": {old}}}', {"a": new}))
    assert (edited, type(edited["a"])) == ({"a": new}, type(new))


def test_the_order_of_members_is_the_order_of_the_value() -> None:
    assert list(json.loads(edit_json('{"a": 1, "b": 2, "c": 3}', {"c": 3, "x": 0, "a": 1}))) == ["c", "x", "a"]


@pytest.mark.parametrize("text", ["", "[]", "1", "{", "{} {}", "{}x", '{"a": 1,}'])
def test_a_text_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        edit_json(text, {})


# Documents


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": 1, "a": 1}',
        b'{"a": 1, "\\u0061": 1}',
        b'{"x": {"a": ":", "a": 1}}',
        b'{"x": [{"a" : 1, "a"\n: 1}]}',
        b'{"re:a": 1, "re:a": 2}',
    ],
)
def test_a_repeated_key_is_refused_wherever_it_is(raw: bytes) -> None:
    with pytest.raises(UnreadableCheckpoint, match="key occurs twice") as caught:
        parse_json(raw, "config.json")
    assert caught.value.problems[0].tensor in ("a", "re:a")


@pytest.mark.parametrize(
    "raw", [b'{"a": ":"}', b'{"a:b": "c:d"}', b'{"a": {"a": {"a": 1}}}', b'{"x": [{"a": 1}, {"a": 1}]}']
)
def test_colons_and_equal_keys_of_several_objects_are_no_repetition(raw: bytes) -> None:
    assert parse_json(raw, "config.json") == json.loads(raw)


@pytest.mark.parametrize("raw", [b"\xff{}", b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": "\\udc00"}',
                                 b"[]", b"", b'{"a": 1', b"\xef\xbb\xbf{}"])  # fmt: skip
def test_what_other_readers_would_not_read_is_refused(raw: bytes) -> None:
    with pytest.raises(UnreadableCheckpoint):
        parse_json(raw, "config.json")


def test_surrogate_pairs_and_escaped_backslashes_are_read() -> None:
    raw = b'{"a": "\\ud83e\\udd17", "b": "\\\\ud800"}'
    assert parse_json(raw, "config.json") == {"a": "🤗", "b": "\\ud800"}


def test_a_document_that_was_not_edited_is_written_as_it_was_read(tmp_path: Path) -> None:
    text = '\r\n{"a":\t1e0 ,"b":"\\u00e9\\/"}\n\n'
    (tmp_path / "config.json").write_text(text, newline="")
    document = read_document(tmp_path / "config.json")
    assert document.with_value(dict(document.value)).text == text


def test_a_new_document_is_indented_by_two_and_ends_its_line() -> None:
    assert Document.of({"a": ["ü"]}).text == '{\n  "a": [\n    "ü"\n  ]\n}\n'


# Properties, on texts as people, editors and other tools write them

words = st.text(st.sampled_from('ab"\\/é🤗\n\u2028:{}[], '), max_size=5)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | words
)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=4) | st.dictionaries(words, v, max_size=4), max_leaves=12)
objects = st.dictionaries(words, values, max_size=5)
blanks = st.sampled_from(["", " ", "  ", "\n", "\n  ", "\r\n\t", "\t", "\r"])


@st.composite
def spelt(draw: st.DrawFn, value: Any) -> str:
    """`value` as JSON text, with blanks, escapes and number spellings of any kind."""
    if isinstance(value, dict):
        members = [draw(spelt(key)) + draw(blanks) + ":" + draw(blanks) + draw(spelt(v)) for key, v in value.items()]
        return "{" + ",".join(draw(blanks) + member + draw(blanks) for member in members) + draw(blanks) + "}"
    if isinstance(value, list):
        return "[" + ",".join(draw(blanks) + draw(spelt(v)) + draw(blanks) for v in value) + draw(blanks) + "]"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=draw(st.booleans()))
        return text.replace("/", "\\/").replace("a", "\\u0061") if draw(st.booleans()) else text
    if isinstance(value, float):
        spellings = [repr(value), f"{value:.17e}", f"{value:.17E}"]
        return draw(st.sampled_from([text for text in spellings if float(text) == value and set(text) & set(".eE")]))
    return json.dumps(value)


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A text and what it says: as a tool writes it, or as nobody would."""
    value = draw(objects)
    indent = draw(st.sampled_from([None, 0, 2, 4, "\t"]))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (",", ": ")]))
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=draw(st.booleans()))
    text = text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))
    text = draw(st.sampled_from([text, draw(spelt(value))]))
    return draw(blanks) + text + draw(blanks), value


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """`value` with some things in it changed, dropped, added or moved."""
    if isinstance(value, dict):
        members = [(key, draw(changed(v))) for key, v in value.items() if draw(st.integers(0, 4))]
        members += draw(st.lists(st.tuples(words, values), max_size=2))
        return dict(draw(st.permutations(members)) if draw(st.booleans()) else members)
    if isinstance(value, list):
        return [draw(changed(v)) for v in value if draw(st.integers(0, 4))] + draw(st.lists(values, max_size=2))
    return value if draw(st.integers(0, 2)) else draw(values)


def exactly(value: Any) -> str:
    """What tells true from 1 from 1.0, and one order of members from another."""
    return json.dumps(value)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_an_edited_text_says_the_new_value(data: st.DataObject) -> None:
    text, old = data.draw(laid_out())
    new = data.draw(changed(old))
    assert exactly(json.loads(edit_json(text, new))) == exactly(new)


text_maps = st.dictionaries(words, words, min_size=1, max_size=6)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_map_of_strings_that_is_laid_out_evenly_is_edited_as_any_other(data: st.DataObject) -> None:
    old, new = data.draw(text_maps), data.draw(text_maps)
    new |= {key: old[key] for key in data.draw(st.lists(st.sampled_from(list(old))))}
    indent: Any = data.draw(st.sampled_from([0, 2, "\t"]))
    text = json.dumps({"map": old}, indent=indent, ensure_ascii=data.draw(st.booleans()))
    with patch.object(jsonedit, "_evenly", return_value=None):
        one_by_one = edit_json(text, {"map": new})
    assert edit_json(text, {"map": new}) == one_by_one


@given(laid_out())
@settings(max_examples=60, deadline=None)
def test_an_unchanged_value_leaves_the_text_as_it_is(case: tuple[str, dict[str, Any]]) -> None:
    text, value = case
    assert edit_json(text, value) == text


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_to_edit_twice_is_to_edit_once(data: st.DataObject) -> None:
    text, old = data.draw(laid_out())
    new = data.draw(changed(old))
    once = edit_json(text, new)
    assert edit_json(once, new) == once


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_members_that_stay_keep_their_bytes(data: st.DataObject) -> None:
    old = data.draw(objects)
    members = {key: data.draw(spelt(key)) + ":" + data.draw(spelt(value)) for key, value in old.items()}
    text = "{" + ",\n  ".join(members.values()) + "}"
    new = data.draw(changed(old))
    edited = edit_json(text, new)
    for key, member in members.items():
        if key in new and exactly(new[key]) == exactly(old[key]):
            assert member in edited


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_one_tool_wrote_still_looks_as_if_it_had(data: st.DataObject) -> None:
    old = data.draw(objects.filter(bool))
    indent: Any = data.draw(st.sampled_from([2, 4, "\t"]))
    new = data.draw(changed(old))
    text = edit_json(json.dumps(old, indent=indent, ensure_ascii=True) + "\n", new)
    assert text == json.dumps(new, indent=indent, ensure_ascii=True) + "\n"

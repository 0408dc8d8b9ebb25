"""What the making of a calibration set refuses, each with its words, and that good input is not refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calibrating import built, talk, tokenizer_of, turns, wanted, write_lines

from checkpoint import CkptError, Refused
from surgery.calibration import read_recipe
from surgery.calibration.reading import read_source
from surgery.calibration.rendering import load_tokenizer

ROOT = Path(__file__).parent.parent
GOOD = {"file": "a.jsonl", "share": 1}
RAISING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for recipes, with a.jsonl of three conversations."""
    write_lines(tmp_path / "a.jsonl", [talk(n) for n in range(3)])
    return tmp_path


@pytest.fixture(scope="session")
def qwen(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_of(qwen_moe_base, tmp_path_factory.mktemp("tokenizer") / "qwen")


def said(action: Any, *arguments: Any, **fields: Any) -> list[str]:
    """Each problem of what `action` refuses."""
    with pytest.raises(CkptError) as refusal:
        action(*arguments, **fields)
    return [str(problem) for problem in refusal.value.problems]


# The recipe


def test_a_full_recipe_is_not_refused(folder: Path) -> None:
    fields = {"max_tokens": 1, "seed": 7, "held_back": 1, "when_short": "fill", "date": "2026-01-31"}
    wanted(folder, GOOD, {**GOOD, "share": 0.5, "system": "drop"}, template={"enable_thinking": False}, **fields)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"sequences": 0}, ["calibration.sequences", "less than the minimum of 1"]),
        ({"sequences": True}, ["calibration.sequences", "not of type 'integer'"]),
        ({"min_tokens": 10, "max_tokens": 9}, ["calibration.max_tokens: 9; expected at least min_tokens, 10"]),
        ({"seed": -1}, ["calibration.seed", "less than the minimum"]),
        ({"when_short": "repeat"}, ["calibration.when_short", "text is never repeated"]),
        ({"date": "31.1.2026"}, ["calibration.date", "a day as YYYY-MM-DD"]),
        ({"date": "2026-02-30"}, ["calibration.date: '2026-02-30'; expected a day"]),
        ({"template": {"tokenize": True}}, ["calibration.template", "not set by the toolkit itself"]),
        ({"length": 5}, ["'length' was unexpected"]),
        ({"sources": []}, ["calibration.sources", "at least one source of text"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_field_that_is_wrong_is_refused(fields: dict[str, Any], words: list[str], folder: Path) -> None:
    from surgery.calibration import calibration_of

    section = {"sequences": 1, "min_tokens": 1, "sources": [GOOD], **fields}
    text = "\n".join(said(calibration_of, section, folder / "recipe.yaml"))
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    "source, words",
    [
        ({"share": 1}, ["sources[0]", "exactly one of file and shipped"]),
        ({**GOOD, "shipped": "general"}, ["sources[0]", "exactly one of file and shipped"]),
        ({"file": "a.jsonl"}, ["sources[0]", "'share' is a required property"]),
        ({**GOOD, "share": None}, ["sources[0].share", "a positive number"]),
        ({**GOOD, "share": 0}, ["sources[0].share", "a positive number"]),
        ({**GOOD, "share": -20}, ["sources[0].share", "a positive number"]),
        ({**GOOD, "share": "60 %"}, ["sources[0].share", "a positive number"]),
        ({**GOOD, "share": float("nan")}, ["sources[0]: a share of nan; expected a positive number"]),
        ({**GOOD, "share": float("inf")}, ["sources[0]: a share of inf; expected a positive number"]),
        ({**GOOD, "system": "replace"}, ["sources[0].system", "'keep', 'drop'"]),
        ({**GOOD, "file": "b.jsonl"}, ["sources[0]: b.jsonl is not a file", "folder of the recipe"]),
        ({**GOOD, "file": "a.parquet"}, ["sources[0]: the file 'a.parquet'", ".jsonl or .txt"]),
        ({"shipped": "novels", "share": 1}, ["sources[0].shipped", "'dialogue', 'general'"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_source_that_is_wrong_is_refused(source: dict[str, Any], words: list[str], folder: Path) -> None:
    text = "\n".join(said(wanted, folder, source))
    assert all(word in text for word in words), text


def test_all_that_is_wrong_with_a_recipe_is_told_at_once(folder: Path) -> None:
    problems = said(wanted, folder, {**GOOD, "share": 0}, {**GOOD, "file": "b.jsonl"}, min_tokens=0, max_tokens=-1)
    assert len(problems) == 5  # min_tokens, max_tokens twice, the share, the file
    assert all(problem.startswith(str(folder / "recipe.yaml")) for problem in problems)


@pytest.mark.parametrize(
    "text, words",
    [
        ("a: [1,\nb: 2", ["line 2: "]),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", ["line 4: the key 'c' twice"]),
        ("- a\n", ["holds list, no map of fields"]),
        ("", ["holds NoneType, no map of fields"]),
        ("a: !!python/object/apply:os.getcwd []", ["line 1", "could not determine a constructor"]),
    ],
)
def test_yaml_that_is_no_recipe_is_refused(text: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    (problem,) = said(read_recipe, tmp_path / "recipe.yaml")
    assert all(word in problem for word in [str(tmp_path / "recipe.yaml"), *words]), problem


def test_a_recipe_that_is_not_there_or_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(b"a: \xff")
    assert "No such file" in said(read_recipe, tmp_path / "none.yaml")[0]
    assert "utf-8" in said(read_recipe, tmp_path / "recipe.yaml")[0]


def test_a_recipe_is_read_whatever_its_other_sections_are(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("calibration: {sequences: 1}\ngptq: {anything: [1]}\n")
    assert read_recipe(tmp_path / "recipe.yaml") == {"calibration": {"sequences": 1}, "gptq": {"anything": [1]}}


# The sources

LINES: dict[str, tuple[Any, list[str]]] = {
    "no JSON": ("{", ["Expecting"]),
    "no object": ("[1]", ["list"]),
    "no UTF-8": (b'{"text": "\xff"}', ["utf-8"]),
    "half a character": ('{"text": "\\ud800"}', ["surrogate"]),
    "a key twice": ('{"text": "a", "text": "b"}', ["text: key occurs twice"]),
    "too deep": ("[" * 100_000, ["recursion depth"]),
    "no text at all": ({"prompt": "a"}, ["keys 'prompt'", "either messages or text"]),
    "an empty object": ({}, ["keys none"]),
    "both": ({"text": "a", "messages": []}, ["both messages and text"]),
    "a blank text": ({"text": " \n"}, ["text is blank"]),
    "a text that is a number": ({"text": 5}, ["text is 5"]),
    "no turns": ({"messages": []}, ["messages is a list", "a list of turns"]),
    "turns that are a text": ({"messages": "hi"}, ["messages is 'hi'"]),
    "a turn that is a text": ({"messages": ["hi"]}, ["turn 1 is 'hi'"]),
    "an unknown role": ({"messages": [{"role": "human", "content": "hi"}]}, ["turn 1 has the role 'human'", "user"]),
    "no role": ({"messages": [{"content": "hi"}]}, ["turn 1 has the role missing"]),
    "a role that is a list": ({"messages": [{"role": ["user"], "content": "hi"}]}, ["the role a list"]),
    "no content": ({"messages": [{"role": "user"}]}, ["the content of turn 1 is missing", "a text"]),
    "blank content": (turns("hi", ""), ["the content of turn 2 is blank"]),
    "content of parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        ["turn 1 is a list", "a text"],
    ),
    "a system turn alone": ({"messages": [{"role": "system", "content": "hi"}]}, ["a system turn alone"]),
}


@pytest.mark.parametrize("case", LINES)
def test_a_line_that_is_no_conversation_is_refused_by_its_number(case: str, qwen: Path, folder: Path) -> None:
    line, words = LINES[case]
    raw = line if isinstance(line, bytes) else line.encode() if isinstance(line, str) else json.dumps(line).encode()
    good = json.dumps(talk(9)).encode()
    (folder / "a.jsonl").write_bytes(b"\n".join([good, b"", raw, good]))
    (problem,) = said(built, qwen, folder, GOOD)
    assert all(word in problem for word in ["a.jsonl: line 3: ", *words]), problem


def test_lines_with_further_keys_tools_and_odd_line_breaks_are_read(qwen: Path, folder: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    called = {
        "messages": [{"role": "user", "content": "a\u2028b"}, call, {"role": "tool", "content": "5", "name": "f"}]
    }
    lines = [json.dumps({**talk(1), "id": 1}), json.dumps(called, ensure_ascii=False), "", json.dumps(talk(2))]
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    text = read_source(wanted(folder, GOOD).sources[0])
    assert [piece.line for piece in text.pieces] == [1, 2, 4]
    assert text.content(text.pieces[1]) == called["messages"]


def test_of_many_faulty_lines_the_first_ten_are_named_and_the_rest_counted(qwen: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("{\n" * 25)
    problems = said(built, qwen, folder, GOOD)
    assert len(problems) == 11
    assert problems[-1] == "a.jsonl: 15 more such lines"


@pytest.mark.parametrize("name, content", [("a.jsonl", b"\n \n"), ("a.txt", b"\xef\xbb\xbf\n\n  \n"), ("a.txt", b"")])
def test_a_source_without_text_is_refused(name: str, content: bytes, qwen: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    (problem,) = said(built, qwen, tmp_path, {"file": name, "share": 1})
    assert "holds no text" in problem


def test_a_text_that_is_no_utf8_is_refused_by_its_line(qwen: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"One.\n\nTwo\nand \xff.\n\nThree.\n")
    (problem,) = said(built, qwen, tmp_path, {"file": "a.txt", "share": 1})
    assert problem.startswith("a.txt: line 3: no UTF-8")


def test_all_that_is_wrong_with_sources_and_template_is_told_at_once(qwen: Path, folder: Path) -> None:
    model = tokenizer_of(qwen, folder / "model", "")
    write_lines(folder / "b.jsonl", [{"text": ""}])
    problems = said(built, model, folder, GOOD, {"file": "b.jsonl", "share": 1}, {"file": "b.jsonl", "share": 2})
    assert [problem.split(": ")[0] for problem in problems] == ["b.jsonl", str(model)]
    assert "no chat template; expected one to render a.jsonl" in problems[1]


# The tokenizer


def test_a_template_that_raises_is_refused_in_its_own_words(qwen: Path, folder: Path) -> None:
    model = tokenizer_of(qwen, folder / "model", RAISING)
    lines = [talk(1), talk(2, system="Be kind."), talk(3, system="Be brief.")]
    write_lines(folder / "a.jsonl", lines)
    (problem,) = said(built, model, folder, GOOD, sequences=3)
    assert problem == "a.jsonl: lines 2, 3: the chat template says: System role not supported"
    assert built(model, folder, {**GOOD, "system": "drop"}, sequences=3).report.calibration.sequences == 3


@pytest.mark.parametrize(
    "template, words",
    [
        ("{{ messages[0].content + 5 }}", "the chat template says: can only concatenate str"),
        ("{{ messages[7].content.x }}", "the chat template says: "),
        ("{{ 1 // 0 }}", "the chat template says: "),
        ("{% if %}", "the chat template says: "),
        ("{{ ''.__class__.__mro__ }}", "the chat template says: access to attribute '__class__'"),
        ("{{ '' }}", "renders to nothing"),
        ("{{ strftime_now('%Y') }}", "asks for today's date"),
    ],
)
def test_a_template_that_does_not_render_is_refused(template: str, words: str, qwen: Path, folder: Path) -> None:
    model = tokenizer_of(qwen, folder / "model", template)
    (problem,) = said(built, model, folder, GOOD)
    assert problem.startswith("a.jsonl: lines 1, 2, 3: ")
    assert words in problem


def test_a_folder_without_a_tokenizer_is_refused(qwen: Path, tmp_path: Path) -> None:
    assert said(load_tokenizer, tmp_path) == [f"{tmp_path}: has no tokenizer. Give the base model's folder"]
    assert said(load_tokenizer, tmp_path / "none")[0].startswith(f"{tmp_path / 'none'}: is not a folder")
    model = tokenizer_of(qwen, tmp_path / "model")
    (model / "tokenizer.json").write_text("{}")
    assert said(load_tokenizer, model)[0].startswith(f"{model}: ")


def test_a_tokenizer_with_code_of_its_own_is_refused_and_the_code_not_run(qwen: Path, tmp_path: Path) -> None:
    model = tokenizer_of(qwen, tmp_path / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (problem,) = said(load_tokenizer, model)
    assert "expected a tokenizer that transformers loads without code" in problem
    assert not (tmp_path / "ran").exists()


def test_ids_and_lengths_beyond_the_model_are_refused(qwen: Path, folder: Path) -> None:
    model = tokenizer_of(qwen, folder / "model")
    (model / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 480, "max_position_embeddings": 20}}))
    unknown, long = said(built, model, folder, GOOD)
    assert "vocab_size 480; expected over 48" in unknown
    assert "max_position_embeddings 20" in long
    (model / "config.json").write_text(json.dumps({"vocab_size": 500, "max_position_embeddings": 2000}))
    assert built(model, folder, GOOD).sequences


@pytest.mark.parametrize("package", ["transformers", "jinja2"])
def test_without_transformers_the_command_says_what_to_install(package: str, folder: Path) -> None:
    recipe = folder / "recipe.yaml"
    recipe.write_text("calibration: {sequences: 1, min_tokens: 1, sources: [{file: a.jsonl, share: 1}]}")
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name == {package!r} else find(name, *a)\n"
        f"sys.argv = ['ckpt', 'calibrate', {str(recipe)!r}, '--model', {str(folder)!r}, '--dry-run']\n"
        "from ckpt.__main__ import main; main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 3
    assert f'needs the package {package}. pip install "ckpt-surgery[gptq]"' in run.stderr


# Too little text


def test_a_source_with_too_little_text_is_refused_with_what_is_needed(qwen: Path, folder: Path) -> None:
    write_lines(folder / "b.jsonl", [talk(n) for n in range(10, 200)])
    sources = (GOOD, {"file": "b.jsonl", "share": 3})
    (problem,) = said(built, qwen, folder, *sources, sequences=3, held_back=1, min_tokens=1000)
    assert problem.startswith("a.jsonl: share 1: ")
    assert "tokens in 3 conversations; expected about 1,0" in problem
    assert ", 25% of 4 sequences of at least 1,000 tokens" in problem
    assert "when_short: fill" in problem
    assert built(qwen, folder, *sources, sequences=3, held_back=1, min_tokens=1000, when_short="fill").held_back


def test_too_little_text_in_all_is_refused_even_where_sources_fill_up(qwen: Path, folder: Path) -> None:
    (problem,) = said(built, qwen, folder, GOOD, sequences=9, min_tokens=100, max_tokens=101, when_short="fill")
    assert "all sources make 3 sequences" in problem
    assert "of them cut off at max_tokens" in problem
    assert "9 sequences of at least 100 tokens. Add text, or ask for less" in problem


def test_a_source_that_is_short_by_less_than_a_conversation_is_near_enough(qwen: Path, folder: Path) -> None:
    write_lines(folder / "b.jsonl", [talk(n) for n in range(10, 14)])
    split = built(qwen, folder, GOOD, {"file": "b.jsonl", "share": 1}, sequences=7).report.calibration
    assert [share.conversations for share in split.shares] == [3, 4]


def test_two_sources_of_one_file_do_not_both_have_its_text(qwen: Path, folder: Path) -> None:
    write_lines(folder / "a.jsonl", [talk(n) for n in range(20)])
    tokens = built(qwen, folder, GOOD, sequences=20).report.calibration.tokens
    built(qwen, folder, GOOD, min_tokens=tokens - 20)
    twice = ({**GOOD, "share": 2}, {**GOOD, "system": "drop"})
    assert len(said(built, qwen, folder, *twice, sequences=2, min_tokens=tokens - 20)) == 2


def test_a_refusal_leaves_nothing_behind(qwen: Path, folder: Path) -> None:
    with pytest.raises(Refused):
        built(qwen, folder, GOOD, sequences=100)
    assert sorted(path.name for path in folder.iterdir()) == ["a.jsonl"]

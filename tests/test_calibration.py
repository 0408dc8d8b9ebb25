"""Calibration sets: the model's own rendering, shares, reproducibility, what is held back, the file, the report."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calibrating import built, marks, talk, tokenizer_of, turns, wanted, write_lines

from checkpoint import Refused, UnreadableCheckpoint
from surgery.calibration import as_dataset, build_calibration, read_recipe, read_set, rows_of, write_set

ROOT = Path(__file__).parent.parent
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}no thoughts{% endif %}"
)
DATED = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="session")
def qwen(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_of(qwen_moe_base, tmp_path_factory.mktemp("tokenizer") / "qwen")


@pytest.fixture(scope="session")
def smollm2(smollm2_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_of(smollm2_base, tmp_path_factory.mktemp("tokenizer") / "smollm2")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 200 dialogues of two turns with a system turn, and 100 without."""
    folder = tmp_path_factory.mktemp("texts")
    draw = random.Random(0)
    write_lines(folder / "dialogue.jsonl", [talk(n, draw.randint(5, 90), f"You are Kim {n}.") for n in range(200)])
    write_lines(folder / "general.jsonl", [talk(1000 + n, draw.randint(5, 90)) for n in range(100)])
    return folder


PERSONA = {"file": "dialogue.jsonl", "share": 60}
PLAIN = {"file": "dialogue.jsonl", "share": 20, "system": "drop"}
GENERAL = {"file": "general.jsonl", "share": 20}
MIX = (PERSONA, PLAIN, GENERAL)


def auto_tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def ckpt(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt", "calibrate", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, env={**os.environ, **environment}
    )


# Rendering


@pytest.mark.parametrize("model", ["qwen", "smollm2"])
@pytest.mark.parametrize("system", ["keep", "drop"])
def test_a_conversation_becomes_the_ids_that_transformers_makes_of_it(
    model: str, system: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, conversation = (
        request.getfixturevalue(model),
        turns("Who are you?", "Kim.", "Why?", "So.", system="Be Kim."),
    )
    write_lines(tmp_path / "a.jsonl", [conversation])
    result = built(folder, tmp_path, {"file": "a.jsonl", "share": 1, "system": system})
    messages = conversation["messages"][1 if system == "drop" else 0 :]
    expected = auto_tokenizer(folder).apply_chat_template(messages, tokenize=True, return_dict=False)
    assert result.sequences == (tuple(expected),)


def test_template_arguments_reach_the_template_and_unknown_ones_are_reported(qwen: Path, tmp_path: Path) -> None:
    folder = tokenizer_of(qwen, tmp_path / "model", THINKING)
    write_lines(tmp_path / "a.jsonl", [talk(1)])
    source = {"file": "a.jsonl", "share": 1}
    result = built(folder, tmp_path, source, template={"enable_thinking": False, "mood": "calm"})
    assert "no thoughts" in auto_tokenizer(folder).decode(result.sequences[0])
    assert result.report.unread_arguments == ("mood",)
    assert built(folder, tmp_path, source).sequences != result.sequences


def test_a_template_that_asks_for_today_is_told_the_day_of_the_recipe(qwen: Path, tmp_path: Path) -> None:
    folder = tokenizer_of(qwen, tmp_path / "model", DATED)
    write_lines(tmp_path / "a.jsonl", [talk(1)])
    result = built(folder, tmp_path, {"file": "a.jsonl", "share": 1}, date="2024-07-26")
    assert auto_tokenizer(folder).decode(result.sequences[0]).startswith("26 Jul 2024")


def test_plain_texts_need_no_template_and_are_set_apart_by_a_blank_line(qwen: Path, tmp_path: Path) -> None:
    folder = tokenizer_of(qwen, tmp_path / "model", "")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf\n\nOne line\nand another.\r\n \r\nThe second text.\n\n\n")
    write_lines(tmp_path / "b.jsonl", [{"text": "The third text.", "id": 3}])
    sources = ({"file": "a.txt", "share": 1}, {"file": "b.jsonl", "share": 1})
    result = built(folder, tmp_path, *sources, sequences=3)
    tokenizer = auto_tokenizer(folder)
    texts = ("One line\nand another.\n\n", "The second text.\n\n", "The third text.\n\n")
    assert set(result.sequences) == {tuple(tokenizer(text)["input_ids"]) for text in texts}


# Choosing


def test_shares_are_reached_by_tokens(smollm2: Path, texts: Path) -> None:
    split = built(smollm2, texts, *MIX, sequences=20, min_tokens=512, max_tokens=512).report.calibration
    assert [share.asked for share in split.shares] == [60, 20, 20]
    assert [share.reached for share in split.shares] == pytest.approx([60, 20, 20], abs=1)
    assert sum(share.tokens for share in split.shares) == split.tokens == 20 * 512
    assert [share.with_system for share in split.shares] == [split.shares[0].conversations, 0, 0]


def test_a_conversation_is_used_once_though_two_sources_name_its_file(smollm2: Path, texts: Path) -> None:
    result = built(smollm2, texts, *MIX, sequences=20, min_tokens=512)
    tokenizer = auto_tokenizer(smollm2)
    found = [mark for ids in result.sequences for mark in marks(tokenizer.decode(ids))]
    assert len(found) == len(set(found)) == result.report.calibration.conversations


def test_what_is_held_back_is_of_other_conversations_and_stays_when_more_are_asked(smollm2: Path, texts: Path) -> None:
    sizes: dict[str, Any] = {"min_tokens": 512, "max_tokens": 600, "held_back": 4}
    few, many = (built(smollm2, texts, *MIX, sequences=count, **sizes) for count in (5, 12))
    tokenizer = auto_tokenizer(smollm2)
    held, used = ({m for ids in rows for m in marks(tokenizer.decode(ids))} for rows in (few.held_back, few.sequences))
    assert held
    assert used
    assert not held & used
    assert many.held_back == few.held_back
    assert many.sequences[:5] == few.sequences
    assert few.report.held_back.sequences == 4


def test_conversations_that_differ_in_white_space_or_system_turn_are_one(qwen: Path, tmp_path: Path) -> None:
    pair = ("Hello  there.\n", "Hi.")
    same = [turns(*pair), turns("Hello there.", "\tHi."), turns(*pair, system="Be kind."), turns("Hello There.", "Hi.")]
    write_lines(tmp_path / "a.jsonl", same)
    (found,) = built(qwen, tmp_path, {"file": "a.jsonl", "share": 1}, sequences=2).report.sources
    assert (found.conversations, found.duplicates) == (2, 2)


def test_the_other_sources_fill_up_where_the_recipe_says_so(smollm2: Path, texts: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "few.jsonl", [talk(1)])
    sources = ({"file": "few.jsonl", "share": 50}, {"file": str(texts / "general.jsonl"), "share": 50})
    report = built(smollm2, tmp_path, *sources, sequences=4, min_tokens=256, when_short="fill").report
    assert [found.exhausted for found in report.sources] == [True, False]
    assert report.calibration.shares[0].conversations == 1
    assert report.calibration.shares[1].reached > 80


# Reproducibility


def test_the_order_of_lines_does_not_matter_and_the_seed_does(smollm2: Path, texts: Path, tmp_path: Path) -> None:
    lines = (texts / "dialogue.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "dialogue.jsonl").write_text("".join(random.Random(1).sample(lines, len(lines))))
    sizes = {"sequences": 6, "min_tokens": 256}
    assert (
        built(smollm2, tmp_path, PERSONA, PLAIN, **sizes).sha256
        == built(smollm2, texts, PERSONA, PLAIN, **sizes).sha256
    )
    other = built(smollm2, texts, PERSONA, PLAIN, **sizes, seed=1)
    assert other.sha256 != built(smollm2, texts, PERSONA, PLAIN, **sizes).sha256


def test_two_processes_with_other_hash_seeds_write_the_same_bytes(smollm2: Path, texts: Path, tmp_path: Path) -> None:
    sources = "".join(f"\n    - {json.dumps(source)}" for source in MIX)
    (texts / "r.yaml").write_text(
        f"calibration:\n  sequences: 8\n  min_tokens: 128\n  held_back: 2\n  sources:{sources}\n"
    )
    hashes = []
    for seed in ("0", "4711"):
        out = tmp_path / f"{seed}.safetensors"
        run = ckpt(texts / "r.yaml", "--model", smollm2, "--out", out, "--quiet", PYTHONHASHSEED=seed)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        hashes.append(hashlib.sha256(out.read_bytes()).hexdigest())
    assert hashes[0] == hashes[1]


# The report


def test_the_report_counts_the_tokens_in_the_set(smollm2: Path, texts: Path) -> None:
    result = built(smollm2, texts, *MIX, sequences=7, min_tokens=200, max_tokens=256)
    split, lengths = result.report.calibration, [len(ids) for ids in result.sequences]
    assert (split.sequences, split.tokens) == (7, sum(lengths))
    assert (split.shortest, split.longest) == (min(lengths), max(lengths))
    assert 200 <= split.shortest <= split.longest <= 256
    assert split.cut == sum(length == 256 for length in lengths)
    flat = [token for ids in result.sequences for token in ids]
    tokenizer = auto_tokenizer(smollm2)
    assert split.added_tokens["<|im_end|>"] == flat.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) > 0
    assert "<jupyter_code>" in split.absent_tokens
    assert set(split.added_tokens) == set(tokenizer.get_added_vocab())
    assert split.distinct_tokens == len(set(flat)) < result.report.vocabulary == len(tokenizer)


def test_scripts_are_counted_by_letters(qwen: Path, tmp_path: Path) -> None:
    scripts = {"Latin": "abc", "Cyrillic": "жук", "Han": "長城", "Kana": "おちゃー", "Hangul": "서울", "Arabic": "بحر"}
    write_lines(tmp_path / "a.jsonl", [turns(f"{' '.join(scripts.values())} 12!", "٣")])
    report = built(qwen, tmp_path, {"file": "a.jsonl", "share": 1}).report
    assert report.calibration.scripts == {name: len(letters) for name, letters in scripts.items()}


def test_the_record_names_what_the_set_was_made_from(qwen: Path, texts: Path) -> None:
    record = built(qwen, texts, GENERAL, seed=3).record
    assert record["seed"] == record["recipe"]["seed"] == 3
    (source,) = record["sources"]
    digest = hashlib.sha256((texts / "general.jsonl").read_bytes()).hexdigest()
    assert source == {"source": "general.jsonl", "sha256": digest}
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in qwen.iterdir()}
    assert record["tokenizer"] == digests
    assert record["template"] == digests["chat_template.jinja"]
    assert str(texts) not in json.dumps(dict(record))


# The file


def test_a_set_comes_back_from_its_file_and_safetensors_reads_it(qwen: Path, texts: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    result = built(qwen, texts, *MIX, sequences=5, min_tokens=100, held_back=2)
    write_set(result, tmp_path / "set.safetensors")
    assert read_set(tmp_path / "set.safetensors") == result
    arrays = load_file(tmp_path / "set.safetensors")
    flat = [token for ids in result.sequences for token in ids]
    assert arrays["calibration.input_ids"].tolist() == flat
    assert arrays["calibration.ends"].tolist()[-1] == len(flat)
    assert len(arrays["held_back.ends"]) == 2


def test_a_set_without_held_back_sequences_comes_back(qwen: Path, texts: Path, tmp_path: Path) -> None:
    result = built(qwen, texts, GENERAL)
    write_set(result, tmp_path / "set.safetensors")
    assert read_set(tmp_path / "set.safetensors") == result


def test_a_file_that_exists_is_not_replaced(qwen: Path, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "set.safetensors").write_bytes(b"mine")
    with pytest.raises(Refused, match="exists"):
        write_set(built(qwen, texts, GENERAL), tmp_path / "set.safetensors")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


def test_a_file_that_is_no_set_is_refused(qwen_moe_base: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="a calibration set"):
        read_set(next(qwen_moe_base.glob("*.safetensors")))
    (tmp_path / "set.safetensors").write_bytes(b"no")
    with pytest.raises(UnreadableCheckpoint):
        read_set(tmp_path / "set.safetensors")


# What llm-compressor takes


def test_llm_compressor_feeds_the_sequences_as_they_are(qwen: Path, texts: Path) -> None:
    from llmcompressor.args import DatasetArguments
    from llmcompressor.datasets import get_calibration_dataloader

    sequences = built(qwen, texts, *MIX, sequences=5, min_tokens=100).sequences
    arguments = DatasetArguments(
        dataset=as_dataset(sequences), num_calibration_samples=len(sequences), shuffle_calibration_samples=False
    )
    loader = get_calibration_dataloader(arguments, auto_tokenizer(qwen))
    assert loader is not None
    batches = list(loader)
    assert {tuple(batch["input_ids"][0].tolist()) for batch in batches} == set(sequences)
    assert all(batch["attention_mask"].all() and batch["input_ids"].shape[0] == 1 for batch in batches)


def test_rows_have_ids_and_a_mask_of_ones() -> None:
    assert rows_of([(5, 6), (7,)]) == [
        {"input_ids": [5, 6], "attention_mask": [1, 1]},
        {"input_ids": [7], "attention_mask": [1]},
    ]


# The shipped texts


def test_the_shipped_texts_make_the_example_recipe(smollm2: Path) -> None:
    from surgery.calibration import calibration_of

    example = ROOT / "recipes" / "calibration" / "example.yaml"
    result = build_calibration(calibration_of(read_recipe(example)["calibration"], example), smollm2)
    split = result.report.calibration
    assert (split.sequences, split.shortest, split.longest) == (64, 512, 512)
    assert [share.reached for share in split.shares] == pytest.approx([60, 20, 20], abs=2)
    assert len(result.held_back) == 8
    assert not any(found.exhausted or found.duplicates for found in result.report.sources)
    assert {"Latin", "Cyrillic"} <= set(split.scripts)


def test_the_shipped_texts_are_small_and_ask_what_the_prompts_say() -> None:
    import yaml

    from recipes.calibration.make import LEFT_OUT

    folder = ROOT / "recipes" / "calibration"
    assert sum(path.stat().st_size for path in folder.glob("*.jsonl")) < 500_000
    prompts = yaml.safe_load((folder / "prompts.yaml").read_text(encoding="utf-8"))
    dialogues, general = (
        [
            json.loads(line)["messages"]
            for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        ]
        for name in ("dialogue", "general")
    )
    asked = ((persona["system"], asks[0]) for persona in prompts["personas"] for asks in persona["asks"])
    systems = {system for system, first in asked if first not in LEFT_OUT}
    assert {messages[0]["content"] for messages in dialogues} == systems
    assert [messages[0]["content"] for messages in general] == prompts["general"]


# The command


def test_the_command_reports_shows_and_writes(qwen: Path, texts: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    source = f"{{file: {texts}/general.jsonl, share: 1}}"
    recipe.write_text(f"base: elsewhere\ncalibration: {{sequences: 3, min_tokens: 100, sources: [{source}]}}\n")
    run = ckpt(recipe, "--model", qwen, "--dry-run", "--show", 1)
    assert run.returncode == 0, run.stderr
    assert "calibration: 3 sequences" in run.stdout
    assert "sequence 1: '<|im_start|>user\\nmark " in run.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    run = ckpt(recipe, "--model", qwen, "--out", tmp_path / "set.safetensors", "--json")
    document = json.loads(run.stdout)
    result = read_set(tmp_path / "set.safetensors")
    assert document["sha256"] == result.sha256
    assert document["report"] == json.loads(json.dumps(result.report.document()))
    assert document["written"] == str(tmp_path / "set.safetensors")


@pytest.mark.parametrize(
    "text, arguments, code, said",
    [
        ("calibration: {}", [], 2, "give --out FILE, or --dry-run"),
        ("other: {}", ["--dry-run"], 2, "has no section `calibration:`"),
        ("calibration: {}", ["--dry-run"], 3, "'sequences' is a required property"),
    ],
)
def test_the_command_says_what_it_lacks(
    text: str, arguments: list[str], code: int, said: str, qwen: Path, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    run = ckpt(tmp_path / "recipe.yaml", "--model", qwen, *arguments)
    assert (run.returncode, said in run.stderr) == (code, True), run.stderr


def test_wanted_is_the_recipe_as_written(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [talk(1)])
    asked = wanted(tmp_path, {"file": "a.jsonl", "share": 3}, {"shipped": "general", "share": 1}, min_tokens=2.0)
    assert asked.shares == (0.75, 0.25)
    assert (asked.max_tokens, asked.seed, asked.held_back, asked.when_short) == (None, 0, 0, "refuse")
    assert isinstance(asked.min_tokens, int)
    assert asked.sources[1].path == ROOT / "recipes" / "calibration" / "general.jsonl"

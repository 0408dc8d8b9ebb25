"""`ckpt diff` as people and scripts meet it: tables, JSON, files, exit codes, and what is wrong with both at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from building import LLAMA, dense_llama, edit_json, llama_entries, packed_llama, write_checkpoint

from compare import compare, document
from compare.documents import compare_documents
from schemas import validate

ROOT = Path(__file__).parent.parent


def ckpt(*arguments: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckpt", "diff", *map(str, arguments)]
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=False, env={**os.environ, **environment}
    )
    assert run.returncode == code, run.stderr
    return run


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return dense_llama(tmp_path / "dense")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return packed_llama(tmp_path / "packed")


@pytest.fixture(scope="module")
def said(llama: Path, packed4: Path) -> str:
    return ckpt(llama, packed4, "--layers").stdout


def test_the_table_names_families_layers_and_the_worst(said: str, llama: Path, packed4: Path) -> None:
    lines = said.splitlines()
    assert lines[:3] == [f"A  {llama}", f"B  {packed4}", "21 weights in both: 14 changed; 7 equal"]
    (family,) = (line for line in lines if line.startswith("model.layers.*.mlp.up_proj.weight"))
    assert "BF16 -> INT4 g32" in family
    assert "2 of 2" in family
    assert sum(line.startswith("model.layers.1 ") for line in lines) == 1
    worst = lines.index(next(line for line in lines if line.startswith("worst")))
    assert len([line for line in lines[worst + 1 :] if line.startswith("model.layers.")]) == 10
    assert any(line.startswith("  + quantization_config: ") for line in lines)


def test_json_is_as_its_schema_says_and_output_writes_the_same(llama: Path, packed4: Path, tmp_path: Path) -> None:
    run = ckpt(llama, packed4, "--json", "--output", tmp_path / "diff.json")
    found = json.loads(run.stdout)
    assert validate(found, "diff") == []
    assert json.loads((tmp_path / "diff.json").read_text()) == found
    assert "written to" in run.stderr
    assert found["counts"] == {"equal": 7, "equal_in_value": 0, "changed": 14, "not_read": 0, "removed": 0, "added": 0}
    assert found["worst"] == [one["name"] for one in found["changed"]][:10]
    assert {row["layer"] for row in found["layers"]} == {0, 1}


@pytest.mark.parametrize("level", ["headers", "sample", "full"])
def test_documents_of_all_kinds_of_differences_are_as_their_schema_says(
    dense: Path, packed: Path, tmp_path: Path, level: Any
) -> None:
    strange = llama_entries() | {"ids": ("I64", (2,), bytes(16)), "model.norm.weight": ("F32", (64,), None)}
    del strange["lm_head.weight"]
    other = write_checkpoint(tmp_path / "strange", strange, LLAMA)
    (other / "README.md").write_text("a card")
    for one, two in ((dense, packed), (packed, other), (dense, dense)):
        assert validate(document(compare(one, two, level=level)), "diff") == []


def test_identical_folders_say_so_and_differences_exit_with_1_only_if_asked(dense: Path, packed: Path) -> None:
    assert "21 weights in both: 21 equal; nothing differs" in ckpt(dense, dense, "--exit-code").stdout
    ckpt(dense, packed)
    run = ckpt(dense, packed, "--quiet", "--exit-code", code=1)
    assert run.stdout + run.stderr == ""


def test_side_files_by_what_became_of_them(dense: Path, tmp_path: Path) -> None:
    other = shutil.copytree(dense, tmp_path / "other")
    (other / "tokenizer.json").write_text("{}\n")
    (other / "generation_config.json").unlink()
    (other / "notes.md").write_text("notes")
    (other / "ckpt.report.json").write_text("{}")
    states = {file.name: file.state for file in compare(dense, other).side_files}
    assert states == {
        "tokenizer.json": "changed",
        "generation_config.json": "removed",
        "notes.md": "added",
        "tokenizer_config.json": "equal",
    }
    assert "~ tokenizer.json" in ckpt(dense, other).stdout


def test_config_members_by_path_with_old_and_new(dense: Path, tmp_path: Path) -> None:
    other = shutil.copytree(dense, tmp_path / "other")

    def change(config: dict[str, Any]) -> None:
        config["rms_norm_eps"] = 1e-6
        config["rope_scaling"] = {"factor": 2}
        config["architectures"] = ["Other"]
        config["tie_word_embeddings"] = 0
        del config["bos_token_id"]

    edit_json(other / "config.json", change)
    found = document(compare(dense, other))["config"]
    assert found["state"] == "changed"
    assert {one["path"]: (one.get("a", "-"), one.get("b", "-")) for one in found["changes"]} == {
        "rms_norm_eps": (1e-5, 1e-6),
        "rope_scaling": ("-", {"factor": 2}),
        "architectures[0]": ("LlamaForCausalLM", "Other"),
        "tie_word_embeddings": (False, 0),
        "bos_token_id": (1, "-"),
    }


def test_a_config_spelled_otherwise_is_respelled(dense: Path, tmp_path: Path) -> None:
    other = shutil.copytree(dense, tmp_path / "other")
    (other / "config.json").write_text(json.dumps(LLAMA))
    result = compare(dense, other)
    assert (result.config.state, result.config.changes) == ("respelled", ())
    assert compare_documents(None, None).state == "absent"


def test_the_index_by_metadata_and_places(dense: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", llama_entries(), LLAMA, shards=3)
    index = compare(dense, other).index
    assert index.state == "changed"
    assert index.moved > 0
    assert index.metadata == ()


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plot_is_a_picture(llama: Path, packed4: Path, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"sqnr.{suffix}"
    ckpt(llama, packed4, "--plot", picture, "--quiet")
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG") if suffix == "png" else b"SQNR by layer" in content


def test_nothing_to_draw_is_said(dense: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = ckpt(dense, dense, "--plot", tmp_path / "none.svg")
    assert "was not written" in run.stderr
    assert not (tmp_path / "none.svg").exists()


@pytest.mark.parametrize(
    "options", [["--plot", "x.pdf"], ["--headers", "--sample"], ["--headers", "--plot", "x.svg"], ["--memory", "0"]]
)
def test_wrong_use_is_told(dense: Path, options: list[str]) -> None:
    ckpt(dense, dense, *options, code=2)


def test_all_that_is_wrong_with_both_is_told_at_once(dense: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(dense, tmp_path / "broken")
    for shard in broken.glob("*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:-7])
    run = ckpt(tmp_path / "nowhere", broken, code=3)
    assert run.stdout == ""
    assert run.stderr.splitlines()[0] == "ckpt: cannot compare"
    assert f"{tmp_path / 'nowhere'}: is not a folder" in run.stderr
    assert all(f"{broken}: model-0000{n}-of-00002.safetensors" in run.stderr for n in (1, 2))
    problems = json.loads(ckpt(broken, tmp_path / "nowhere", "--json", code=3).stdout)["problems"]
    assert len(problems) == 3


def test_hostile_names_reach_the_terminal_escaped(tmp_path: Path) -> None:
    entries = {"a.\x1b[2J.weight": ("F32", (2, 2), bytes(16)), "b\u202e": ("F32", (1,), None)}
    other = {"a.\x1b[2J.weight": ("F32", (2, 2), b"\x00\x00\x80\x3f" * 4), "c\x07": ("F32", (1,), None)}
    one = write_checkpoint(tmp_path / "a", entries, {"model_type": "x"}, shards=1)
    two = write_checkpoint(tmp_path / "b", other, {"model_type": "x", "k\x1b": "\x1b]0;x"}, shards=1)
    run = ckpt(one, two)
    assert run.stdout.replace("\n", "").isprintable()
    assert "\\x1b[2J" in run.stdout
    assert validate(json.loads(ckpt(one, two, "--json").stdout), "diff") == []


def test_smollm2_against_its_int4(smollm2_base: Path, tmp_path: Path) -> None:
    """Real weights: an INT4 grid of 32 leaves about a tenth, and 20 dB."""
    pytest.importorskip("torch")
    packed = tmp_path / "int4"
    quantize = ["quantize", smollm2_base, "--out", packed, "--target", "re:.*layers.0.*_proj$", "--group-size", "32"]
    command = [sys.executable, "-m", "ckpt", *map(str, quantize), "--no-verify", "--quiet"]
    subprocess.run(command, check=True, cwd=ROOT)
    result = compare(smollm2_base, packed)
    assert result.counts["changed"] == 7
    assert result.counts["equal"] == len(result.entries) - 7
    assert all(18 < (entry.sums.sqnr if entry.sums else 0) < 21 for entry in result.measured)

"""`ckpt card` as scripts and people meet it: what it writes, prints, remembers and exits with."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from building import dense_llama, packed_llama
from carding import experts
from hub import HubServer

from ckpt.__main__ import main

Run = subprocess.CompletedProcess[str]


def ckpt(*arguments: str | Path) -> Run:
    """The command line as the console script runs it, in this process: starting Python costs more than all else."""
    command, out, err = ["ckpt", *map(str, arguments)], io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with patch.object(sys, "argv", command), redirect_stdout(out), redirect_stderr(err):
        code = exit_code()
    for stream in (out, err):
        stream.seek(0)
    return subprocess.CompletedProcess(command, code, out.read(), err.read())


def exit_code() -> int:
    with pytest.raises(SystemExit) as end:
        main()
    return int(str(end.value.code))


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """What `main` sets for a process that is its own is put back."""
    handler, threshold = signal.getsignal(signal.SIGTERM), gc.get_threshold()
    yield
    signal.signal(signal.SIGTERM, handler)
    gc.set_threshold(*threshold)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return packed_llama(tmp_path / "model")


def test_a_card_is_written_and_what_is_left_out_is_said(folder: Path) -> None:
    run = ckpt("card", folder)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("README.md: written; ")
    assert "front matter: tags added: compressed-tensors, int4" in run.stdout
    assert "left out: base_model: give --base-model OWNER/NAME" in run.stderr
    assert "left out: license: give --base BASE" in run.stderr
    assert "left out: the SHA-256 of 2 files: --hash computes them" in run.stderr
    assert "## Quantization" in (folder / "README.md").read_text()


def test_check_exits_with_1_until_the_card_is_written_and_writes_nothing(folder: Path) -> None:
    before = ckpt("card", folder, "--check")
    assert (before.returncode, (folder / "README.md").exists()) == (1, False)
    assert "README.md: stale" in before.stdout
    ckpt("card", folder, "--repo", "me/model", "--hash", "--quiet")
    assert ckpt("card", folder, "--check").returncode == 0
    text = (folder / "README.md").read_text()
    (folder / "README.md").write_text(text.replace("INT4", "INT8", 1))
    assert ckpt("card", folder, "--check").returncode == 1
    (folder / "README.md").write_text(text + "\nMore words of mine.\n")
    assert ckpt("card", folder, "--check", "--quiet").returncode == 0


def test_stdout_and_dry_run_write_nothing(folder: Path) -> None:
    (folder / "README.md").write_text("words\n")
    printed = ckpt("card", folder, "--stdout")
    planned = ckpt("card", folder, "--dry-run")
    assert (folder / "README.md").read_text() == "words\n"
    assert printed.returncode == planned.returncode == 0
    assert printed.stdout.startswith("---\nlibrary_name: transformers\n")
    assert "\n---\n\nwords\n\n<!-- ckpt:card begin -->\n" in printed.stdout
    assert "+## Quantization" in planned.stdout
    assert "README.md: stale" in planned.stdout


def test_what_stdout_prints_is_what_is_written(folder: Path) -> None:
    printed = ckpt("card", folder, "--stdout").stdout
    ckpt("card", folder)
    assert (folder / "README.md").read_text() == printed


def test_json_says_all_of_it(folder: Path) -> None:
    (folder / "README.md").write_text("---\ntags: 2024-05-01\n---\n")
    run = ckpt("card", folder, "--json", "--base-model", "meta/Llama")
    said = json.loads(run.stdout)
    assert (said["stale"], said["written"]) == (True, True)
    assert said["front_matter"]["added"]["base_model"] == ["meta/Llama"]
    assert said["front_matter"]["kept"]["tags"] == {"found": "2024-05-01", "expected": ["compressed-tensors", "int4"]}
    assert said["section"] in (folder / "README.md").read_text()
    assert {file["name"] for file in said["files"]} >= {"config.json", "tokenizer.json"}
    assert json.loads(ckpt("card", folder, "--json").stdout)["written"] is False


@pytest.mark.parametrize("arguments", [(), ("--repo", "me/other"), ("--hash",)])
def test_the_same_command_gives_the_same_bytes_anywhere(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    made = []
    for name in ("one", "two"):
        folder = packed_llama(tmp_path / name / "model")
        ckpt("card", folder, *arguments)
        made.append((folder / "README.md").read_bytes())
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--check", "--dry-run"),
        ("--stdout", "--json"),
        ("--repo", "not a repo"),
        ("--repo", "a/b--c"),
        ("--base-model", "x"),
        ("--title", "two\nlines"),
        ("--quantized-by", ""),
    ],
)
def test_wrong_usage_exits_with_2(folder: Path, arguments: tuple[str, ...]) -> None:
    assert ckpt("card", folder, *arguments).returncode == 2
    assert not (folder / "README.md").exists()


def test_what_cannot_be_edited_or_read_exits_with_3(folder: Path, tmp_path: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: mit\nlicense: mit\n---\n")
    run = ckpt("card", folder)
    assert run.returncode == 3
    assert "README.md: line 3: the key 'license' twice" in run.stderr
    assert ckpt("card", tmp_path / "nowhere").returncode == 3
    (folder / "README.md").unlink()
    (folder / "ckpt.manifest.json").write_text("{}")
    assert ckpt("card", folder).returncode == 3


def test_the_licence_comes_from_the_base(folder: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    assert ckpt("card", folder, "--base", base).returncode == 3
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    assert ckpt("card", folder, "--base", base).returncode == 0
    assert (folder / "README.md").read_text().startswith("---\nlicense: apache-2.0\n")


def test_a_base_on_the_hub_gives_its_name_and_licence(folder: Path, tmp_path: Path, online: HubServer) -> None:
    base = dense_llama(tmp_path / "base")
    (base / "README.md").write_text("---\nlicense: other\nlicense_link: LICENSE\n---\n# Base\n")
    online.publish("meta/Llama", base)
    run = ckpt("card", folder, "--base", "hf://meta/Llama")
    assert run.returncode == 0, run.stderr
    text = (folder / "README.md").read_text()
    assert text.startswith("---\nbase_model:\n- meta/Llama\nbase_model_relation: quantized\nlicense: other\n")
    assert "\nlicense_link: https://huggingface.co/meta/Llama/blob/main/LICENSE\n" in text
    assert "Made from [`meta/Llama`](https://huggingface.co/meta/Llama)." in text


def test_a_card_that_is_written_is_the_manifest_s(qwen_moe_base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = ckpt("quantize", qwen_moe_base, "--preset", "experts-int4-g32", "--out", out, "--quiet")
    assert made.returncode == 0, made.stderr
    assert ckpt("card", out, "--quiet").returncode == 0
    told: dict[str, Any] = json.loads((out / "ckpt.manifest.json").read_text())["files"]["README.md"]
    assert told["bytes"] == (out / "README.md").stat().st_size
    assert ckpt("card", out, "--check", "--quiet").returncode == 0
    text = (out / "README.md").read_text()
    assert "ckpt quantize qwen-moe-" in text
    assert str(tmp_path) not in text


def test_statistics_in_the_folder_are_found_and_wrong_ones_refused(folder: Path) -> None:
    (folder / "model.gptq.json").write_text(json.dumps({"version": 1}))
    run = ckpt("card", folder)
    assert run.returncode == 3
    assert "'title' is a required property" in run.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_exits_with_3(folder: Path) -> None:
    folder.chmod(0o555)
    assert ckpt("card", folder).returncode == 3
    folder.chmod(0o755)


def test_a_change_of_the_weights_makes_the_card_stale(tmp_path: Path) -> None:
    folder = experts(tmp_path / "model")
    ckpt("card", folder, "--quiet")
    other = packed_llama(tmp_path / "other")
    shutil.copy(folder / "README.md", other / "README.md")
    assert ckpt("card", other, "--check", "--quiet").returncode == 1

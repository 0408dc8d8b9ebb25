"""Side files and config.json as upstream wrote them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building import LLAMA, dense_llama, packed_llama, quantization, scheme, write_json
from writing import codes, config_of, drafted, written

from checkpoint import open_checkpoint
from surgery import restore_files


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = dense_llama(tmp_path / "base")
    (folder / "README.md").write_text("# The original\n")
    (folder / "LICENSE").write_text("the licence\n")
    (folder / "chat_template.jinja").write_text("{{ messages }}\n")
    (folder / "templates").mkdir()
    (folder / "templates" / "tools.jinja").write_text("{{ tools }}\n")
    return folder


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return packed_llama(tmp_path / "export")


def restored(export: Path, base: Path, out: Path) -> Path:
    return written(export, out, partial(restore_files, base=open_checkpoint(base)))


def side_files(folder: Path) -> set[str]:
    known = ("model.safetensors.index.json", "config.json", "ckpt.manifest.json")
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".safetensors")
    return {path.relative_to(folder).as_posix() for path in files} - set(known)


def test_every_side_file_of_the_base_is_there_to_the_byte(export: Path, base: Path, tmp_path: Path) -> None:
    (export / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    out = restored(export, base, tmp_path / "out")
    assert side_files(out) == side_files(base)
    for name in side_files(base):
        assert (out / name).read_bytes() == (base / name).read_bytes()


def test_a_file_that_loaders_read_and_the_base_lacks_is_removed(export: Path, base: Path, tmp_path: Path) -> None:
    for name in ("processor_config.json", "special_tokens_map.json", "vocab.json"):
        write_json(export / name, {})
    (export / "recipe.yaml").write_text("stage: {}\n")
    (export / "results.csv").write_text("1\n")
    out = restored(export, base, tmp_path / "out")
    assert side_files(out) - side_files(base) == {"recipe.yaml", "results.csv"}
    summary = drafted(export, partial(restore_files, base=open_checkpoint(base))).steps[-1].summary
    assert "removed processor_config.json, special_tokens_map.json, vocab.json" in summary


def test_what_a_publisher_writes_for_the_export_stays(export: Path, base: Path, tmp_path: Path) -> None:
    for name in ("README.md", ".gitattributes"):
        (export / name).write_text("my own\n")
        (base / name).write_text("the base's\n")
    out = restored(export, base, tmp_path / "out")
    assert (out / "README.md").read_text() == (out / ".gitattributes").read_text() == "my own\n"


def test_weights_in_other_formats_stay_in_the_base(export: Path, base: Path, tmp_path: Path) -> None:
    (base / "original").mkdir()
    for name in ("model.gguf", "pytorch_model.bin", "pytorch_model.bin.index.json", "original/consolidated.00.pth"):
        (base / name).write_bytes(b"x")
    (base / "original" / "part.safetensors").write_bytes(b"x")
    (base / "original" / "params.json").write_text("{}")
    out = restored(export, base, tmp_path / "out")
    assert side_files(base) - side_files(out) == {
        "model.gguf",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "original/consolidated.00.pth",
    }
    assert not (out / "original" / "part.safetensors").exists()
    assert (out / "original" / "params.json").exists()


def test_the_config_is_the_bases_text_with_the_quantization_in_it(export: Path, base: Path, tmp_path: Path) -> None:
    text = '{\n    "zeta": [1, 2],\n  "model_type": "llama",\n    "caf\\u00e9": 1.50e3\n}\n'
    (base / "config.json").write_text(text)
    out = restored(export, base, tmp_path / "out")
    written_text = (out / "config.json").read_text()
    assert written_text.startswith(text.removesuffix("\n}\n"))
    assert config_of(out) == json.loads(text) | {"quantization_config": config_of(export)["quantization_config"]}


def test_keys_of_the_quantization_are_put_in_order_and_those_that_say_nothing_left_out(
    base: Path, tmp_path: Path
) -> None:
    """`scale_dtype` and `zp_dtype` make compressed-tensors up to 0.12, and vLLM with it, refuse the file."""
    nulls = dict.fromkeys(["actorder", "block_structure", "observer", "scale_dtype", "zp_dtype"])
    group = scheme() | {"weights": dict(sorted((scheme()["weights"] | nulls | {"observer_kwargs": {}}).items()))}
    found = quantization("lm_head", group_0=dict(sorted(group.items())))
    found |= {"version": "0.19.0", "kv_cache_scheme": None}
    export = packed_llama(tmp_path / "export", quantization_config=dict(sorted(found.items())))
    result = config_of(restored(export, base, tmp_path / "out"))["quantization_config"]
    assert list(result) == [
        "quant_method",
        "format",
        "quantization_status",
        "config_groups",
        "ignore",
        "kv_cache_scheme",
        "version",
    ]
    assert result == found | {"config_groups": {"group_0": scheme()}}
    assert list(result["config_groups"]["group_0"]["weights"])[:3] == ["num_bits", "type", "symmetric"]


def test_a_scheme_that_is_no_plain_pack_is_left_as_it_says(base: Path, tmp_path: Path) -> None:
    groups: dict[str, Any] = {"W4A16": ["Linear"], "empty": {"targets": ["x"], "weights": None}}
    export = packed_llama(tmp_path / "export", quantization_config=quantization("lm_head", **groups))
    result = config_of(restored(export, base, tmp_path / "out"))["quantization_config"]
    assert result["config_groups"] == groups


def test_a_dense_export_gets_the_bases_config_byte_for_byte(base: Path, tmp_path: Path) -> None:
    export = dense_llama(tmp_path / "export", transformers_version="5.17.0")
    out = restored(export, base, tmp_path / "out")
    assert (out / "config.json").read_bytes() == (base / "config.json").read_bytes()


def test_weights_stay_untouched(export: Path, base: Path, tmp_path: Path) -> None:
    out = restored(export, base, tmp_path / "out")
    for shard in export.glob("*.safetensors"):
        assert (out / shard.name).read_bytes() == shard.read_bytes()


@pytest.mark.parametrize("where", ["compression_config", "text_config"])
def test_a_quantization_that_would_get_lost_is_refused(where: str, base: Path, tmp_path: Path) -> None:
    found = quantization("lm_head")
    moved: dict[str, Any] = {where: found if where == "compression_config" else {"quantization_config": found}}
    export = packed_llama(tmp_path / "export", quantization_config=None, **moved)
    draft = drafted(export, partial(restore_files, base=open_checkpoint(base)))
    assert codes(draft) == ["quantization-misplaced"]
    assert "(compressed-tensors) elsewhere" in str(draft.problems[0])


def test_a_base_without_a_config_or_quantized_itself_is_refused(export: Path, base: Path) -> None:
    write_json(base / "config.json", LLAMA | {"quantization_config": {"quant_method": "fp8"}})
    draft = drafted(export, partial(restore_files, base=open_checkpoint(base)))
    assert codes(draft) == ["base-quantized"]
    assert str(draft.problems[0]) == f"{base}: is quantized itself (fp8). Give the unquantized base"
    (base / "config.json").unlink()
    assert codes(drafted(export, partial(restore_files, base=open_checkpoint(base)))) == ["config-absent"]

"""quantization_config: our schema and list of spellings against what every release of compressed-tensors really reads.

The record is made by `data/collect_compressed_tensors.py`; the installed release is asked again, here and now.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from quantization_configs import PRESETS, STRICTER, VARIANTS, config, inputs, preset, weights

from schemas import load, releases, spelled, spellings, validate
from schemas.releases import FILE, version

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "data/compressed_tensors_variants.json").read_text())
VERDICTS: dict[str, str] = {name: entry["verdicts"] for name, entry in RECORD["variants"].items()}
DOCUMENTS: dict[str, Any] = {name: entry["document"] for name, entry in RECORD["variants"].items()}
RELEASES: list[str] = RECORD["releases"]
WRITTEN = [name for name in DOCUMENTS if name not in VARIANTS]


def conforms(name: str) -> bool:
    return not validate(DOCUMENTS[name], "quantization_config")


def reads(release: str) -> dict[str, bool]:
    """What the record says of every variant: whether `release` reads it."""
    column = RELEASES.index(release)
    return {name: verdicts[column] == "+" for name, verdicts in VERDICTS.items()}


def test_the_record_is_of_the_variants_as_they_stand() -> None:
    assert {name: DOCUMENTS[name] for name in VARIANTS} == VARIANTS
    assert len(WRITTEN) == len(DOCUMENTS) - len(VARIANTS)
    assert tuple(RELEASES) == releases()


def test_the_installed_release_still_answers_as_recorded() -> None:
    import compressed_tensors
    from compressed_tensors.quantization import QuantizationConfig

    if compressed_tensors.__version__ not in RELEASES:
        pytest.skip(f"compressed-tensors {compressed_tensors.__version__} is not recorded")

    def accepts(document: dict[str, Any]) -> bool:
        try:
            QuantizationConfig.model_validate(copy.deepcopy(document))
        except (ValueError, KeyError, NotImplementedError, TypeError):
            return False
        return True

    assert {name: accepts(document) for name, document in DOCUMENTS.items()} == reads(compressed_tensors.__version__)


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in STRICTER])
def test_the_schema_takes_exactly_what_the_newest_release_reads(name: str) -> None:
    assert conforms(name) == reads(RELEASES[-1])[name], validate(DOCUMENTS[name], "quantization_config")


@pytest.mark.parametrize("name", STRICTER)
def test_the_schema_is_stricter_only_where_the_newest_release_reads_what_others_stumble_over(name: str) -> None:
    assert reads(RELEASES[-1])[name]
    assert not conforms(name)
    assert STRICTER[name]


def test_every_preset_of_the_installed_release_is_in_the_table() -> None:
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

    assert set(PRESET_SCHEMES) <= set(PRESETS)


@pytest.mark.parametrize("name", [name for name, verdicts in VERDICTS.items() if "+" in verdicts])
def test_the_spellings_found_say_which_releases_refuse_a_config(name: str) -> None:
    """Of all that some release reads; what none reads is left to the schema."""
    found = spelled(DOCUMENTS[name])
    refusing = [release for release in RELEASES if any(one.spelling.refused_by(release) for one in found)]
    assert refusing == [release for release, verdict in zip(RELEASES, VERDICTS[name], strict=True) if verdict == "-"]


def test_every_spelling_was_seen_refused_and_read() -> None:
    seen = {
        one.spelling.what for name, verdicts in VERDICTS.items() if "+" in verdicts for one in spelled(DOCUMENTS[name])
    }
    assert {spelling.what for spelling in spellings()} == seen


def test_what_conforms_now_and_older_releases_refuse() -> None:
    newly: dict[str, list[str]] = {}
    for name in VARIANTS:
        if conforms(name) and "-" in VERDICTS[name]:
            newly.setdefault(RELEASES[VERDICTS[name].rindex("-") + 1], []).append(name)
    presets = {since: [name for name in names if name.startswith("preset ")] for since, names in newly.items()}
    others = {since: [name for name in names if not name.startswith("preset ")] for since, names in newly.items()}
    assert {since: len(names) for since, names in presets.items() if names} == {
        "0.13.0": 2,
        "0.14.0": 1,
        "0.15.0": 2,
        "0.18.0": 13,
        "0.20.0": 3,
    }
    assert {since: names for since, names in others.items() if names} == {
        "0.13.0": [
            "every key of weights, null where it can be",
            "asymmetric with its dtype",
            "attn_head weights",
            "scale_dtype",
            "scale_dtype without torch",
            "scale_dtype null",
            "zp_dtype",
            "zp_dtype null",
            "float 4 with dtypes",
            "float 6 with zp_dtype",
            "attn_head activations",
            "activations with the dtypes of 0.13",
            "kv cache by head",
            "kv cache with the dtypes of 0.13",
        ],
        "0.14.0": ["actorder weight by tensor_group"],
        "0.15.0": ["status decompressed"],
        "0.16.0": ["actorder weight by channel", "actorder static by channel"],
        "0.20.0": ["float 6", "group format mxfp6"],
    }


def test_what_a_release_writes_conforms_and_0_13_to_0_19_write_what_0_12_refuses() -> None:
    assert [name for name in WRITTEN if not conforms(name)] == []
    refused = [name for name in WRITTEN if not reads("0.12.2")[name]]
    assert refused == ["as 0.13.0 writes it", "as 0.14.0 to 0.18.0 write it", "as 0.19.0 writes it"]


def test_the_plain_config_is_read_by_every_release_and_has_no_spelling_to_warn_of() -> None:
    assert set(VERDICTS["plain"]) == {"+"}
    assert spelled(config()) == []


@pytest.mark.parametrize(
    ("document", "path", "refused", "read"),
    [
        (weights(scale_dtype=None), "config_groups.group_0.weights.scale_dtype", "0.12.2", "0.13.0"),
        (inputs(zp_dtype=None), "config_groups.group_0.input_activations.zp_dtype", "0.12", "0.13"),
        (weights(actorder="group"), "config_groups.group_0.weights.actorder", "0.19", "0.18.0"),
        (weights(type="float", num_bits=6), "config_groups.group_0.weights.num_bits", "0.19.0", "0.20.0"),
        (weights(type="float", num_bits=6), "config_groups.group_0.weights.num_bits", "0.13.0", "0.12.2"),
        (preset("w2a16"), "config_groups.w2a16", "0.17.1", "0.18"),
        (config(quantization_status="decompressed"), "quantization_status", "0.14.0.1", "0.15.0"),
        (config(kv_cache_scheme={"scale_dtype": None}), "kv_cache_scheme.scale_dtype", "0.12.0", "0.20.1"),
    ],
)
def test_a_spelling_is_found_at_its_place(document: dict[str, Any], path: str, refused: str, read: str) -> None:
    (found,) = spelled(document)
    assert found.path == path
    assert found.spelling.refused_by(refused)
    assert not found.spelling.refused_by(read)


@pytest.mark.parametrize(
    "document", [{}, config(config_groups=[]), config(config_groups={"a": 1, "b": {"weights": []}})]
)
def test_a_config_of_the_wrong_form_is_no_spelling(document: dict[str, Any]) -> None:
    assert spelled(document) == []


def test_the_list_of_spellings_satisfies_its_schema() -> None:
    content = json.loads(FILE.read_text())
    assert validate(content, "compressed_tensors_releases") == []
    content["spellings"][0] = {"place": "weights", "matches": {"type": "yesno"}, "refused": {}}
    assert len(validate(content, "compressed_tensors_releases")) == 4


def test_the_schema_names_the_newest_release() -> None:
    assert f"compressed-tensors {RELEASES[-1]} reads" in load("quantization_config")["description"]


@pytest.mark.parametrize(("older", "newer"), [("0.9", "0.12"), ("0.14.0", "0.14.0.1"), ("0.14.0.1", "0.15")])
def test_releases_compare_as_numbers(older: str, newer: str) -> None:
    assert version(older) < version(newer)
    assert version("0.13") == version("0.13.0")

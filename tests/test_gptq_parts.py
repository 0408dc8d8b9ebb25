"""The parts of a calibrated build: what is recorded, compared, matched, taken back, and shown as Python."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from building import packed, write_checkpoint
from gptq_builds import build, dense_llama, write_recipe

from checkpoint import Draft, Refused, open_checkpoint
from schemas import validate
from surgery.gptq import compared, mended, result_problems, script, statistics
from surgery.gptq.comparing import compare
from surgery.gptq.job import Job, Packed
from surgery.gptq.matching import match_problems
from surgery.gptq.recording import recording

UP = "model.layers.0.mlp.up_proj"


def record(**changes: Any) -> dict[str, Any]:
    return {"loss": 2.0, "error": 0.1, "seconds": 0.5, "dead": 0, "columns": 128, "fallback": False, **changes}


def job(*packed: Packed, **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "base": "/base",
        "model_class": "LlamaForCausalLM",
        "groups": {"group_0": {"targets": ["Linear"], "weights": {}}},
        "ignore": (),
        "modules": packed,
        "dampening": 0.01,
        "block_size": 128,
        "actorder": "static",
        "sequential_targets": ("re:layers",),
        "together": 1,
        "calibrate_all_experts": True,
        "calibration": {},
    }
    return Job(**{**fields, **changes})


class Small(torch.nn.Module):
    """Two Linears behind one another, called as a language model is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(50, 64)
        self.first = torch.nn.Linear(64, 96, bias=False)
        self.second = torch.nn.Linear(96, 8, bias=False)
        self.idle = torch.nn.Linear(64, 8, bias=False)
        self.to(torch.bfloat16)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def forward(self, input_ids: torch.Tensor, **more: Any) -> Any:
        return self.second(self.first(self.embedding(input_ids)))


def packed_weight(weight: torch.Tensor, bits: int, group: int) -> tuple[dict[str, Any], torch.Tensor]:
    """The tensors of a packed module as compressed-tensors makes them, and the weight that they stand for."""
    from compressed_tensors.compressors import pack_to_int32

    rows, columns = weight.shape
    grouped = weight.float().reshape(rows, -1, group)
    scale = (grouped.abs().amax(-1) / (2 ** (bits - 1) - 0.5)).to(torch.bfloat16)
    codes = (grouped / scale.float()[..., None]).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    words = pack_to_int32(codes.reshape(rows, columns).to(torch.int8), bits)
    tensors = {
        "weight_packed": ("I32", tuple(words.shape), words.numpy().tobytes()),
        "weight_scale": ("BF16", tuple(scale.shape), scale.view(torch.int16).numpy().tobytes()),
        "weight_shape": ("I64", (2,), np.array([rows, columns], "<i8").tobytes()),
    }
    return tensors, (codes * scale.float()[..., None]).reshape(rows, columns)


def relative(inputs: torch.Tensor, weight: torch.Tensor, other: torch.Tensor) -> float:
    exact = inputs.double() @ weight.double().T
    return float((inputs.double() @ other.double().T - exact).norm() / exact.norm())


def test_a_comparison_measures_both_errors_of_the_outputs(tmp_path: Path) -> None:
    model = Small()
    weight = model.first.weight.detach()
    stored, stands_for = packed_weight(0.9 * weight, 4, 64)
    _, rounded = packed_weight(weight, 4, 64)
    export = write_checkpoint(tmp_path / "export", {f"first.{name}": entry for name, entry in stored.items()}, {})
    sequences = [list(range(12)), list(range(20, 30))]
    found = compare(model, job(Packed("first", 4, 64, True)), open_checkpoint(export), sequences)
    assert (found["sequences"], found["tokens"]) == (2, 20)  # cut to the shorter
    errors = compared(found)["modules"]["first"]
    inputs = model.embedding(torch.tensor([sequences[0][:10], sequences[1]])).detach().reshape(-1, 64)
    assert errors["rows"] == 20
    assert errors["gptq"] == pytest.approx(relative(inputs, weight, stands_for), rel=1e-4)
    assert errors["rtn"] == pytest.approx(relative(inputs, weight, rounded), rel=1e-3)


def test_a_comparison_reads_zero_points_as_the_toolkit_packs_them(tmp_path: Path) -> None:
    from checkpoint import Draft, apply_plan, plan_for
    from surgery import Group, Scheme, quantize

    model, scheme = Small(), Scheme(4, 32, symmetric=False)
    raw = model.first.weight.detach().view(torch.int16).numpy().tobytes()
    base = write_checkpoint(tmp_path / "base", {"first.weight": ("BF16", (96, 64), raw)}, {}, shards=1)
    draft = quantize(Draft.of(open_checkpoint(base)), [Group(("first",), scheme)])
    apply_plan(plan_for(draft, tmp_path / "out"), tmp_path / "out")
    packed = Packed("first", 4, 32, False)
    found = compare(model, job(packed), open_checkpoint(tmp_path / "out"), [list(range(40))])
    sums = found["modules"]["first"]
    assert sums["gptq"] == pytest.approx(sums["rtn"], rel=1e-9)
    assert 0 < sums["gptq"] < 0.02 * sums["energy"]


def test_a_module_without_inputs_is_told_apart(tmp_path: Path) -> None:
    model = Small()
    tensors, _ = packed_weight(model.idle.weight.detach(), 8, 64)
    export = write_checkpoint(tmp_path / "export", {f"idle.{name}": entry for name, entry in tensors.items()}, {})
    found = compared(compare(model, job(Packed("idle", 8, 64, True)), open_checkpoint(export), [[1, 2]]))
    assert found["modules"]["idle"] == {"rows": 0, "gptq": None, "rtn": None}
    assert (found["all"]["count"], found["all"]["unseen"], found["all"]["gptq"]) == (1, 1, None)


def test_an_export_that_lacks_a_module_cannot_be_compared(tmp_path: Path) -> None:
    export = write_checkpoint(tmp_path / "export", {"first.weight": ("BF16", (96, 64), None)}, {}, shards=1)
    with pytest.raises(Refused) as caught:
        compare(Small(), job(Packed("first", 4, 64, True)), open_checkpoint(export), [[1, 2]])
    assert [(problem.code, problem.tensor) for problem in caught.value.problems] == [("not-packed", "first")]


def test_matching_is_silent_where_llm_compressor_finds_what_was_planned() -> None:
    planned = [Packed(name, 4, 64, True) for name in ("first", "second", "idle")]
    assert list(match_problems(Small(), job(*planned))) == []


def test_matching_names_what_would_be_missed_and_what_would_be_packed_besides() -> None:
    planned = [Packed("first", 4, 64, True), Packed("gone", 4, 64, True)]
    found = list(match_problems(Small(), job(*planned, ignore=("second",))))
    assert [(one.code, one.tensor, one.expected) for one in found] == [
        ("modules-differ", "gone", "quantized"),
        ("modules-differ", "idle", "dense"),
    ]


@pytest.mark.parametrize("fallback", [False, True])
def test_recording_gives_the_error_of_the_outputs_and_the_dead_columns(fallback: bool) -> None:
    """GPTQ's loss is half the squared error under the Hessian to whose diagonal the dampening is added."""
    from llmcompressor.modifiers.gptq import base

    torch.manual_seed(0)
    inputs = torch.randn(200, 64)
    inputs[:, 5] = 0
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False))
    weight = model[0].weight.detach()
    hessian = 2 * inputs.T @ inputs / 200
    diagonal = hessian.diagonal().clone()
    diagonal[5] = 1.0  # upstream's stand-in for a dead column
    quantized = weight + 0.01 * torch.randn(32, 64)
    quantized[:, 5] = 0
    wrong = quantized - weight
    wrong[:, 5] = 0
    loss = 0.5 * ((wrong @ (hessian + 0.3 * diagonal.mean() * torch.eye(64))) * wrong).sum()

    def prepared(batch: Any, *rest: Any) -> Any:
        return weight.unsqueeze(0), hessian.unsqueeze(0)

    def quantize(**more: Any) -> Any:
        return quantized.unsqueeze(0), loss.reshape(1), torch.tensor([fallback])

    before = base.prepare_batch, base.quantize_weight
    with recording(model) as recorder:
        assert (base.prepare_batch, base.quantize_weight) != before
        recorder.prepared(prepared, [model[0]], [], {model[0]: hessian}, {})
        recorder.quantized(quantize, percdamp=0.3)
    assert (base.prepare_batch, base.quantize_weight) == before
    found = recorder.records["0"]
    expected = None if fallback else pytest.approx(relative(inputs, weight, quantized), rel=1e-3)
    assert found.error == expected
    assert (found.dead, found.columns, found.fallback) == (1, 64, fallback)
    assert recorder.hessian_bytes == 64 * 64 * 4


@pytest.fixture
def handed(tmp_path: Path) -> Any:
    return build(write_recipe(tmp_path / "recipe"), dense_llama(tmp_path / "base"))


@pytest.mark.parametrize(
    ("change", "allowed", "code"),
    [
        ({}, False, None),
        ({"dead": 127}, False, None),
        ({"dead": 128}, True, "uncalibrated"),
        ({"fallback": True}, False, "rtn-fallback"),
        ({"fallback": True}, True, None),
        ({"loss": float("nan")}, True, "not-finite"),
    ],
)
def test_what_was_not_calibrated_is_refused_by_name(
    change: dict[str, Any], allowed: bool, code: str | None, handed: Any
) -> None:
    modules = {module.name: record() for module in handed.modules} | {UP: record(**change)}
    found = list(result_problems(handed, modules, fallbacks_allowed=allowed))
    assert [(problem.code, problem.tensor) for problem in found] == ([(code, UP)] if code else [])


def test_a_module_of_which_nothing_was_recorded_is_refused(handed: Any) -> None:
    modules = {module.name: record() for module in handed.modules if module.name != UP}
    found = list(result_problems(handed, modules, fallbacks_allowed=True))
    assert [(problem.code, problem.tensor) for problem in found] == [("not-quantized", UP)]


def exported(handed: Any, folder: Path, change: dict[str, Any]) -> Path:
    """An export as planned, packed tensors of zeros, but for what `change` says of some."""
    entries: dict[str, Any] = {}
    for name, ref in handed.base.tensors.items():
        module = name.removesuffix(".weight")
        if module in {one.name for one in handed.modules}:
            entries |= packed(module, *ref.shape, 4, 128)
        else:
            entries[name] = (ref.dtype, ref.shape, None)
    config = dict(handed.base.config) | {"quantization_config": handed.layout.config.value["quantization_config"]}
    return write_checkpoint(folder, {n: e for n, e in (entries | change).items() if e}, config)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({}, None),
        ({f"{UP}.weight_scale": ("BF16", (256, 4), None)}, f"{UP}.weight_scale"),
        ({f"{UP}.weight_g_idx": ("I32", (128,), None)}, f"{UP}.weight_g_idx"),
        ({f"{UP}.weight_shape": None}, f"{UP}.weight_shape"),
    ],
)
def test_an_export_that_is_packed_otherwise_is_refused(
    change: dict[str, Any], place: str | None, handed: Any, tmp_path: Path
) -> None:
    export = open_checkpoint(exported(handed, tmp_path / "export", change))
    problems = mended(handed, Draft.of(export), []).problems
    found = [problem.tensor for problem in problems if problem.code == "export-differs"]
    assert found == ([place] if place else [])


def test_a_job_says_the_same_after_it_was_written(handed: Any, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(handed.job.text())
    assert Job.read(tmp_path) == handed.job
    assert handed.job.text() == build(Path(handed.recipe.folder) / "build.yaml", handed.base.root).job.text()


def test_the_python_shown_makes_the_calls_that_the_job_asks_for(handed: Any) -> None:
    calls = {
        node.func.id: {keyword.arg: keyword.value for keyword in node.keywords}
        for node in ast.walk(ast.parse(script(handed.job)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert ast.literal_eval(calls["GPTQModifier"]["config_groups"]) == handed.job.groups
    assert ast.literal_eval(calls["GPTQModifier"]["ignore"]) == list(handed.job.ignore)
    assert ast.literal_eval(calls["GPTQModifier"]["actorder"]) == "static"
    assert ast.literal_eval(calls["oneshot"]["sequential_targets"]) == [r"re:model\.layers\.\d+$"]
    assert ast.literal_eval(calls["oneshot"]["moe_calibrate_all_experts"]) is True


def test_statistics_conform_to_their_schema_and_add_up(handed: Any) -> None:
    modules = {module.name: record() for module in handed.modules}
    result = {
        "environment": vars(SimpleNamespace(**json.loads(ENVIRONMENT))),
        "calibration": {"sha256": "0" * 64, "report": {}, "record": {}},
        "seconds": {"load": 1.0, "calibrate": 2.0, "save": 3.0},
        "hessian_bytes": 1,
        "peak_memory": 2,
        "modules": modules,
    }
    sums = {"rows": 4, "energy": 4.0, "gptq": 0.04, "rtn": 0.16}
    comparison = {"sequences": 1, "tokens": 9, "modules": dict.fromkeys(modules, sums)}
    document = statistics(handed, result, comparison)
    assert validate(document, "gptq_statistics") == []
    assert validate(statistics(handed, result, None), "gptq_statistics") == []
    family = next(one for one in document["families"] if one["pattern"] == "model.layers.{0-1}.mlp.up_proj")
    assert (family["count"], family["loss"], family["error_mean"], family["seconds"]) == (2, 4.0, 0.1, 1.0)
    assert document["comparison"]["all"] == {"count": 14, "unseen": 0, "worse": 0, "gptq": 0.1, "rtn": 0.2}


ENVIRONMENT = """{"python": "3.11.9", "executable": "/opt/python", "packages": {"torch": "2.13.0"}, "unmet": [],
"has_class": true, "accelerator": null, "accelerator_bytes": 0}"""

"""`quantize` on a real checkpoint, tensor by tensor: against llm-compressor, against the formulas, against decoding."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("llmcompressor")

from building import write_checkpoint  # noqa: E402
from reference import packed, unpacked  # noqa: E402
from writing import State, assert_same_bits, change, config_of, tensors, written  # noqa: E402

from surgery import Group, Scheme, quantize  # noqa: E402

EXPERTS = r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"
BODY = (EXPERTS, r"re:.*self_attn\.[qkvo]_proj$", r"re:.*linear_attn\.(in_proj_qkv|in_proj_z|out_proj)$", "lm_head")
FUSED = "model.language_model.layers.0.mlp.experts."

CASES = {
    "INT4 g32": (BODY, Scheme(4, 32)),
    "INT4 g128": (BODY, Scheme(4, 128)),
    "INT8 g128": (BODY, Scheme(8, 128)),
    "INT8 channel": (BODY, Scheme(8, None)),
    "INT4 g64 asymmetric": (BODY, Scheme(4, 64, False)),
}


@dataclass(frozen=True)
class Built:
    """One case: what it packs, and the folders in both kinds of maths and by llm-compressor."""

    targets: tuple[str, ...]
    scheme: Scheme
    eager: State
    fp32: State
    upstream: State


@pytest.fixture(scope="module")
def awkward_base(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small MoE with what goes wrong at the edges planted in experts, an attention projection and the head."""
    base = tmp_path_factory.mktemp("awkward") / "base"
    shutil.copytree(qwen_moe_base, base)
    for name in (f"{FUSED}gate_up_proj", f"{FUSED}down_proj", "lm_head.weight", "mtp.layers.0.mlp.experts.down_proj"):
        change(base, partial(_plant, name=name), holding=name)
    return base


def _plant(state: State, name: str) -> None:
    matrix = state[name].view(-1, *state[name].shape[-2:])[0]
    columns = torch.arange(matrix.shape[1])
    matrix[0] = 0
    matrix[1, :128] = 0
    matrix[2] = torch.finfo(matrix.dtype).tiny * torch.linspace(-0.9, 0.9, len(columns))
    matrix[3, 5] = 3e4
    matrix[4] = matrix[4].abs()
    matrix[5] = -matrix[5].abs()
    matrix[6] = columns % 16 * 0.5
    matrix[7] = columns % 16 - 7.5


@pytest.fixture(scope="module", params=CASES)
def built(request: pytest.FixtureRequest, awkward_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    targets, scheme = CASES[request.param]
    work = tmp_path_factory.mktemp("built")
    for maths in ("eager", "fp32"):
        written(awkward_base, work / maths, partial(quantize, groups=[Group(targets, scheme)], maths=maths))
    _model_free_ptq(awkward_base, work / "upstream", targets, scheme)
    return Built(targets, scheme, *(tensors(work / name) for name in ("eager", "fp32", "upstream")))


def _model_free_ptq(base: Path, out: Path, targets: tuple[str, ...], scheme: Scheme) -> None:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from llmcompressor import model_free_ptq

    strategy = {"strategy": "group", "group_size": scheme.group_size} if scheme.group_size else {"strategy": "channel"}
    args = QuantizationArgs(num_bits=scheme.bits, type="int", symmetric=scheme.symmetric, dynamic=False, **strategy)
    group = QuantizationScheme(targets=list(targets), weights=args)
    config = QuantizationConfig(config_groups={"group_0": group})
    model_free_ptq(str(base), str(out), config=config, device="cpu", max_workers=1)


def test_eager_maths_equals_llm_compressor_on_a_cpu_in_every_bit_of_every_tensor(built: Built) -> None:
    assert_same_bits(built.eager, built.upstream)


def test_fp32_maths_equals_the_formulas_in_every_bit_of_every_packed_tensor(built: Built, awkward_base: Path) -> None:
    weights = _taken_apart(tensors(awkward_base))
    scheme, checked = built.scheme, 0
    for module in _modules(built.fp32):
        expected = packed(weights[f"{module}.weight"], scheme.bits, scheme.group_size, symmetric=scheme.symmetric)
        assert_same_bits(_parts(built.fp32, module), expected)
        checked += 1
    assert checked == 5 * 8 * 3 + 2 * 4 + 3 * 3 + 1  # experts of 4 layers and MTP, 2 attention, 3 GDN layers, the head


def test_what_is_not_targeted_keeps_its_bytes(built: Built, awkward_base: Path) -> None:
    base = tensors(awkward_base)
    for found in (built.eager, built.fp32):
        kept = {name: tensor for name, tensor in found.items() if ".weight_" not in name}
        assert_same_bits(kept, {name: base[name] for name in kept})
        gone = {f"{module}.weight" for module in _modules(found)}
        assert not gone & found.keys()


def test_compressed_tensors_decodes_what_was_written_to_the_same_weights_as_the_formula(built: Built) -> None:
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**built.scheme.arguments))
    for module in _modules(built.fp32):
        parts = _parts(built.fp32, module)
        decoded = PackedQuantizationCompressor.decompress(parts, scheme)["weight"]
        assert_same_bits({module: decoded}, {module: unpacked(parts, built.scheme.bits, built.scheme.group_size)})


@pytest.mark.parametrize("rows, columns", [(3000, 1024), (70, 65_536)])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(
    "scheme", [Scheme(4, 128), Scheme(4, 64, False), Scheme(8, None), Scheme(8, None, False)], ids=str
)
def test_a_matrix_of_several_blocks_is_packed_as_if_at_once(
    scheme: Scheme, dtype: str, rows: int, columns: int, tmp_path: Path
) -> None:
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    weight = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(5)) * 0.1).to(kinds[dtype])
    raw = weight.view(torch.uint8).numpy().tobytes()
    base = write_checkpoint(tmp_path / "base", {"x.weight": (dtype, (rows, columns), raw)}, {}, shards=1)
    out = written(base, tmp_path / "out", partial(quantize, groups=[Group(("x",), scheme)]))
    expected = packed(weight, scheme.bits, scheme.group_size, symmetric=scheme.symmetric)
    assert_same_bits(_parts(tensors(out), "x"), expected)


def test_the_config_says_what_the_tensors_are(awkward_base: Path, tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    groups = [Group((r"re:.*lm_head$",), Scheme(8, None)), Group((EXPERTS,), Scheme(4, 64, False))]
    out = written(awkward_base, tmp_path / "out", partial(quantize, groups=groups))
    written_config = config_of(out)["quantization_config"]
    parsed = QuantizationConfig.model_validate(written_config)
    head, experts = parsed.config_groups["group_0"], parsed.config_groups["group_1"]
    assert (head.weights.num_bits, head.weights.strategy, head.weights.symmetric) == (8, "channel", True)
    assert (experts.weights.num_bits, experts.weights.group_size, experts.weights.symmetric) == (4, 64, False)
    assert head.targets == ["re:.*lm_head$"]
    assert {parsed.format, head.format, experts.format} == {"pack-quantized"}


def _modules(state: State) -> list[str]:
    return [name.removesuffix(".weight_packed") for name in state if name.endswith(".weight_packed")]


def _parts(state: State, module: str) -> State:
    prefix = f"{module}."
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(f"{prefix}weight_")}


def _taken_apart(state: State) -> State:
    """Fused experts [E, 2I, H] and [E, H, I] as matrices named per expert, gate before up."""
    result = dict(state)
    for name, tensor in state.items():
        owner, _, leaf = name.rpartition(".")
        if leaf == "gate_up_proj":
            for expert, (gate, up) in enumerate(t.chunk(2) for t in tensor):
                result |= {f"{owner}.{expert}.gate_proj.weight": gate, f"{owner}.{expert}.up_proj.weight": up}
        elif leaf == "down_proj" and tensor.ndim == 3:
            result |= {f"{owner}.{expert}.down_proj.weight": matrix for expert, matrix in enumerate(tensor)}
    return result

"""Spellings of quantization_config, good and bad, which every release of compressed-tensors and our schema judge.

`VARIANTS` is the table. What each release says of it is recorded in `data/compressed_tensors_variants.json`, by
`data/collect_compressed_tensors.py`. `STRICTER` names those that our schema refuses although the newest release reads
them, each with the reason.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

INT4: Config = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": 128,
    "dynamic": False,
}
TOKEN: Config = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
FLOAT8: Config = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
HEAD: Config = {"targets": ["re:.*lm_head$"], "weights": INT4 | {"num_bits": 8}}
DROP: Any = object()
"""Stands for a key that is not there."""


def without_dropped(document: Config) -> Config:
    return {key: value for key, value in document.items() if value is not DROP}


def config(**changes: Any) -> Config:
    """A quantization_config as compressed-tensors 0.20 writes it, with some of its keys changed."""
    group = {"targets": ["Linear"], "format": "pack-quantized", "weights": INT4}
    document = {
        "config_groups": {"group_0": group},
        "format": "pack-quantized",
        "ignore": ["re:.*mtp.*", "lm_head"],
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }
    return without_dropped(document | changes)


def group(**changes: Any) -> Config:
    return config(config_groups={"group_0": without_dropped({"targets": ["Linear"], "weights": INT4} | changes)})


def weights(**changes: Any) -> Config:
    return group(weights=without_dropped(INT4 | changes))


def inputs(**changes: Any) -> Config:
    return group(input_activations=without_dropped(TOKEN | changes))


def preset(name: str) -> Config:
    return config(config_groups={name: ["Linear"]})


PRESETS = (
    *(
        "UNQUANTIZED",
        "W8A16",
        "W4A16",
        "W4A16_ASYM",
        "W8A8",
        "INT8",
        "W4A8",
        "W4AFP8",
        "FP8",
        "FP8_DYNAMIC",
        "FP8_BLOCK",
    ),
    *("NVFP4A16", "NVFP4", "MXFP4A16", "MXFP4", "MXFP4XFP8", "MXFP6A16", "MXFP6A8", "MXFP8A16", "MXFP8"),
    *("W2A4", "W2A8", "W2A16", "W3A4", "W3A8", "W3A16", "W4A4", "W5A8", "W5A16", "W6A8", "W6A16", "W7A8", "W7A16"),
)
"""`PRESET_SCHEMES` of compressed-tensors 0.20.1."""

VARIANTS: dict[str, Config] = {
    "plain": config(),
    "int8 head as a second group": config(
        config_groups={"group_0": {"targets": ["Linear"], "weights": INT4}, "group_1": HEAD}
    ),
    "groups named freely": config(
        config_groups={"W4A16": {"targets": ["Linear"], "weights": INT4}, "config_group_0": HEAD}
    ),
    "every key of weights, null where it can be": weights(
        block_structure=None,
        actorder=None,
        scale_dtype=None,
        zp_dtype=None,
        observer="memoryless_minmax",
        observer_kwargs={},
    ),
    "every key but the two dtypes": weights(
        block_structure=None, actorder=None, observer="minmax", observer_kwargs={"averaging_constant": 0.01}
    ),
    "no key of weights": group(weights={}),
    "symmetric left out": weights(symmetric=DROP),
    "type left out": weights(type=DROP),
    "dynamic left out": weights(dynamic=DROP),
    "bits left out": weights(num_bits=DROP),
    "asymmetric": weights(symmetric=False),
    "asymmetric with its dtype": weights(symmetric=False, zp_dtype="torch.int8"),
    "3 bits": weights(num_bits=3),
    "16 bits": weights(num_bits=16),
    "no bits": weights(num_bits=0),
    "negative bits": weights(num_bits=-4),
    "bits of null": weights(num_bits=None),
    "bits as a word": weights(num_bits="four"),
    "bits as digits": weights(num_bits="4"),
    "bits with a point": weights(num_bits=4.0),
    "bits with a fraction": weights(num_bits=4.5),
    "more bits than an integer is packed to": weights(num_bits=64),
    "symmetric as a word": weights(symmetric="maybe"),
    "symmetric as yes": weights(symmetric="yes"),
    "symmetric of null": weights(symmetric=None),
    "unknown type": weights(type="posit"),
    "type of null": weights(type=None),
    "spelled in capitals": weights(type="INT"),
    "group_size 32": weights(group_size=32),
    "group without size": weights(group_size=DROP),
    "group of null": weights(group_size=None),
    "group of zero": weights(group_size=0),
    "group of -1": weights(group_size=-1),
    "group of -2": weights(group_size=-2),
    "group_size as digits": weights(group_size="128"),
    "strategy left out": weights(strategy=DROP),
    "strategy of null": weights(strategy=None),
    "strategy and size left out": weights(strategy=DROP, group_size=DROP),
    "unknown strategy": weights(strategy="row"),
    "channel": weights(strategy="channel", group_size=DROP),
    "channel with -1": weights(strategy="channel", group_size=-1),
    "channel with null": weights(strategy="channel", group_size=None),
    "channel by -1 alone": weights(strategy=DROP, group_size=-1),
    "channel by -1, strategy of null": weights(strategy=None, group_size=-1),
    "channel with a positive group": weights(strategy="channel"),
    "channel with zero": weights(strategy="channel", group_size=0),
    "tensor": weights(strategy="tensor", group_size=DROP),
    "tensor with -1": weights(strategy="tensor", group_size=-1),
    "tensor with a positive group": weights(strategy="tensor"),
    "tensor_group": weights(strategy="tensor_group", group_size=16),
    "tensor_group without size": weights(strategy="tensor_group", group_size=DROP),
    "attn_head weights": weights(strategy="attn_head", group_size=DROP),
    "token weights, dynamic": weights(strategy="token", group_size=DROP, dynamic=True),
    "token weights, static": weights(strategy="token", group_size=DROP),
    "block": weights(strategy="block", group_size=DROP, block_structure=[128, 128]),
    "block as text": weights(strategy="block", group_size=DROP, block_structure="128x128"),
    "block of three": weights(strategy="block", group_size=DROP, block_structure=[1, 2, 3]),
    "block of zero": weights(strategy="block", group_size=DROP, block_structure=[0, 4]),
    "block of fractions": weights(strategy="block", group_size=DROP, block_structure=[1.5, 2]),
    "block as odd text": weights(strategy="block", group_size=DROP, block_structure="128"),
    "block of zero as text": weights(strategy="block", group_size=DROP, block_structure="0x4"),
    "block with a positive group": weights(strategy="block", block_structure=[128, 128]),
    "block without structure": weights(strategy="block", group_size=DROP),
    "structure without block": weights(block_structure=[128, 128]),
    "structure without strategy": weights(strategy=DROP, group_size=DROP, block_structure=[128, 128]),
    "actorder weight": weights(actorder="weight"),
    "actorder static": weights(actorder="static"),
    "actorder false": weights(actorder=False),
    "actorder null": weights(actorder=None),
    "actorder true": weights(actorder=True),
    "actorder group": weights(actorder="group"),
    "actorder dynamic": weights(actorder="dynamic"),
    "actorder in capitals": weights(actorder="WEIGHT"),
    "unknown actorder": weights(actorder="random"),
    "actorder weight by channel": weights(actorder="weight", strategy="channel", group_size=None),
    "actorder static by channel": weights(actorder="static", strategy="channel", group_size=-1),
    "actorder weight by tensor_group": weights(actorder="weight", strategy="tensor_group", group_size=16),
    "actorder group by channel": weights(actorder="group", strategy="channel", group_size=None),
    "scale_dtype": weights(scale_dtype="torch.bfloat16"),
    "scale_dtype without torch": weights(scale_dtype="float32"),
    "scale_dtype null": weights(scale_dtype=None),
    "scale_dtype of no such dtype": weights(scale_dtype="torch.float7"),
    "scale_dtype as a number": weights(scale_dtype=16),
    "zp_dtype": weights(zp_dtype="torch.int8"),
    "zp_dtype null": weights(zp_dtype=None),
    "zp_dtype of seven bits": weights(zp_dtype="torch.int7"),
    "zp_dtype of no such dtype": weights(zp_dtype="torch.word"),
    "unknown key in weights": weights(scale_type="bf16"),
    "float 8": weights(type="float", num_bits=8),
    "float 8 by channel": weights(type="float", num_bits=8, strategy="channel", group_size=DROP),
    "float 4": weights(type="float", num_bits=4, strategy="tensor_group", group_size=16),
    "float 4 with dtypes": weights(type="float", num_bits=4, group_size=32, scale_dtype="torch.uint8"),
    "float 6": weights(type="float", num_bits=6),
    "float 5": weights(type="float", num_bits=5),
    "float 16": weights(type="float", num_bits=16),
    "float 16 with zp_dtype": weights(type="float", num_bits=16, zp_dtype="torch.int8"),
    "float 6 with zp_dtype": weights(type="float", num_bits=6, zp_dtype="torch.float8_e4m3fn"),
    "dynamic weights by group": weights(dynamic=True),
    "dynamic weights by channel": weights(dynamic=True, strategy="channel", group_size=None),
    "dynamic weights by block": weights(dynamic=True, strategy="block", group_size=DROP, block_structure=[128, 128]),
    "dynamic weights by -1": weights(dynamic=True, strategy=DROP, group_size=-1),
    "dynamic local": weights(dynamic="local", strategy="tensor_group", group_size=16),
    "dynamic local by group": weights(dynamic="local"),
    "dynamic local, strategy left out": weights(dynamic="local", strategy=DROP),
    "dynamic null": weights(dynamic=None),
    "unknown dynamic": weights(dynamic="sometimes"),
    "observer": weights(observer="mse"),
    "observer null": weights(observer=None),
    "observer as a number": weights(observer=1),
    "observer arguments null": weights(observer_kwargs=None),
    "observer arguments as a list": weights(observer_kwargs=[]),
    "weights null": group(weights=None),
    "weights left out": group(weights=DROP),
    "weights as text": group(weights="int4"),
    "token activations": inputs(),
    "static token activations": inputs(dynamic=False),
    "token activations, dynamic left out": inputs(dynamic=DROP),
    "channel activations": inputs(strategy="channel", dynamic=DROP),
    "block activations": inputs(strategy="block", dynamic=DROP, block_structure=[1, 128]),
    "attn_head activations": inputs(strategy="attn_head", dynamic=DROP),
    "group activations, dynamic": inputs(strategy="group", group_size=128),
    "group activations, static": inputs(strategy="group", group_size=128, dynamic=False),
    "activations by -1": inputs(strategy=DROP, dynamic=DROP, group_size=-1),
    "activations by tensor, unsaid": inputs(strategy=DROP, dynamic=DROP),
    "local activations": inputs(type="float", num_bits=4, strategy="tensor_group", group_size=16, dynamic="local"),
    "ordered activations": inputs(actorder="weight"),
    "activations with the dtypes of 0.13": inputs(scale_dtype=None, zp_dtype=None),
    "ordered outputs": group(output_activations={"num_bits": 8, "actorder": "weight"}),
    "channel outputs": group(output_activations={"num_bits": 8, "strategy": "channel"}),
    "group format null": group(format=None),
    "group format mixed": group(format="mixed-precision"),
    "group format unknown": group(format="zip"),
    "group format dense": group(format="dense"),
    "group format marlin": group(format="marlin-24"),
    "group format fakequant": group(format="fakequant"),
    "group format nvfp4": group(format="nvfp4-pack-quantized"),
    "group format mxfp4": group(format="mxfp4-pack-quantized"),
    "group format mxfp6": group(format="mxfp6-pack-quantized"),
    "group format mxfp8": group(format="mxfp8-quantized"),
    "targets left out": group(targets=DROP),
    "targets null": group(targets=None),
    "targets as text": group(targets="Linear"),
    "targets of numbers": group(targets=[0]),
    "no target at all": group(targets=[]),
    "empty target": group(targets=[""]),
    "unknown key in group": group(ignore=["lm_head"]),
    **{f"preset {name}": preset(name) for name in PRESETS},
    "preset W5A4": preset("W5A4"),
    "preset W8A4": preset("W8A4"),
    "preset in small letters": preset("w4a16"),
    "no such preset": preset("W9A16"),
    "preset without targets": config(config_groups={"W4A16": []}),
    "groups as a list": config(config_groups=[]),
    "groups left out": config(config_groups=DROP),
    "groups null": config(config_groups=None),
    "no group at all": config(config_groups={}),
    "group null": config(config_groups={"group_0": None}),
    "ignore null": config(ignore=None),
    "ignore left out": config(ignore=DROP),
    "ignore as text": config(ignore="lm_head"),
    "ignore of numbers": config(ignore=[1]),
    "empty ignore entry": config(ignore=[""]),
    "status unknown": config(quantization_status="done"),
    "status decompressed": config(quantization_status="decompressed"),
    "status left out": config(quantization_status=DROP),
    "status null": config(quantization_status=None),
    "ratio": config(global_compression_ratio=1.5),
    "ratio null": config(global_compression_ratio=None),
    "ratio as a word": config(global_compression_ratio="half"),
    "ratio as digits": config(global_compression_ratio="1.5"),
    "kv cache": config(kv_cache_scheme=FLOAT8),
    "kv cache null": config(kv_cache_scheme=None),
    "kv cache by head": config(kv_cache_scheme=FLOAT8 | {"strategy": "attn_head"}),
    "kv cache with a wrong key": config(kv_cache_scheme={"bits": 8}),
    "kv cache with the dtypes of 0.13": config(kv_cache_scheme=FLOAT8 | {"scale_dtype": None, "zp_dtype": None}),
    "mixed precision on top": config(format="mixed-precision"),
    "no format": config(format=DROP),
    "format null": config(format=None),
    "unknown format": config(format="zip"),
    "no quant_method": config(quant_method=DROP),
    "quant_method null": config(quant_method=None),
    "another quant_method": config(quant_method="gptq"),
    "unknown key on top": config(weight_bits=4),
    "run_compressed": config(run_compressed=True),
    "version and empty sections": config(version="0.18.0", sparsity_config={}, transform_config={}),
    "version as a number": config(version=0.18),
    "sparsity": config(sparsity_config={"targets": ["Linear"]}),
    "expert sparsity": config(moe_sparsity_config={"method": "prune", "num_experts": [None, 129, 253]}),
    "expert sparsity null": config(moe_sparsity_config=None),
    "expert sparsity by novices": config(moe_sparsity_config={"method": "novice", "num_experts": [64]}),
    "expert sparsity of an unknown method": config(moe_sparsity_config={"method": "merge", "num_experts": [64]}),
    "expert sparsity without counts": config(moe_sparsity_config={"method": "prune"}),
    "expert sparsity with counts as digits": config(moe_sparsity_config={"method": "prune", "num_experts": ["64"]}),
}

CAPITALS = "only a reader that folds case takes it"
COERCED = "pydantic turns it into what was meant; readers that take JSON as it is do not"

STRICTER: dict[str, str] = {
    "no quant_method": "loaders dispatch on it",
    "another quant_method": "loaders dispatch on it",
    "no format": "compressed-tensors assumes fakequant, under which no engine loads packed weights",
    "unknown format": "no engine has a scheme for it",
    "no group at all": "nothing is quantized, and vLLM finds no scheme",
    "no target at all": "the group is for nothing",
    "empty target": "it names no module",
    "preset without targets": "the group is for nothing",
    "empty ignore entry": "it names no module",
    "channel with zero": "no group is of no columns",
    "zp_dtype of seven bits": "torch has the name, and no safetensors file the type",
    "float 16 with zp_dtype": "no release packs such floats; where zp_dtype is given, none looks",
    "no bits": "no value has no bits",
    "negative bits": "no value has fewer than no bits",
    "more bits than an integer is packed to": "packing has 1 to 16 bits",
    "bits as digits": COERCED,
    "symmetric as yes": COERCED,
    "ratio as digits": COERCED,
    "spelled in capitals": CAPITALS,
    "preset in small letters": CAPITALS,
    "sparsity": "vLLM raises DeprecationWarning: support has been removed",
    "version as a number": "exporters write text, and readers compare it as text",
}

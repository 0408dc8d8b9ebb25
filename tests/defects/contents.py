"""Values that are wrong under sound names and shapes."""

from __future__ import annotations

from random import Random
from typing import Any

from building import int64s

from defects.build import Build, Defect, Edit, defects, filled, flipped, setting, swapped
from defects.sound import BODY, DENSE, DRAFT, EXPERTS, GPTQ, LAYERS, TEXT

NAN, INFINITE, ONE = b"\xc0\x7f", b"\x80\x7f", b"\x80\x3f"
EXPERT = f"{LAYERS}0.mlp.experts.1."
OTHER = f"{LAYERS}0.mlp.experts.2."
UP = "model.layers.0.mlp.up_proj"
GATE = "model.layers.0.mlp.gate_proj"
FULL: dict[str, Any] = {"options": {"level": "full"}}
SAMPLE: dict[str, Any] = {"options": {"level": "sample"}}
BASED: dict[str, Any] = {"options": {"level": "full"}, "based": True}


def nibbles(module: str) -> Edit:
    """The two values of each byte exchanged."""

    def change(data: bytearray) -> None:
        data[:] = bytes((one >> 4) | (one & 15) << 4 for one in data)

    return flipped(f"{module}.weight_packed", change)


def complement(module: str) -> Edit:
    """Values in two's complement instead of with an offset."""
    return flipped(f"{module}.weight_packed", lambda data: data.__setitem__(slice(None), bytes(b ^ 0x88 for b in data)))


def words(module: str) -> Edit:
    """The values of each word in the opposite order."""

    def change(data: bytearray) -> None:
        turned = bytes((one >> 4) | (one & 15) << 4 for one in data)
        data[:] = b"".join(turned[i : i + 4][::-1] for i in range(0, len(data), 4))

    return flipped(f"{module}.weight_packed", change)


def bit(name: str, position: int = 0) -> Edit:
    """One bit of the tensor flipped."""
    return flipped(name, lambda data: data.__setitem__(position, data[position] ^ 0x40))


def scales(module: str, change: str) -> Edit:
    """Scales doubled (the exponent's lowest bit is bit 7 of a BF16), or moved by one group."""

    def double(data: bytearray) -> None:
        for place in range(0, len(data), 2):
            value = int.from_bytes(data[place : place + 2], "little") + 0x80
            data[place : place + 2] = value.to_bytes(2, "little")

    def roll(data: bytearray) -> None:
        data[:] = data[2:] + data[:2]

    return flipped(f"{module}.weight_scale", double if change == "doubled" else roll)


def rounded(name: str) -> Edit:
    """Every other value with its last bit flipped, as rounding elsewhere does."""

    def change(data: bytearray) -> None:
        data[::4] = bytes(one ^ 1 for one in data[::4])

    return flipped(name, change)


def same(source: str, target: str) -> Edit:
    """One module's content in another's place."""

    def edit(build: Build) -> None:
        for part in ("weight_packed", "weight_scale"):
            build.entries[f"{target}.{part}"] = build.entries[f"{source}.{part}"]

    return edit


def padded(build: Build) -> None:
    """An o_proj of 132 columns in one scale a row, with bits set behind the last one of each row."""
    setting("head_dim", value=33)(build)
    setting("num_attention_heads", value=4)(build)
    group = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel", "group_size": -1}
    build.quantization["config_groups"]["group_0"]["weights"] = group
    sizes = {"q_proj": (132, 128), "k_proj": (66, 128), "v_proj": (66, 128), "o_proj": (128, 132)}
    for module in build.modules("_proj"):
        rows, columns = sizes.get(module.rpartition(".")[2], (0, 0))
        if not rows:
            rows, wide = build.entries[f"{module}.weight_packed"][1]
            columns = wide * 8
        width, filler = -(-columns // 8), b"\x77" * (-(-columns // 8) * 4 - columns // 2)
        data = b"".join(Random(row).randbytes(columns // 2) + filler for row in range(rows))
        build.entries[f"{module}.weight_packed"] = ("I32", (rows, width), data)
        build.entries[f"{module}.weight_scale"] = ("BF16", (rows, 1), ONE * rows)
        build.entries[f"{module}.weight_shape"] = ("I64", (2,), int64s(rows, columns))


VALUES = [
    *defects(
        "T06",
        DENSE,
        {
            "weight_shape of a padded weight": filled(f"{UP}.weight_shape", int64s(256, 160)),
            "weight_shape turned": filled(f"{UP}.weight_shape", int64s(128, 256)),
            "weight_shape of zeros": filled(f"{UP}.weight_shape", int64s(0, 0)),
        },
        **FULL,
    ),
    *defects(
        "T06",
        EXPERTS,
        {"weight_shape of the fused parameter": filled(f"{EXPERT}up_proj.weight_shape", int64s(512, 128))},
        **SAMPLE,
    ),
    *defects(
        "N01",
        DENSE,
        {
            "a scale that is NaN": filled(f"{UP}.weight_scale", NAN, 1),
            "an infinite scale": filled(f"{UP}.weight_scale", INFINITE, 1),
            "a scale of zero": filled(f"{UP}.weight_scale", bytes(2), 1),
            "a negative scale": filled(f"{UP}.weight_scale", b"\x80\xbf", 1),
        },
        **FULL,
    ),
    *defects("N01", BODY, {"the head's scales are NaN": filled("lm_head.weight_scale", NAN)}, **SAMPLE),
    *defects("N01", EXPERTS, {"an expert's scale is NaN": filled(f"{EXPERT}down_proj.weight_scale", NAN, 1)}, **BASED),
    *defects(
        "N02",
        DENSE,
        {
            "a norm with NaN": filled("model.norm.weight", NAN, 1),
            "an infinite embedding": filled("model.embed_tokens.weight", INFINITE, 3),
        },
        **FULL,
    ),
    *defects(
        "N02",
        EXPERTS,
        {
            "a router with NaN": filled(f"{LAYERS}0.mlp.gate.weight", NAN, 1),
            "an MTP norm with NaN": filled("mtp.norm.weight", NAN, 1),
        },
        **FULL,
    ),
    *defects(
        "N03",
        DENSE,
        {
            "packed weights all zero": filled(f"{UP}.weight_packed", b"\x88"),
            "packed words all empty": filled(f"{UP}.weight_packed", b"\x00"),
        },
        **FULL,
    ),
    *defects(
        "N03",
        EXPERTS,
        {
            "two experts alike": same(f"{EXPERT}up_proj", f"{OTHER}up_proj"),
            "a dead expert": filled(f"{EXPERT}down_proj.weight_packed", b"\x88"),
        },
        **FULL,
    ),
    *defects("N03", GPTQ, {"an expert twice": same(f"{EXPERT}gate_proj", f"{OTHER}gate_proj")}, **SAMPLE),
    *defects(
        "N04",
        EXPERTS,
        {
            "nibbles swapped": nibbles(f"{EXPERT}up_proj"),
            "words in reverse": words(f"{EXPERT}up_proj"),
            "two's complement": complement(f"{EXPERT}up_proj"),
            "scales doubled": scales(f"{EXPERT}up_proj", "doubled"),
            "scales one group on": scales(f"{EXPERT}up_proj", "moved"),
            "one bit": bit(f"{EXPERT}up_proj.weight_packed"),
            "all weights zero": filled(f"{EXPERT}up_proj.weight_packed", b"\x88"),
        },
        **BASED,
    ),
    *defects(
        "N04",
        BODY,
        {"the head's words in reverse": words("lm_head"), "the head's scales doubled": scales("lm_head", "doubled")},
        **BASED,
    ),
    *defects("N04", GPTQ, {"scales of q_proj doubled": scales(f"{LAYERS}1.self_attn.q_proj", "doubled")}, **BASED),
    *defects(
        "N05",
        EXPERTS,
        {
            "gate and up exchanged": swapped(f"{EXPERT}gate_proj", f"{EXPERT}up_proj"),
            "two experts exchanged": swapped(f"{EXPERT}down_proj", f"{OTHER}down_proj"),
            "an expert of another layer": same(f"{LAYERS}1.mlp.experts.1.up_proj", f"{EXPERT}up_proj"),
            "an expert twice": same(f"{EXPERT}up_proj", f"{OTHER}up_proj"),
            "gate and up of the MTP head exchanged": swapped(
                f"{DRAFT}mlp.experts.0.gate_proj", f"{DRAFT}mlp.experts.0.up_proj"
            ),
        },
        **BASED,
    ),
    *defects(
        "N05",
        BODY,
        {"k_proj and v_proj exchanged": swapped(f"{LAYERS}1.self_attn.k_proj", f"{LAYERS}1.self_attn.v_proj")},
        **BASED,
    ),
    *defects(
        "N06",
        EXPERTS,
        {
            "a norm written back rounded": rounded(f"{LAYERS}0.input_layernorm.weight"),
            "a bit of the embedding": bit(f"{TEXT}embed_tokens.weight"),
            "another router": filled(f"{LAYERS}1.mlp.gate.weight", ONE),
            "the vision tower's bias lost": filled("model.visual.blocks.0.attn.qkv.bias", bytes(2)),
            "the state reset": filled(f"{LAYERS}0.linear_attn.A_log", bytes(2)),
        },
        **BASED,
    ),
    *defects("N06", GPTQ, {"norms written back rounded": rounded(f"{LAYERS}1.self_attn.q_norm.weight")}, **BASED),
    *defects(
        "M06",
        BODY,
        {
            "mtp.fc rounded": rounded("mtp.fc.weight"),
            "MTP norms reset": filled("mtp.norm.weight", ONE),
            "another revision's experts": rounded(f"{DRAFT}mlp.experts.down_proj"),
        },
        **BASED,
    ),
    *defects(
        "M07",
        BODY,
        {
            "mtp.fc all zero": filled("mtp.fc.weight", bytes(2)),
            "norms all one": filled("mtp.pre_fc_norm_hidden.weight", ONE),
            "norms beyond sense": filled("mtp.norm.weight", b"\x80\x4f", 2),
        },
        **FULL,
    ),
    *defects("M07", GPTQ, {"experts all zero": filled(f"{DRAFT}mlp.experts.gate_up_proj", bytes(2))}, **FULL),
    *defects(
        "N07",
        DENSE,
        {
            "two's complement": complement(UP),
            "an offset of four": flipped(
                f"{UP}.weight_packed",
                lambda d: d.__setitem__(
                    slice(None), bytes(min((b & 15) + 4, 15) | min((b >> 4) + 4, 15) << 4 for b in d)
                ),
            ),
        },
        **FULL,
    ),
    *defects("N07", BODY, {"two's complement in an expert": complement(f"{EXPERT}down_proj")}, **SAMPLE),
    Defect("bits behind the last column", DENSE, "N08", edit=padded, **FULL),
]


ALL: list[Defect] = VALUES

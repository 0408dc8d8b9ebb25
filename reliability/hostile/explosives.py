"""What the bombs are made of: headers, indexes, configs, cards, recipes and schemas, each in a size of 1 or less."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliability.fuzzing.ground import INDEX

Fill = Callable[[Path, float], None]
Text = Callable[[float], str]
"""A text in a size of 1 or less."""


@dataclass(frozen=True)
class Bomb:
    """`fill` puts it into a sound checkpoint; `words` are the command."""

    name: str
    fill: Fill
    words: Sequence[str] = ("verify", "{model}")


def times(count: int, scale: float) -> int:
    return max(int(count * scale), 2)


def many(count: int, piece: str, before: str = "", behind: str = "") -> Text:
    """`piece` so many times."""
    return lambda scale: before + piece * times(count, scale) + behind


def members(count: int, piece: str, before: str = "{", behind: str = "}", modulus: int = 1 << 30) -> Text:
    """Members with a number in each where `piece` has a #."""
    return lambda scale: (
        before + ",".join(piece.replace("#", f"{n % modulus}") for n in range(times(count, scale))) + behind
    )


def header(text: Text, data: int = 0) -> Fill:
    """A checkpoint of one file with this header, and so many bytes of data."""

    def fill(model: Path, scale: float) -> None:
        for path in (*model.glob("*.safetensors"), model / INDEX):
            path.unlink()
        raw = text(scale).encode()
        (model / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(data))

    return fill


def document(name: str, text: Text) -> Fill:
    return lambda model, scale: write(model / name, text(scale))


def index(text: Text) -> Fill:
    """An index with this map."""
    return document(INDEX, lambda scale: f'{{"metadata":{{}},"weight_map":{text(scale)}}}')


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="surrogatepass")


def config(**members: Any) -> Fill:
    """config.json with these members; a function is called with the size."""

    def fill(model: Path, scale: float) -> None:
        known = json.loads((model / "config.json").read_text())
        told = {key: value(scale) if callable(value) else value for key, value in members.items()}
        write(model / "config.json", json.dumps(known | told))

    return fill


def spelled(key: str, number: str) -> Fill:
    """config.json with a number that only text can spell."""

    def fill(model: Path, scale: float) -> None:
        known = json.loads((model / "config.json").read_text())
        write(model / "config.json", json.dumps({**known, key: "@"}).replace('"@"', number))

    return fill


def quantization(**members: Any) -> Fill:
    """As `config`, of the quantization_config."""

    def fill(model: Path, scale: float) -> None:
        known = json.loads((model / "config.json").read_text())
        told = {key: value(scale) if callable(value) else value for key, value in members.items()}
        known["quantization_config"] |= told
        write(model / "config.json", json.dumps(known))

    return fill


def entries(count: int, piece: str) -> Callable[[float], list[str]]:
    return lambda scale: [piece.replace("#", str(number)) for number in range(times(count, scale))]


def groups(count: int) -> Callable[[float], dict[str, Any]]:
    return lambda scale: {
        f"g{n}": {"targets": [f"t{n}"], "weights": {"num_bits": 4}} for n in range(times(count, scale))
    }


def schema(members: dict[str, Any]) -> Fill:
    return document("schema.json", lambda scale: json.dumps(members))


def doubling(levels: int) -> dict[str, Any]:
    """A schema whose every level refers twice to the next."""
    steps = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**steps, f"d{levels}": {"type": "object"}}, "$ref": "#/$defs/d0"}


def laughs(scale: float) -> str:
    """YAML that is ten lines, and a billion values."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]")
    return "---\n" + "\n".join(lines) + "\nbase_model: *i\ntags: *i\nlicense: *i\n---\n"


def front(text: Text) -> Fill:
    return document("README.md", lambda scale: f"---\n{text(scale)}\n---\n")


def recipe(text: Text) -> Fill:
    return document("recipe.yaml", text)


JUDGED = ("verify", "{model}", "--schema", "{model}/schema.json")
CARD = ("card", "{model}", "--dry-run")
MANIFEST = ("manifest", "verify", "{model}")
RUN = ("run", "{model}/recipe.yaml", "{model}", "--dry-run")
ENTRY = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
EMPTY = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
MOST = 16384
"""Layers or experts that a config may have."""

MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_experts": MOST,
    "num_hidden_layers": MOST,
    "moe_intermediate_size": 64,
}
MISSING: dict[str, Any] = {**MOE, "num_hidden_layers": 10, "num_experts": lambda scale: times(MOST, scale)}
NINES = "9" * 4300
OFFSETS = f'{{"a":{{"dtype":"F32","shape":[1],"data_offsets":[0,{NINES}]}}}}'
TOKENS = '{"added_tokens_decoder":'
ROWS = '{"shards":{"a.safetensors":{"tensors":{'
NO_END = {
    "properties": {"modules": {"propertyNames": {"pattern": "^([a-z_.]+)+$x"}}, "family": {"pattern": "^(l+a*m*)+$x"}}
}

HEADERS = (
    Bomb("header: 100 MB of empty lists", header(many(33_000_000, "[],", '{"a":[', "[]]}"))),
    Bomb("header: 100 MB of blanks", header(many(99_000_000, " ", "{}"))),
    Bomb("header: 5 million levels", header(many(5_000_000, "[", '{"a":'))),
    Bomb("header: 1,600,000 times one key", header(members(1_600_000, '"a":0'))),
    Bomb("header: 700,000 keys, each twice", header(members(1_400_000, '"#":0', modulus=700_000))),
    Bomb("header: 2 million malformed entries", header(members(2_000_000, '"#":0'))),
    Bomb("header: a million tensors of nothing", header(members(1_000_000, f'"#":{EMPTY}'))),
    Bomb("header: a name of 50 MB", header(many(50_000_000, "a", '{"', f'":{ENTRY}}}'), 4)),
    Bomb("header: a shape of 10 million", header(many(10_000_000, "1,", '{"a":{"dtype":"F32","shape":[', "1]}}"), 4)),
    Bomb(
        "header: a dtype of 20 MB",
        header(many(20_000_000, "F", '{"a":{"dtype":"', '","shape":[],"data_offsets":[0,4]}}'), 4),
    ),
    Bomb("header: a number of a million digits", header(many(1_000_000, "9", '{"a":', "}"))),
    Bomb("header: offsets of 4,300 digits", header(lambda scale: OFFSETS)),
    Bomb("header: 1e9999", header(lambda scale: '{"a":1e9999}')),
    Bomb("header: a string of 90 MB beside -0", header(many(90_000_000, "x", '{"__metadata__":{"a":"', '"},"a":-0}'))),
    Bomb(
        "header: 45 million escapes beside -0", header(many(45_000_000, "\\n", '{"__metadata__":{"a":"', '"},"a":-0}'))
    ),
    Bomb("header: 5 million words of metadata", header(members(5_000_000, '"#":""', '{"__metadata__":{', "}}"))),
)

DOCUMENTS = (
    Bomb("index: 3 million tensors", index(members(3_000_000, '"#":"m.safetensors"'))),
    Bomb("index: 300,000 shards", index(members(300_000, '"#":"#.safetensors"'))),
    Bomb("index: a million names that lead out", index(members(1_000_000, '"#":"../#.safetensors"'))),
    Bomb("index: a million lists for names", index(members(1_000_000, '"#":[]'))),
    Bomb("index: 5 million times one key", index(members(5_000_000, '"a":"m.safetensors"'))),
    Bomb("index: a name of 50 MB", index(many(50_000_000, "a", '{"', '":"m.safetensors"}'))),
    Bomb("config: 16,384 layers of 16,384 experts", config(**MOE)),
    Bomb("config: the same, laid out", config(**MOE), ("layout", "{model}")),
    Bomb("config: 490,000 tensors that are not there", config(**MISSING)),
    Bomb("config: a vocabulary of 4,300 digits", spelled("vocab_size", NINES)),
    Bomb("config: heads of 100 digits", spelled("num_attention_heads", "9" * 100)),
    Bomb("config: a million ignore entries", quantization(ignore=entries(1_000_000, "a.#"))),
    Bomb("config: 400,000 ignore entries", quantization(ignore=entries(400_000, "a.#"))),
    Bomb("config: 100,000 regular expressions", quantization(ignore=entries(100_000, "re:.*x#.*"))),
    Bomb("config: 4,000 regular expressions", quantization(ignore=entries(4_000, "re:.*x.*y#.*z"))),
    Bomb("config: 300,000 groups", quantization(config_groups=groups(300_000))),
    Bomb("config: 4,000 groups", quantization(config_groups=groups(4_000))),
    Bomb(
        "config: a group's name of 50 MB",
        quantization(config_groups=lambda s: {"k" * times(50_000_000, s): {"targets": []}}),
    ),
    Bomb("config: an expression of 50 MB", quantization(ignore=lambda s: ["re:" + "k" * times(50_000_000, s)])),
    Bomb("config: an expression of 12,000 groups", quantization(ignore=lambda s: ["re:" + "(a|b)" * times(12_000, s)])),
    Bomb("config: 100 MB of empty lists", document("config.json", many(33_000_000, "[],", '{"a":[', "[]]}"))),
    Bomb("config: 135 MB", document("config.json", many(135_000_000, "a", '{"a":"', '"}'))),
    Bomb("config: a million architectures", config(architectures=entries(1_000_000, "x" * 30))),
    Bomb(
        "config: a million types of layers",
        config(model_type="qwen3_next", layer_types=entries(1_000_000, "full_attention")),
    ),
    Bomb(
        "tokens: a number of 4,300 digits",
        document("tokenizer_config.json", lambda s: f'{TOKENS}{{"{NINES}9":{{}}}}}}'),
    ),
    Bomb("tokens: a million", document("tokenizer_config.json", members(1_000_000, '"#":{}', TOKENS + "{", "}}"))),
    Bomb("generation_config: 5 million levels", document("generation_config.json", many(5_000_000, "["))),
    Bomb("generation_config: 200 MB", document("generation_config.json", many(200_000_000, "a", '{"a":"', '"}'))),
    Bomb(
        "manifest: 60 MB of empty lists",
        document("ckpt.manifest.json", many(20_000_000, "[],", '{"a":[', "[]]}")),
        MANIFEST,
    ),
    Bomb(
        "manifest: 2 million malformed rows",
        document("ckpt.manifest.json", members(2_000_000, '"#":[1]', ROWS, "}}}}")),
        MANIFEST,
    ),
)

WRITTEN = (
    Bomb("README: 16 MB of empty lines", document("README.md", many(16_000_000, "\n", "x", "x")), CARD),
    Bomb("README: a billion laughs", document("README.md", laughs), CARD),
    Bomb("README: a number to base 60", front(many(80_000, ":59", "license: 1")), CARD),
    Bomb("README: front matter of 25,000 keys", front(members(25_000, "k#: 1", "{", "}")), CARD),
    Bomb("README: front matter of many levels", front(many(200_000, "[", "a: ")), CARD),
    Bomb("README: 700,000 damaged markers", document("README.md", many(700_000, "<!-- ckpt:card x -->\n")), CARD),
    Bomb("recipe: a million levels", recipe(many(1_000_000, "[")), RUN),
    Bomb("recipe: a number to base 60", recipe(many(300_000, ":59", "title: 1")), RUN),
    Bomb("recipe: a number of a million digits", recipe(many(1_000_000, "9", "title: ")), RUN),
    Bomb("recipe: 1e9999", recipe(lambda scale: "title: 1.0e+9999"), RUN),
    Bomb("recipe: 80,000 unknown keys", recipe(members(80_000, "a#: 1")), RUN),
    Bomb("recipe: aliases", recipe(lambda scale: "a: &a [1]\nb: *a\n"), RUN),
    Bomb("recipe: 300,000 dashes", recipe(many(300_000, "- ")), RUN),
    Bomb("recipe: 4 MB", recipe(many(4_000_000, "#")), RUN),
    Bomb("schema: refers to itself", schema({"$ref": "#"}), JUDGED),
    Bomb("schema: refers to itself dynamically", schema({"$dynamicRef": "#x", "$dynamicAnchor": "x"}), JUDGED),
    Bomb("schema: refers to the network", schema({"$ref": "http://127.0.0.1:9/x"}), JUDGED),
    Bomb("schema: refers to a file", schema({"$ref": "file:///etc/passwd"}), JUDGED),
    Bomb("schema: 40 doublings", schema(doubling(40)), JUDGED),
    Bomb("schema: patterns without end", schema(NO_END), JUDGED),
    Bomb("schema: 14 MB of levels", document("schema.json", many(2_000_000, '{"not":')), JUDGED),
)

BOMBS = HEADERS + DOCUMENTS + WRITTEN

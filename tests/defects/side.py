"""config.json as far as it describes the model, and the files beside the weights."""

from __future__ import annotations

from typing import Any

from defects.build import Build, Defect, Edit, damages, defects, setting, side_file, unset, without_file
from defects.files import text
from defects.sound import BODY, DENSE, EXPERTS, FP8, GPTQ

TEXT = "text_config"


def tokenizer(**values: Any) -> Edit:
    return lambda build: build.files["tokenizer_config.json"].update(values)


def based(rule: str, table: dict[str, Edit], **details: Any) -> list[Defect]:
    return defects(rule, BODY, table, based=True, **details)


def vision(**values: Any) -> Edit:
    return lambda build: build.config["vision_config"].update(values)


def no_template(build: Build) -> None:
    del build.files["chat_template.jinja"]


CONFIG = [
    *defects(
        "X01",
        DENSE,
        {
            "float16 over BF16 weights": setting("dtype", value="float16"),
            "dtype and torch_dtype differ": setting("torch_dtype", value="float16"),
        },
    ),
    *defects("X01", BODY, {"top level and text_config differ": setting("dtype", value="float16")}),
    *defects("X01", FP8, {"float32 over BF16": setting("dtype", value="float32")}),
    *based(
        "X02",
        {
            "another class of the family": setting("architectures", value=["Qwen3VLMoeForConditionalGeneration"]),
            "patches of another size": vision(num_heads=4),
        },
    ),
    *based(
        "X03",
        {
            "fewer experts a token": setting(TEXT, "num_experts_per_tok", value=1),
            "another context length": setting(TEXT, "max_position_embeddings", value=4096),
            "a lost key": unset("image_token_id"),
            "other rotary parameters": setting(TEXT, "rope_parameters", value={"rope_theta": 10000.0}),
        },
    ),
    *defects(
        "X08",
        DENSE,
        {
            "a path of some machine": setting("_name_or_path", value="/home/me/models/llama"),
            "a path of Windows": setting("_name_or_path", value="C:\\models\\llama"),
            "code of its own": setting("auto_map", value={"AutoModel": "modeling.Model"}),
        },
    ),
    *defects("X08", FP8, {"a relative path": setting("_name_or_path", value="./out")}),
]

TOKENS = [
    *based(
        "X04",
        {
            "another tokenizer": side_file(
                "tokenizer.json", {"version": "1.0", "model": {"type": "BPE", "vocab": {"b": 0}}}
            ),
            "the tokenizer written anew": side_file(
                "tokenizer.json", '{"version":"1.0","model":{"type":"BPE","vocab":{"a":0}}}'
            ),
            "another chat template": side_file("chat_template.jinja", "{{ prompt }}\n"),
            "another tokenizer class": tokenizer(tokenizer_class="Qwen2TokenizerFast"),
        },
    ),
    Defect("no tokenizer", BODY, "X04", damage=without_file("tokenizer.json"), based=True),
    *defects("X04", DENSE, {"an end token beyond the vocabulary": setting("eos_token_id", value=64)}),
    *defects(
        "X04",
        EXPERTS,
        {
            "an image token beyond the vocabulary": setting("image_token_id", value=64),
            "an added token beyond the vocabulary": tokenizer(added_tokens_decoder={"64": {}}),
        },
    ),
    *damages(
        "X04",
        DENSE,
        {
            "tokenizer settings that are no JSON": text("tokenizer_config.json", "{"),
            "generation settings that are a list": text("generation_config.json", "[]"),
        },
    ),
    *defects(
        "X05",
        EXPERTS,
        {
            "the class that transformers 5 writes": tokenizer(tokenizer_class="TokenizersBackend"),
            "extra_special_tokens as a list": tokenizer(extra_special_tokens=["<|im_end|>"]),
        },
    ),
    Defect("no generation_config", DENSE, "X06", damage=without_file("generation_config.json")),
    Defect("no generation_config", BODY, "X06", damage=without_file("generation_config.json"), based=True),
    *defects(
        "X06",
        EXPERTS,
        {"the end token of config.json lost": side_file("generation_config.json", {"eos_token_id": [3]})},
    ),
    Defect("no preprocessor", BODY, "X07", damage=without_file("preprocessor_config.json")),
    Defect("no video preprocessor", BODY, "X07", damage=without_file("video_preprocessor_config.json"), based=True),
    *defects(
        "X07",
        EXPERTS,
        {
            "a preprocessor without its class": side_file("preprocessor_config.json", {"size": 1}),
            "no chat template": no_template,
        },
    ),
    Defect("no licence", BODY, "X09", damage=without_file("LICENSE"), based=True),
    *based("X09", {"another licence": side_file("LICENSE", "Other terms.\n")}),
    *defects("X07", GPTQ, {"no chat template, and the base has one": no_template}, based=True),
]

ALL: list[Defect] = [*CONFIG, *TOKENS]

"""The files that stand beside the shards of a Qwen release: tokenizer, chat template, processors, card, licence.

Small, but real where it counts: the tokenizer is a byte-level BPE that transformers loads, special tokens keep the
order and distance they have upstream, and the JSON files are formatted as differently from each other as upstream's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE_VOCABULARY = 480
# Order and therefore relative ids as in Qwen3.6: <|endoftext|> is 248044, <|image_pad|> 248056.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

CARD = """\
---
license: apache-2.0
pipeline_tag: image-text-to-text
---

# A small model in the shape of a large one

Random weights in the layout of a published mixture-of-experts release. It answers nothing sensible: it exists so
that tools which edit and check checkpoints have something whole to work on.
"""

LICENCE = """\
                                 Apache License
                           Version 2.0, January 2004
                        http://www.apache.org/licenses/
"""

CORPUS = (
    CARD,
    "A checkpoint holds the weights of a model, and a shard holds a part of the checkpoint.",
    "The index says in which shard a tensor lies; the header says where in that shard it begins and where it ends.",
    "What is the capital of France? The capital of France is Paris. What is the capital of Italy? It is Rome.",
    "The quick brown fox jumps over the lazy dog, while five boxing wizards jump quickly over the frozen lake.",
    "Experts are chosen by a router; every token visits eight of them, and the shared expert besides.",
    "def forward(self, hidden_states):\n    return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))\n",
    "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve; 1 2 3 4 5 6 7 8 9 10 11 12.",
)


def write_side_files(folder: Path, *, first_special_id: int = BASE_VOCABULARY) -> None:
    """Write every side file but generation_config.json, with `<|endoftext|>` at id `first_special_id`."""
    _write_tokenizer(folder, first_special_id)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(first_special_id))
    _write_json(
        folder / "preprocessor_config.json", _processor_config("image_processor_type", "Qwen2VLImageProcessorFast")
    )
    _write_json(
        folder / "video_preprocessor_config.json", _processor_config("video_processor_type", "Qwen3VLVideoProcessor")
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "README.md").write_text(CARD)
    (folder / "LICENSE").write_text(LICENCE)


def _write_tokenizer(folder: Path, first_special_id: int) -> None:
    trained = _train_bpe()
    model = trained["model"]
    # tokenizers renumbers an added token whose id leaves a gap, unless the model's own vocabulary has it.
    model["vocab"] |= {token: first_special_id + i for i, token in enumerate(SPECIAL_TOKENS)}
    trained["added_tokens"] = [{"id": model["vocab"][token], **_added_token(token)} for token in SPECIAL_TOKENS]
    (folder / "tokenizer.json").write_text(json.dumps(trained, indent=2, ensure_ascii=False))
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], separators=(",", ":"), ensure_ascii=False))
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + merges)


def _train_bpe() -> dict[str, Any]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    trained: dict[str, Any] = json.loads(tokenizer.to_str())
    return trained


def _added_token(token: str) -> dict[str, Any]:
    return {
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _tokenizer_config(first_special_id: int) -> dict[str, Any]:
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(first_special_id + i): _added_token(token) for i, token in enumerate(SPECIAL_TOKENS)
        },
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
        "add_bos_token": False,
    }


def _processor_config(kind: str, name: str) -> dict[str, Any]:
    return {
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
        kind: name,
    }


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=4) + "\n")

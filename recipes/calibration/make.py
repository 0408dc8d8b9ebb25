"""Make the shipped calibration texts anew: SmolLM2-135M-Instruct answers what `prompts.yaml` asks.

`python -m recipes.calibration.make MODEL OUT`, where MODEL is what `python -m demo.smollm2 export MODEL` writes and OUT
a folder. Sampling is seeded; another processor or torch rounds otherwise, so it words other answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from typing import Any

Message = dict[str, str]

SEED = 20
BATCH = 24
LONGEST_ANSWER = {"dialogue": 130, "general": 300}
"""Tokens; an answer that reaches it is cut behind its last whole sentence or line."""

SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 40, "repetition_penalty": 1.1}
ENDS = ".!?\n。！？؟।"  # noqa: RUF001 of several scripts
FOLLOW_UPS = 2

LEFT_OUT = ("“休”这个字是什么意思？",)  # noqa: RUF001 as it stands in prompts.yaml
"""First questions of conversations that are not kept: answers that nobody should be shown."""


class Conversation:
    """A conversation that grows: the user's turns still to come, and what was said so far."""

    def __init__(self, kind: str, asks: list[str], system: str | None = None) -> None:
        self.kind = kind
        self.asks = asks
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def ask(self) -> None:
        self.messages.append({"role": "user", "content": self.asks.pop(0)})

    def hear(self, answer: str) -> None:
        self.messages.append({"role": "assistant", "content": answer})


def conversations() -> list[Conversation]:
    """Every conversation that `prompts.yaml` begins."""
    import yaml

    prompts = yaml.safe_load((files("recipes.calibration") / "prompts.yaml").read_text(encoding="utf-8"))
    follow_ups = cycle(prompts["follow_ups"])
    dialogues = [
        Conversation("dialogue", [*asks, *islice(follow_ups, persona.get("follow_ups", FOLLOW_UPS))], persona["system"])
        for persona in prompts["personas"]
        for asks in persona["asks"]
    ]
    return dialogues + [Conversation("general", [ask]) for ask in prompts["general"]]


def converse(model: Path, talks: list[Conversation]) -> None:
    """Let the model in folder `model` answer turn after turn, conversations of like length side by side."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # as many as every machine has: the sums of several threads round otherwise
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    while waiting := [talk for talk in talks if talk.asks]:
        for talk in waiting:
            talk.ask()
        for batch in _batches(waiting):
            _answer(network, tokenizer, batch)
            print(f"{len(batch)} answers", file=sys.stderr)


def _batches(talks: list[Conversation]) -> Iterator[list[Conversation]]:
    ordered = sorted(talks, key=lambda talk: (talk.kind, len(json.dumps(talk.messages))))
    for kind in LONGEST_ANSWER:
        alike = [talk for talk in ordered if talk.kind == kind]
        for begin in range(0, len(alike), BATCH):
            yield alike[begin : begin + BATCH]


def _answer(network: Any, tokenizer: Any, batch: list[Conversation]) -> None:
    """One more assistant turn for every conversation of the batch, all of one kind."""
    import torch

    asked = tokenizer.apply_chat_template(
        [talk.messages for talk in batch],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
    )
    longest = LONGEST_ANSWER[batch[0].kind]
    with torch.no_grad():
        tokens = network.generate(**asked, **SAMPLING, max_new_tokens=longest, min_new_tokens=4)
    for talk, row in zip(batch, tokens[:, asked["input_ids"].shape[1] :], strict=True):
        text = tokenizer.decode(row, skip_special_tokens=True)
        ended = tokenizer.eos_token_id in row.tolist()
        talk.hear((text if ended else _whole(text)).strip())


def _whole(text: str) -> str:
    """`text` up to its last sentence or line that is whole; all of it where there is none."""
    end = max(text.rfind(mark) for mark in ENDS)
    return text[: end + 1] if end > 0 else text


def main(arguments: list[str]) -> None:
    """Write one JSON document a line: `dialogue.jsonl` and `general.jsonl`."""
    if len(arguments) != 2:
        raise SystemExit("usage: python -m recipes.calibration.make MODEL OUT")
    model, out = map(Path, arguments)
    talks = conversations()
    converse(model, talks)
    talks = [talk for talk in talks if not any(m["content"] in LEFT_OUT for m in talk.messages)]
    for kind in LONGEST_ANSWER:
        lines = [json.dumps({"messages": talk.messages}, ensure_ascii=False) for talk in talks if talk.kind == kind]
        (out / f"{kind}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""A small Llama that chats in printable ASCII, one token a character, and a server of it that shows log-probabilities.

The weights are random and large, so that answers are decided, not drawn. The server speaks the part of OpenAI's
protocol, and of vLLM's, that judging a given text needs; it computes each request alone, by plain torch.
"""

from __future__ import annotations

import json
import string
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

BEGIN, END = 0, 1
CHARACTERS = string.printable[:95] + "\n"
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}"
    "{% if tone is defined %}[{{ tone }}]{% endif %}{% if add_generation_prompt %}a: {% endif %}"
)


def build_chat(folder: Path, seed: int = 0) -> Path:
    """Write the model, with tokenizer and chat template."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"<s>": BEGIN, "</s>": END, "<unk>": 2} | {sign: 3 + n for n, sign in enumerate(CHARACTERS)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.15, bos_token_id=BEGIN,
        eos_token_id=END, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.lm_head.weight.data[[BEGIN, 2]] = 0  # texts show neither, so that ids could not be told from them
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def by_hand(folder: Path, before: list[int], behind: list[int]) -> list[float]:
    """NLL of each id of `behind` after all before it: one row, F32, the softmax written out."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return nll_of(model, before, behind)


def nll_of(model: Any, before: list[int], behind: list[int]) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*before, *behind]])).logits[0].double()
    found = []
    for place, token in enumerate(behind, len(before)):
        row = logits[place - 1]
        top = row.max()
        found.append(float(top + torch.log(torch.exp(row - top).sum()) - row[token]))
    return found


@contextmanager
def serving_chat(
    folder: Path, *, shows_tokens: bool = True, scores: bool = True, thinks: bool = False
) -> Iterator[str]:
    """The address of a server of the model. `shows_tokens`: as vLLM does; `scores`: texts are echoed with their
    log-probabilities; `thinks`: it says that it set something apart."""
    options = {"shows_tokens": shows_tokens, "scores": scores, "thinks": thinks}
    handler = type("Handler", (_Handler,), {"chat": _Chat(folder)} | options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Chat:
    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.lock = threading.Lock()

    def ids(self, body: dict[str, Any]) -> list[int]:
        if "messages" in body:
            more = body.get("chat_template_kwargs", {})
            text = self.tokenizer.apply_chat_template(
                body["messages"], tokenize=False, add_generation_prompt=True, **more
            )
        else:
            text = body["prompt"]
        found: list[int] = text if isinstance(text, list) else self.tokenizer(text)["input_ids"]
        return found

    def continued(self, ids: list[int], most: int) -> tuple[list[int], str]:
        made: list[int] = []
        while len(made) < most:
            with torch.no_grad():
                token = int(self.model(torch.tensor([ids + made])).logits[0, -1].argmax())
            if token == END:
                return made, "stop"
            made.append(token)
        return made, "length"


class _Handler(BaseHTTPRequestHandler):
    chat: _Chat
    shows_tokens: bool
    scores: bool
    thinks: bool

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            owner = "vllm" if self.shows_tokens else "someone"
            self.send(200, {"data": [{"id": "small-chat", "owned_by": owner}]})
        else:
            self.send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.chat.lock:
            if self.path == "/tokenize" and self.shows_tokens:
                self.send(200, {"tokens": self.chat.ids(body)})
            elif self.path == "/v1/chat/completions":
                self.send(200, {"choices": [self.answered(body, chat=True)]})
            elif self.path == "/v1/completions" and body.get("echo"):
                self.send(200, {"choices": [self.echoed(body)]})
            elif self.path == "/v1/completions":
                self.send(200, {"choices": [self.answered(body, chat=False)]})
            else:
                self.send(404, {"detail": "Not Found"})

    def answered(self, body: dict[str, Any], *, chat: bool) -> dict[str, Any]:
        made, finish = self.chat.continued(self.chat.ids(body), body["max_tokens"])
        text = self.chat.tokenizer.decode(made, skip_special_tokens=True)
        message = {"role": "assistant", "content": text} | ({"reasoning_content": "Hm."} if self.thinks else {})
        return {"index": 0, "finish_reason": finish} | ({"message": message} if chat else {"text": text})

    def echoed(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = self.chat.ids(body)
        values = [None, *(-nll for nll in nll_of(self.chat.model, ids[:1], ids[1:]))]
        tokens = [self.chat.tokenizer.decode([token]) for token in ids]
        scored = {"tokens": tokens, "token_logprobs": values} if self.scores else None
        return {"text": "".join(tokens), "finish_reason": "length", "logprobs": scored}

    def send(self, status: int, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

"""transformers, in this process: any checkpoint it loads, compressed-tensors' unpacked as it loads. For small models.

On a CPU the answers and NLLs of a machine are the same in every run with the same settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

from checkpoint import CONFIG, Problem, Refused
from checkpoint.errors import require
from checkpoint.gpu import cuda_device
from checkpoint.manifest.whence import folder_name
from fidelity.backend import Progress
from fidelity.batches import batches
from fidelity.laying import EXTRA, RUNNING, Layer, first_line, load_tokenizer
from fidelity.prompts import Prompt
from fidelity.replies import Ids, Reply, Source

LOGIT_BYTES = 256 << 20
"""What the logits of one batch may take."""

MOST_ROWS = 16


@dataclass(frozen=True)
class Settings:
    """How models are run. `dtype`: None for F32 on a CPU (exact for BF16 weights, and faster), as stored elsewhere.

    `raw`: no chat template. `arguments`: the template's, as `{"enable_thinking": False}`. `threads`: torch's.
    """

    device: str = "cpu"
    dtype: str | None = None
    raw: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    memory: int = LOGIT_BYTES


def absent(folder: Path) -> Problem | None:
    """What there is to say of a folder that is no model's."""
    if (folder / CONFIG).is_file():
        return None
    return Problem("model-absent", f"no folder with a {CONFIG}", str(folder))


@contextmanager
def in_process(folder: Path, settings: Settings) -> Iterator[InProcess]:
    """The model of a folder, until the context is left. Raises MissingExtra; Refused for one that cannot be loaded, or
    that lacks tensors, which transformers would fill at random."""
    require(RUNNING, "torch", "transformers", "jinja2", extra=EXTRA)
    if problem := absent(folder):
        raise Refused(problem)
    import torch

    if settings.device != "cpu":
        cuda_device(torch.device(settings.device).index, settings.device)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    layer = Layer(load_tokenizer(folder), raw=settings.raw, arguments=settings.arguments)
    running = InProcess(folder_name(folder), _load(folder, settings), layer, settings.memory)
    try:
        yield running
    finally:
        running.unload()  # of two models one is in memory at a time
        if settings.device != "cpu":
            torch.cuda.empty_cache()


class InProcess:
    """A loaded model and its tokenizer. `fidelity.backend.Runner` says what it does."""

    def __init__(self, name: str, model: Any, layer: Layer, memory: int) -> None:
        self._model, self._layer = model, layer
        dtype = str(model.dtype).removeprefix("torch.")
        self.source = Source(name, f"transformers {version('transformers')}", layer.layout, dtype)
        ends = model.generation_config.eos_token_id
        ends = layer.end if ends is None else ends
        self._ends: list[int] = list(ends) if isinstance(ends, (list, tuple)) else [] if ends is None else [ends]
        vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self._most_tokens = max(1, memory // (8 * vocabulary))  # logits in F32, and their softmax

    def unload(self) -> None:
        self._model = None

    def answer(self, prompts: Sequence[Prompt], max_tokens: int, progress: Progress) -> list[Reply]:
        asked = [self._layer.prompt_ids(prompt) for prompt in prompts]
        replies: dict[int, Reply] = {}
        for rows in batches([len(ids) + max_tokens for ids in asked], MOST_ROWS, self._most_tokens):
            made = self._generate([asked[row] for row in rows], max_tokens)
            replies |= {row: self._reply(prompts[row], asked[row], ids) for row, ids in zip(rows, made, strict=True)}
            progress(len(rows))
        return [replies[row] for row in range(len(prompts))]

    def score(self, prompts: Sequence[Prompt], replies: Sequence[Reply], progress: Progress) -> list[tuple[float, ...]]:
        pairs = [self._layer.ids_of(prompt, reply) for prompt, reply in zip(prompts, replies, strict=True)]
        found: dict[int, tuple[float, ...]] = {}
        for rows in batches([len(before) + len(behind) for before, behind in pairs], MOST_ROWS, self._most_tokens):
            found |= dict(zip(rows, self._nll([pairs[row] for row in rows]), strict=True))
            progress(len(rows))
        return [found[row] for row in range(len(pairs))]

    def _reply(self, prompt: Prompt, asked: Ids, made: Ids) -> Reply:
        """Of generated ids those before the first end token."""
        stop = next((position for position, token in enumerate(made) if token in self._ends), None)
        kept = made[:stop]
        return Reply(prompt.id, self._layer.text(kept), "length" if stop is None else "stop", asked, kept)

    def _generate(self, asked: Sequence[Ids], max_tokens: int) -> list[Ids]:
        """New tokens behind each prompt. Rows are padded on the left and masked there."""
        import torch
        from transformers import GenerationConfig

        width = max(map(len, asked))
        ids = [[0] * (width - len(row)) + list(row) for row in asked]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in asked]
        greedy = GenerationConfig(
            do_sample=False, max_new_tokens=max_tokens, eos_token_id=self._ends or None, pad_token_id=0
        )
        device = self._model.device
        with torch.no_grad():
            made = self._model.generate(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
                generation_config=greedy,
            )
        return [tuple(row) for row in made[:, width:].tolist()]

    def _nll(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[tuple[float, ...]]:
        """-log p of each answer token. Rows are padded on the right, where a causal model's earlier tokens see nothing
        of it. Logits [rows, width, vocabulary] in F32."""
        import torch

        width = max(len(before) + len(behind) for before, behind in pairs)
        rows = [[*before, *behind] for before, behind in pairs]
        device = self._model.device
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
        with torch.no_grad():
            logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            chosen = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return [
            tuple((-chosen[row, len(before) - 1 : len(before) + len(behind) - 1]).tolist())
            for row, (before, behind) in enumerate(pairs)
        ]


def _load(folder: Path, settings: Settings) -> Any:
    """The model, with the code of transformers alone and without the network."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    dtype = settings.dtype or ("float32" if settings.device == "cpu" else "auto")
    try:
        with redirect_stderr(StringIO()):  # compressed-tensors shows bars, and unpacks at the first use
            model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype, output_loading_info=True, local_files_only=True, trust_remote_code=False
            )
            model = model.to(settings.device).eval()
            if dtype == "float32":  # transformers leaves packed experts, which it unpacks itself, as they were stored
                for parameter in filter(torch.is_floating_point, model.parameters()):
                    parameter.data = parameter.data.float()
            with torch.no_grad():
                model(input_ids=torch.zeros((1, 1), dtype=torch.int64, device=model.device))
    except Exception as error:  # transformers raises whatever the code of its models does
        raise Refused(Problem("model-unloadable", f"transformers: {first_line(error)}", str(folder))) from error
    lacking = sorted(map(str, loaded["missing_keys"]))
    if lacking:
        more = f" and {len(lacking) - 3:,} more" if len(lacking) > 3 else ""
        found = f"lacks {', '.join(lacking[:3])}{more}, which transformers fills at random"
        raise Refused(Problem("model-incomplete", found, str(folder), remedy="ckpt verify tells what else is wrong"))
    return model

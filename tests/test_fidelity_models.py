"""Models in process: their NLL against a softmax written out, equal ones called equal, damaged ones told apart."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import unpack_from_int32
from safetensors.torch import load_file, save_file
from small_chat import END, build_chat, by_hand, nll_of

from checkpoint import Draft, Refused, apply_plan, open_checkpoint, plan_for
from fidelity import (
    Candidate,
    Prompt,
    PromptSet,
    References,
    Reply,
    Result,
    Settings,
    Trust,
    ask_base,
    ask_candidate,
    gate,
    in_process,
    shipped_prompts,
)
from surgery import Group, Scheme, quantize

TOKENS = 12
ALONE = Settings(threads=1)
BEGINNINGS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "One, two, three, four,",
    "The opposite of cold is",
    "My favourite fruit is an apple because",
    "The sun rises in the",
)


def silent(title: str) -> Any:
    return lambda count: None


def first(count: int) -> PromptSet:
    asked = shipped_prompts()
    return PromptSet(asked.name, asked.sha256, asked.prompts[:count])


def running(folder: Path, settings: Settings = ALONE) -> Any:
    return lambda: in_process(folder, settings)


def packed(base: Path, out: Path, group_size: int) -> Path:
    draft = quantize(Draft.of(open_checkpoint(base)), [Group((r"re:.*_proj$",), Scheme(4, group_size))])
    apply_plan(plan_for(draft, out), out)
    return out


def compared(base: Path, *candidates: Path, asked: PromptSet, settings: Settings = ALONE) -> Result:
    references = ask_base(running(base, settings), asked.prompts, TOKENS, silent)
    found = [
        ask_candidate(folder.name, running(folder, settings), references, asked.prompts, silent)
        for folder in candidates
    ]
    return Result(asked, references, tuple(found), Trust(resamples=2_000))


def verdicts(result: Result, of: str, against: str) -> dict[str, str]:
    pairs = [one for one in result.differences if (one.of, one.against) == (of, against)]
    return {one.measure.name: one.found.verdict for one in pairs}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_chat(tmp_path_factory.mktemp("chat") / "chat")


@pytest.fixture(scope="module")
def chat_int4(chat: Path) -> Path:
    return packed(chat, chat.with_name("chat-int4"), 32)


@pytest.fixture(scope="module")
def answered(chat: Path) -> References:
    return ask_base(running(chat), first(8).prompts, TOKENS, silent)


def test_nll_is_the_softmax_written_out(chat: Path, answered: References) -> None:
    for reply in answered.replies:
        assert reply.prompt_ids is not None
        assert reply.ids is not None
        assert reply.nll == pytest.approx(by_hand(chat, [*reply.prompt_ids], [*reply.ids]), abs=2e-5)


def test_answers_are_those_of_one_step_of_argmax_after_another(chat: Path, answered: References) -> None:
    """Batches are padded, so that this would fail if a mask or a position were wrong."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(chat, dtype=torch.float32).eval()
    for reply in answered.replies:
        ids = list(reply.prompt_ids or ())
        made: list[int] = []
        while len(made) < TOKENS and (not made or made[-1] != END):
            with torch.no_grad():
                made.append(int(model(torch.tensor([ids + made])).logits[0, -1].argmax()))
        assert reply.ids == tuple(token for token in made if token != END)
        assert reply.finish == ("stop" if made[-1] == END else "length")


def test_the_prompt_is_laid_out_by_the_models_own_template(chat: Path) -> None:
    prompt = shipped_prompts().prompts[0]
    settings = Settings(threads=1, arguments={"tone": "kind"})
    with in_process(chat, settings) as model:
        (reply,) = model.answer([prompt], 1, lambda count: None)
        text = model._layer.text(reply.prompt_ids or ())
    assert text == f"u: {prompt.text}\n[kind]a: "
    assert model.source.layout.by == "tokenizer"


def test_raw_prompts_are_continued_as_they_stand(chat: Path) -> None:
    prompt = shipped_prompts().prompts[0]
    with in_process(chat, Settings(threads=1, raw=True)) as model:
        (reply,) = model.answer([prompt], 1, lambda count: None)
        assert model._layer.text(reply.prompt_ids or ()) == prompt.text
    assert model.source.layout.by == "raw"


def test_memory_for_logits_changes_the_batches_and_no_value(chat: Path, answered: References) -> None:
    asked = first(8).prompts
    with in_process(chat, Settings(threads=1, memory=8 * 99)) as model:  # a row at a time
        alone = model.score(asked, answered.replies, lambda count: None)
    for nll, reply in zip(alone, answered.replies, strict=True):
        assert nll == pytest.approx(reply.nll, abs=1e-5)


def test_padding_does_not_reach_a_mixture_of_experts_with_linear_attention(qwen_moe_base: Path, tmp_path: Path) -> None:
    """Its recurrent state sees every token before it, and its packed experts are unpacked by transformers itself."""
    draft = quantize(Draft.of(open_checkpoint(qwen_moe_base)), [Group((r"re:.*mlp\.experts\.",), Scheme(4, 32))])
    apply_plan(plan_for(draft, tmp_path / "int4"), tmp_path / "int4")
    asked = first(4).prompts
    found = {}
    for memory in (256 << 20, 1):
        with in_process(tmp_path / "int4", Settings(threads=1, raw=True, memory=memory)) as model:
            replies = model.answer(asked, 4, lambda count: None)
            found[memory] = replies, model.score(asked, replies, lambda count: None)
    (together, judged), (alone, apart) = found.values()
    assert together == alone
    for one, other in zip(judged, apart, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_a_packed_model_is_its_dequantized_weights(chat: Path, chat_int4: Path, answered: References) -> None:
    """The oracle unpacks by compressed-tensors' own function and multiplies by the scales."""
    from transformers import AutoModelForCausalLM

    state = load_file(chat_int4 / "model.safetensors")
    dense = AutoModelForCausalLM.from_pretrained(chat, dtype=torch.float32).eval()
    for name, weight in dense.named_parameters():
        module = name.removesuffix(".weight")
        if f"{module}.weight_packed" in state:
            codes = unpack_from_int32(state[f"{module}.weight_packed"], 4, weight.shape).float()
            scales = state[f"{module}.weight_scale"].float().repeat_interleave(32, dim=1)
            weight.data = codes * scales
    with in_process(chat_int4, ALONE) as model:
        found = model.score(first(8).prompts, answered.replies, lambda count: None)
    for nll, reply in zip(found, answered.replies, strict=True):
        assert nll == pytest.approx(nll_of(dense, [*(reply.prompt_ids or ())], [*(reply.ids or ())]), abs=2e-4)


def test_the_base_as_a_candidate_differs_in_nothing(chat: Path) -> None:
    result = compared(chat, chat, asked=first(8))
    assert set(verdicts(result, "chat", "base").values()) == {"equal"}
    base, candidate = result.columns
    assert [case.own.text for case in base.cases] == [case.own.text for case in candidate.cases]
    assert gate(result, 0.0)["broken"] == []


def test_a_candidate_with_another_template_is_said_to_read_other_prompts(chat: Path, tmp_path: Path) -> None:
    other = shutil.copytree(chat, tmp_path / "other")
    template = other / "chat_template.jinja"
    template.write_text(template.read_text().replace("a: ", "b: "))
    assert compared(chat, other, asked=first(3)).relaid == {"other": 3}
    assert compared(chat, chat, asked=first(3)).relaid == {"chat": 0}


def test_a_candidate_that_computes_nan_has_no_nll_and_says_so(chat: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(chat, tmp_path / "broken")
    state = load_file(broken / "model.safetensors")
    state["model.norm.weight"][0] = math.nan
    save_file(state, broken / "model.safetensors", metadata={"format": "pt"})
    (candidate,) = compared(chat, broken, asked=first(3)).candidates
    assert candidate.nll is None
    assert candidate.unscored is not None
    assert candidate.unscored.endswith("is nan")


def test_a_model_that_lacks_tensors_is_refused(chat: Path, tmp_path: Path) -> None:
    lacking = shutil.copytree(chat, tmp_path / "lacking")
    state = load_file(lacking / "model.safetensors")
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, lacking / "model.safetensors", metadata={"format": "pt"})
    with (
        pytest.raises(Refused, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight, which transformers fills"),
        in_process(lacking, ALONE),
    ):
        pass


@pytest.mark.parametrize("strange", [99, 10**30])
def test_ids_that_the_tokenizer_does_not_have_are_not_used(chat: Path, answered: References, strange: int) -> None:
    foreign = [replace(one, prompt_ids=(strange,)) for one in answered.replies]
    with in_process(chat, ALONE) as model:
        found = model.score(first(8).prompts, foreign, lambda count: None)
    assert found[0] == pytest.approx(answered.replies[0].nll, abs=1e-5)


@pytest.mark.parametrize("content", [None, "{"])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(Refused), in_process(tmp_path, ALONE):
        pass


def test_a_candidate_of_another_tokenizer_judges_the_texts(chat: Path, answered: References) -> None:
    """Ids that do not spell the reply's text are of another tokenizer, and are not used."""
    foreign = [Reply(one.id, one.text, one.finish, (5, 6), (7, 8)) for one in answered.replies]
    with in_process(chat, ALONE) as model:
        found = model.score(first(8).prompts, foreign, lambda count: None)
    for nll, reply in zip(found, answered.replies, strict=True):
        assert nll == pytest.approx(reply.nll, abs=1e-5)


def test_replies_of_other_tokens_are_left_out_of_differences_of_nll(chat: Path, answered: References) -> None:
    """A base whose tokenizer needs half the tokens for one reply."""
    head, *rest = answered.replies
    other = replace(head, ids=(5, 6), prompt_ids=(7,), nll=(0.5, 0.5))
    references = replace(answered, replies=(other, *rest))
    candidate = ask_candidate("chat", running(chat), references, first(8).prompts, silent)
    result = Result(first(8), references, (candidate,), Trust(resamples=100))
    (found,) = [one.found for one in result.differences if one.measure.name == "nll"]
    assert (result.resplit, found.n, found.verdict) == ({"chat": 1}, 7, "equal")


def test_the_gate_refuses_to_judge_by_too_few_prompts_or_without_nll(chat: Path, chat_int4: Path) -> None:
    few = compared(chat, chat_int4, asked=first(3))
    with pytest.raises(Refused, match="at least 6"):
        gate(few, 0.1)
    blind = Candidate("blind", few.candidates[0].source, few.candidates[0].replies, None, "it gives none")
    with pytest.raises(Refused, match="has no NLL to compare: it gives none"):
        gate(Result(few.asked, few.references, (blind,), few.trust), 0.1)


def test_a_damaged_candidate_is_told_apart_from_a_whole_one(chat: Path, chat_int4: Path, tmp_path: Path) -> None:
    """The scales of one module of fourteen are doubled, which engines load without a word."""
    damaged = shutil.copytree(chat_int4, tmp_path / "damaged")
    state = load_file(damaged / "model.safetensors")
    state["model.layers.0.mlp.down_proj.weight_scale"] *= 2
    save_file(state, damaged / "model.safetensors", metadata={"format": "pt"})
    result = compared(chat, chat_int4, damaged, asked=first(30))
    assert verdicts(result, "damaged", "chat-int4")["nll"] == "higher"
    lows = {one.of: one.found.low for one in result.differences if (one.measure.name, one.against) == ("nll", "base")}
    assert gate(result, lows["damaged"] - 1e-9)["broken"] == ["damaged"]
    assert gate(result, lows["damaged"])["broken"] == []


@pytest.fixture(scope="module")
def real(smollm2_base: Path, smollm2_int4: Path) -> Result:
    """SmolLM2 and its INT4: six short texts continued."""
    prompts = tuple(Prompt(text, text, ()) for text in BEGINNINGS)
    asked = PromptSet("short", "", prompts)
    return compared(smollm2_base, smollm2_int4, asked=asked, settings=Settings(threads=1, raw=True))


def test_a_real_model_gives_the_softmax_written_out(real: Result, smollm2_base: Path) -> None:
    reply = real.references.replies[0]
    assert reply.text.startswith(" Paris")
    expected = by_hand(smollm2_base, [*(reply.prompt_ids or ())], [*(reply.ids or ())])
    assert reply.nll == pytest.approx(expected, abs=2e-4)


def test_four_bits_of_a_real_model_are_told_apart_from_its_base(real: Result) -> None:
    (candidate,) = real.candidates
    assert verdicts(real, candidate.name, "base")["nll"] == "higher"
    assert gate(real, 0.0)["broken"] == [candidate.name]
    assert gate(real, 5.0)["broken"] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_card_that_is_not_there_is_named_before_a_model_is_loaded(chat: Path) -> None:
    with pytest.raises(Refused, match="sees no CUDA device"), in_process(chat, Settings("cuda")):
        pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_card_says_what_the_cpu_says(chat: Path, chat_int4: Path, answered: References) -> None:
    card = Settings("cuda", dtype="float32")
    own = ask_base(running(chat, card), first(8).prompts, TOKENS, silent)
    for here, there in zip(answered.replies, own.replies, strict=True):
        assert here.ids == there.ids
        assert here.nll == pytest.approx(there.nll, abs=2e-4)
    on_cpu, on_card = (
        ask_candidate("int4", running(chat_int4, settings), answered, first(8).prompts, silent).nll or ()
        for settings in (ALONE, card)
    )
    assert sum(on_card, ()) == pytest.approx(sum(on_cpu, ()), abs=2e-4)
    with pytest.raises(Refused, match="no CUDA device cuda:99"), in_process(chat, Settings("cuda:99")):
        pass

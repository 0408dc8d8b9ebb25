"""A server that speaks OpenAI's protocol, as one object: what it serves, answers, streams, counts and measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

from checkpoint.errors import brief
from serving.address import ServerAddress
from serving.answers import Answer, Ask, Message, Stream
from serving.engines import Engine, of_metrics, of_models
from serving.faults import Declined, Incapable, ServerFault, blotted, quoted
from serving.metrics import Metrics, parse_metrics
from serving.reading import Garbled, answer_of, ids_of, joined, pieces_of
from serving.wire import Arrival, Wire, reason

T = TypeVar("T")

NOT_FOUND = 404
REFUSED = frozenset({400, 422})
MOST_MODELS_TOLD = 8
LONGEST_NAME = 1_000
"""Characters of a model's name."""

LONGEST_TOKEN = 1_000
"""Characters; a vocabulary's longest are some hundred blanks."""


class Server:
    """One model on one server.

    `url`: `http://host:8000`, with or without `/v1`. `model`: as the server lists it; None for the only one listed.
    `api_key_env`: the environment variable that holds the key. `timeout`: seconds that one answer may take.
    Nothing is asked before a method is called. Methods raise ServerFault; Declined where the server refuses a request.

        server = Server("http://127.0.0.1:8000")
        server.answer(Ask("The capital of France is", max_tokens=8)).text
    """

    def __init__(
        self, url: str, model: str | None = None, api_key_env: str | None = None, *, timeout: float = 600.0
    ) -> None:
        self.address = ServerAddress.parse(url, api_key_env)
        self._model = model
        self._wire = Wire(self.address, timeout)
        self._lock = Lock()
        self._no_usage = False

    def __repr__(self) -> str:
        return f"Server({self.address.root!r}, model={self._model!r})"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()

    @property
    def url(self) -> str:
        return self.address.root

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The models that the server lists; `transformers serve` lists those of its cache only, often none."""
        names = [entry["id"] for entry in self._listed if isinstance(entry.get("id"), str)]
        if any(len(name) > LONGEST_NAME for name in names):
            raise self._wire.fault("answer-garbled", f"lists a model with a name of over {LONGEST_NAME:,} characters")
        return tuple(blotted(name, self.address.key) for name in names)

    @property
    def model(self) -> str:
        """The model that requests name."""
        if self._model is None:
            with self._lock:
                self._model = self._model or self._only_model()
        return self._model

    @cached_property
    def engine(self) -> Engine:
        """What kind of server this is, as far as it shows."""
        return of_models(self._listed) or of_metrics(self._metrics_text())

    @cached_property
    def version(self) -> str | None:
        """The engine's release, None where it does not say."""
        if self.engine.version is None:
            return None
        try:
            said = self._wire.json(self.address.root + self.engine.version)
        except ServerFault:
            return None
        version = said.get("version") if isinstance(said, Mapping) else None
        return quoted(version, self.address.key)[:60] if isinstance(version, str) else None

    def answer(self, ask: Ask) -> Answer:
        """The whole answer at once."""
        return self._plausible(self.read(answer_of, self.post(_route(ask), self._body(ask))), ask)

    def stream(self, ask: Ask) -> Stream:
        """The answer as it arrives, with the time of each piece."""
        running = bool(self.engine.running_count)
        sent, arrivals, ended = self._streamed(ask)
        documents = [(arrival.at, self._event(arrival)) for arrival in arrivals]
        answer = self._plausible(self.read(joined, [document for _, document in documents]), ask)
        if answer.finish is None:
            raise self._wire.fault("stream-broken", f"the stream ended before the answer, after {len(arrivals)} events")
        pieces = pieces_of(documents, running=running)
        counted = answer.usage.completion if answer.usage else None
        return Stream(sent, pieces, ended, answer, len(pieces) if counted is None else counted, counted is not None)

    def token_ids(self, prompt: str | Sequence[Message], *, special: bool = True, **extra: Any) -> list[int]:
        """The ids of a text, or of messages laid out by the chat template. Raises Incapable.

        `special`: with those that the tokenizer puts before a text. Messages end where the answer is to begin.
        """
        asked: dict[str, Any] = {"model": self.model, "add_special_tokens": special} | extra
        if isinstance(prompt, str):
            asked["prompt"] = prompt
        else:
            asked |= {"messages": list(prompt), "add_generation_prompt": True, "add_special_tokens": False}
        return list(self.read(ids_of, self._tokenized(asked)))

    def metrics(self) -> Metrics | None:
        """A reading of the engine's metrics; None where it has none."""
        text = self._metrics_text()
        return None if text is None else parse_metrics(text)

    def post(self, route: str, body: Mapping[str, Any]) -> Any:
        """The JSON value that a request is answered with. `route`: `/completions` and the like."""
        try:
            return self._wire.json(self.address.api + route, body)
        except Declined as error:
            raise self._explained(error) from error.__cause__

    def read(self, read: Callable[[Any], T], document: Any) -> T:
        """`read(document)`, where what is no answer is a ServerFault."""
        try:
            return read(document)
        except Garbled as error:
            said = reason(document) if isinstance(document, Mapping) else ""
            told = said or error.told(self.address.key)
            raise self._wire.fault("answer-garbled", quoted(told, self.address.key)) from error

    def incapable(self, what: str, remedy: str = "") -> Incapable:
        fault = self._wire.fault("server-incapable", f"{self.engine.title} {what}", remedy=remedy)
        return Incapable(fault.problems)

    @cached_property
    def _listed(self) -> list[Mapping[str, Any]]:
        said = self._wire.json(f"{self.address.api}/models")
        entries = said.get("data") if isinstance(said, Mapping) else None
        if not isinstance(entries, list):
            found = f"no list of models: {brief(blotted(said, self.address.key))}"
            raise self._wire.fault("answer-garbled", found)
        return [entry for entry in entries if isinstance(entry, Mapping)]

    def _only_model(self) -> str:
        if len(self.models) == 1:
            return self.models[0]
        found = f"lists {len(self.models)} models" if self.models else "lists no model"
        raise self._wire.fault("model-unclear", found, expected=_some(self.models), remedy="Name the model to ask.")

    def _plausible(self, answer: Answer, ask: Ask) -> Answer:
        """`answer`, if its text can be that of as many tokens as were asked for."""
        if len(answer.text) + len(answer.reasoning) > LONGEST_TOKEN * max(1, ask.max_tokens):
            found = f"{len(answer.text) + len(answer.reasoning):,} characters in place of {ask.max_tokens:,} tokens"
            raise self._wire.fault("answer-garbled", found)
        finish = answer.finish and quoted(answer.finish, self.address.key)
        return answer if finish == answer.finish else replace(answer, finish=finish)

    def _body(self, ask: Ask) -> dict[str, Any]:
        """The request, with the members that the engine knows."""
        engine = self.engine
        body: dict[str, Any] = {"model": self.model, "max_tokens": ask.max_tokens} | dict(engine.greedy)
        body["messages" if ask.is_chat else "prompt"] = ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)
        if ask.ignore_eos:
            body |= engine.ignore_eos
        if ask.logprobs:
            body |= {"logprobs": True, "top_logprobs": 0} if ask.is_chat else {"logprobs": 1}
            body |= engine.ids
        return body | dict(ask.extra)

    def _streamed(self, ask: Ask) -> tuple[int, list[Arrival], int]:
        """The events of a stream, asked for with counts, without where the server refuses to count."""
        url, body = self.address.api + _route(ask), self._body(ask) | {"stream": True}
        counting = {"stream_options": {"include_usage": True} | dict(self.engine.running_count)}
        try:
            return self._wire.events(url, body if self._no_usage else body | counting)
        except Declined as error:
            if self._no_usage or error.status not in REFUSED or "stream_options" not in str(error):
                raise self._explained(error) from error.__cause__
        self._no_usage = True
        return self._wire.events(url, body)

    def _event(self, arrival: Arrival) -> Any:
        document = self._wire.value(arrival.data)
        said = reason(document) if isinstance(document, Mapping) and "choices" not in document else ""
        if said:
            raise self._wire.fault("stream-broken", f"the server broke off: {quoted(said, self.address.key)}")
        return document

    def _tokenized(self, asked: Mapping[str, Any]) -> Any:
        """What the engine's tokenizer answers. A gateway before it may not let that through."""
        try:
            if self.engine.tokenize is not None:
                return self._wire.json(self.address.root + self.engine.tokenize, asked)
        except Declined as error:
            if error.status != NOT_FOUND:
                raise
        raise self.incapable("does not show how it splits text into tokens")

    def _metrics_text(self) -> str | None:
        try:
            return self._wire.text(f"{self.address.root}/metrics")
        except Declined:
            return None

    def _explained(self, error: Declined) -> Declined:
        """`error`, with what the server does list where it does not know the model."""
        if error.status != NOT_FOUND or not self.models or self.model in self.models:
            return error
        (problem,) = error.problems
        return Declined(error.status, replace(problem, expected=f"a model that it lists: {_some(self.models)}"))


def _route(ask: Ask) -> str:
    return "/chat/completions" if ask.is_chat else "/completions"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_MODELS_TOLD} more" if len(names) > MOST_MODELS_TOLD else ""
    return ", ".join(names[:MOST_MODELS_TOLD]) + more

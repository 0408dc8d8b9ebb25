"""config.json as far as it describes the model: what an exporter may not change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checkpoint import CONFIG, split_name
from checkpoint.dtypes import FLOATS
from verify.case import Case
from verify.registry import Hit, rule

TORCH_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
DTYPE_KEYS = ("dtype", "torch_dtype")
IDENTITY = ("architectures", "model_type", "vision_config")
INCIDENTAL = frozenset({*DTYPE_KEYS, "transformers_version", "_name_or_path", "use_cache", "quantization_config"})
"""Keys that say nothing of the weights, or that a quantized export has to change."""

LOCAL_PATH = re.compile(r"[/~\\]|\.{1,2}[/\\]|[A-Za-z]:[/\\]")

RESTORE = "ckpt restore-files SRC --base BASE"


@rule(
    "X01",
    "the dtype in config.json is that of the weights",
    severity="warning",
    evidence="vllm casts on loading",
    remedy="ckpt restore-files SRC --base BASE",
)
def dtype(case: Case) -> Iterable[Hit]:
    stated = dict(_stated_dtypes(case.config))
    if len(set(stated.values())) > 1:
        found = ", ".join(f"{place} {value}" for place, value in stated.items())
        yield Hit(CONFIG, found, "engines differ in which one they follow", RESTORE)
        return
    common = _common_dtype(case)
    for place, value in stated.items():
        if common and value in TORCH_NAMES and TORCH_NAMES[value] != common:
            found = f"{value}, and most dense weights are {common}"
            yield Hit(f"{CONFIG}: {place}", found, "engines cast every weight; float16 overflows", RESTORE)


@rule(
    "X02",
    "the architecture is that of the base",
    needs_base=True,
    evidence="vllm#48060",
    remedy="ckpt restore-files SRC --base BASE",
)
def architecture(case: Case) -> Iterable[Hit]:
    base = case.base.config if case.base else case.config
    for key in IDENTITY:
        for hit in _differences(base.get(key), case.config.get(key), key):
            consequence = "engines build another model than the weights are of"
            yield Hit(hit.place, hit.found, consequence, RESTORE)


@rule(
    "X03",
    "the model's values in config.json are those of the base",
    needs_base=True,
    evidence="copied by exporters",
    remedy="ckpt restore-files SRC --base BASE",
)
def values(case: Case) -> Iterable[Hit]:
    """Changed and lost values are errors; what the export adds is a default spelled out, and a warning at most."""
    if case.base is not None:
        yield from _differences(_essential(case.base.config), _essential(case.config), "")


@rule(
    "X08",
    "config.json needs no foreign code and names no local path",
    severity="warning",
    evidence="Hub review",
    remedy="ckpt restore-files SRC --base BASE",
)
def portable(case: Case) -> Iterable[Hit]:
    if "auto_map" in case.config and not (case.base and "auto_map" in case.base.config):
        consequence = "engines ask for trust_remote_code"
        yield Hit(f"{CONFIG}: auto_map", "refers to code of its own", consequence, RESTORE)
    path = case.config.get("_name_or_path")
    if isinstance(path, str) and LOCAL_PATH.match(path):
        yield Hit(f"{CONFIG}: _name_or_path", f"a path of some machine: {path}", "tells users nothing", RESTORE)


def _stated_dtypes(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(path, dtype) of every key that states one, without the `torch.` that some write."""
    text = config.get("text_config")
    for prefix, section in (("", config), ("text_config.", text if isinstance(text, Mapping) else {})):
        for key in DTYPE_KEYS:
            if isinstance(section.get(key), str):
                yield prefix + key, section[key].removeprefix("torch.")


def _common_dtype(case: Case) -> str | None:
    """The dtype of most dense weights, by elements."""
    sizes: Counter[str] = Counter()
    for name, ref in case.checkpoint.tensors.items():
        if ref.dtype in FLOATS and split_name(name)[1] in ("weight", ""):
            sizes[ref.dtype] += ref.nbytes
    return sizes.most_common(1)[0][0] if sizes else None


def _essential(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in INCIDENTAL and key not in IDENTITY}


def _differences(theirs: Any, ours: Any, path: str) -> Iterator[Hit]:
    """Each value that differs, by its path; `theirs` is the base's."""
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in (*theirs, *(key for key in ours if key not in theirs)):
            if key in INCIDENTAL and path:
                continue
            inner = f"{path}.{key}" if path else key
            if key not in ours:
                yield Hit(f"{CONFIG}: {inner}", f"missing; the base says {_short(theirs[key])}", CHANGED, RESTORE)
            elif key not in theirs:
                found = f"{_short(ours[key])}; the base does not say"
                yield Hit(f"{CONFIG}: {inner}", found, CHANGED, RESTORE, severity="warning")
            else:
                yield from _differences(theirs[key], ours[key], inner)
    elif theirs != ours:
        yield Hit(f"{CONFIG}: {path}", f"{_short(ours)}; the base says {_short(theirs)}", CHANGED, RESTORE)


CHANGED = "wrong shapes, or quality lost without a word"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

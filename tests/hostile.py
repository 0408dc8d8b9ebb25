"""A checkpoint whose every name tries to be something else: a control sequence, another line, markup, a path."""

from __future__ import annotations

from pathlib import Path

from building import LLAMA, llama_entries, write_checkpoint, write_json

CONTROL = "\x1b[2J\x07"
BIDI = "\u202etxt.exe\u2066"
LINE = "x\nE F01 forged: by a name"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>"
QUOTE = '" onload="alert(3)" x="]]>&amp;\''
NAMES = (CONTROL, BIDI, LINE, MARKUP, QUOTE, "\ufffe\u2028", "{0-99999999}.{0-99999999}", "[bold red]x[/]")

FORBIDDEN = "\x1b\x07\u202e\u2066\u2028\ufffe"


def hostile_checkpoint(folder: Path) -> Path:
    """Stored: every hostile name as a tensor. Said by config.json: hostile values. Beside them: hostile file names."""
    extra = dict.fromkeys(NAMES, ("BF16", (4,), None))
    write_checkpoint(folder, llama_entries() | extra, LLAMA | {"architectures": [MARKUP, CONTROL], BIDI: LINE})
    for name in (CONTROL, BIDI, MARKUP.replace("/", ""), LINE):
        write_json(folder / f"{name}.json", {name: 1})
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "TokenizersBackend", MARKUP: CONTROL})
    return folder


def forged(folder: Path) -> Path:
    """As above, and quantized by a method with a hostile name, so that it ends in what was not judged."""
    hostile_checkpoint(folder)
    config = LLAMA | {"quantization_config": {"quant_method": CONTROL + MARKUP + LINE}}
    write_json(folder / "config.json", config)
    return folder

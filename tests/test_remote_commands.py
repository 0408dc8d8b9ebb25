"""Commands on checkpoints of the Hub, as processes of their own: what they fetch, how they go on, what they hide."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from building import write_index
from hub import HubServer

from demo.replica import inventory, weight_map
from demo.sparse import tensor_bytes, write_sparse

ROOT = Path(__file__).parents[1]
PLACE = "hf://owner/base"
QUANTIZE = ["--target", r"re:.*mlp\.experts\.", "--group-size", "32"]


def start(hub: HubServer, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ckpt", *map(str, arguments)]
    everything = {**os.environ, **hub.env(**environment)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=everything, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def run(hub: HubServer, *arguments: object, code: int = 0, **environment: str) -> str:
    """What the command prints, errors last; no token is in it."""
    process = start(hub, *arguments, **environment)
    out, error = process.communicate(timeout=300)
    assert process.returncode == code, error
    for token in (hub.token, hub.read_token, hub.stranger_token):
        assert token not in out + error
    return str(out + error)


def fetched(hub: HubServer) -> int:
    return sum(request.bytes_sent for request in hub.counts)


def weights(folder: Path) -> dict[str, bytes]:
    """Everything but the manifest, which says where it came from."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "ckpt.manifest.json"}


def test_inspect_at_full_size_reads_under_two_megabytes_in_under_two_seconds(hub: HubServer, replica: Path) -> None:
    commit = hub.publish("owner/base", replica, hash_shards=False)
    started = time.monotonic()
    said = run(hub, "inspect", PLACE)
    seconds = time.monotonic() - started
    assert f"{PLACE}@{commit}" in said
    assert "1,045 tensors in 26 shards, 71.9 GB" in said
    assert fetched(hub) < 2_000_000
    assert seconds < 2 or os.getloadavg()[0] > 2  # a busy machine proves nothing
    assert hub.leaks == []


def test_grafting_at_full_size_moves_the_draft_head_and_headers_only(
    hub: HubServer, replica: Path, tmp_path: Path
) -> None:
    hub.publish("owner/base", replica, hash_shards=False)
    export, tensors, shard_of = tmp_path / "export", inventory(), weight_map()
    export.mkdir()
    body = [name for name in tensors if not name.startswith("mtp.")]
    for shard in sorted({shard_of[name] for name in body}):
        write_sparse(export / shard, {name: tensors[name] for name in body if shard_of[name] == shard})
    write_index(export, {n: shard_of[n] for n in body}, sum(tensor_bytes(*tensors[name]) for name in body))
    for path in replica.iterdir():
        if not path.name.startswith("model"):
            os.link(path, export / path.name)
    run(hub, "graft-mtp", export, "--base", PLACE, "--out", tmp_path / "out")
    head = sum(tensor_bytes(*tensors[name]) for name in tensors if name.startswith("mtp."))
    assert head == 1_689_281_536
    assert head <= fetched(hub) < head + 1_000_000
    assert (tmp_path / "out" / "model-mtp.safetensors").stat().st_size > head


def test_quantizing_within_a_budget_of_disk_gives_the_same_bytes_and_goes_on_after_a_kill(
    hub: HubServer, qwen_moe_base: Path, tmp_path: Path
) -> None:
    hub.publish("owner/base", qwen_moe_base)
    shards = sorted(path for path in qwen_moe_base.glob("*.safetensors"))
    budget = max(path.stat().st_size for path in shards) + 1
    assert budget < sum(path.stat().st_size for path in shards)
    run(hub, "quantize", qwen_moe_base, *QUANTIZE, "--out", tmp_path / "here", "--no-verify")
    command = ("quantize", PLACE, *QUANTIZE, "--out", tmp_path / "out", "--cache-bytes", budget, "--no-verify")

    hub.fault(f"GET /blobs.*{shards[-1].name}", skip=1, times=None, stall=60, site="cdn")  # the first is its header
    process = start(hub, *command)
    journal = tmp_path / ".out.ckpt-journal"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not journal.exists() or len(journal.read_text().splitlines()) < len(shards)):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert sorted(p.name for p in tmp_path.iterdir() if "ckpt-lock" not in p.name) == [
        ".out.ckpt-journal", ".out.ckpt-new", ".out.ckpt-spool", "here",
    ]  # fmt: skip
    hub.heal()
    hub.reset()
    said = run(hub, *command)
    again = [request for request in hub.counts if request.site == "cdn" and request.bytes_sent > 20_000]
    assert {name for r in again for name in (p.name for p in shards) if name in r.path} == {shards[-1].name}
    assert "wrote" in said
    assert weights(tmp_path / "out") == weights(tmp_path / "here")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "out"]
    assert hub.leaks == []


def test_quantizing_by_range_gives_the_same_bytes(hub: HubServer, qwen_moe_base: Path, tmp_path: Path) -> None:
    hub.publish("owner/base", qwen_moe_base)
    for place, out in ((qwen_moe_base, "here"), (PLACE, "there")):
        run(hub, "quantize", place, *QUANTIZE, "--out", tmp_path / out)
    assert weights(tmp_path / "there") == weights(tmp_path / "here")


def test_an_interrupted_run_says_what_is_kept(hub: HubServer, qwen_moe_base: Path, tmp_path: Path) -> None:
    hub.publish("owner/base", qwen_moe_base)
    last = sorted(qwen_moe_base.glob("*.safetensors"))[-1].name
    hub.fault(f"GET /blobs.*{last}", skip=1, times=None, stall=60, site="cdn")
    patience = {"HF_HUB_DOWNLOAD_TIMEOUT": "2"}
    process = start(hub, "quantize", PLACE, *QUANTIZE, "--out", tmp_path / "out", "--workers", 1, **patience)
    journal = tmp_path / ".out.ckpt-journal"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not journal.exists() or len(journal.read_text().splitlines()) < 3):
        time.sleep(0.05)
    hub.heal()
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "source and target are as they were" in error
    assert f"kept in {tmp_path / '.out.ckpt-new'}" in error
    run(hub, "quantize", PLACE, *QUANTIZE, "--out", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize(
    "fault", [{"status": 401}, {"status": 404}, {"status": 429, "headers": {"Retry-After": "0"}}, {"status": 503}]
)
def test_what_the_hub_refuses_ends_with_one_clear_error_and_nothing_written(
    hub: HubServer, qwen_moe_base: Path, tmp_path: Path, fault: dict[str, object]
) -> None:
    hub.publish("owner/base", qwen_moe_base)
    hub.fault("GET .*resolve/.*safetensors$", times=None, **fault)  # type: ignore[arg-type]
    if fault["status"] == 503:
        hub.heal()
        hub.fault("GET .*resolve/.*safetensors$", times=2, headers={"Retry-After": "0"}, status=503)
        run(hub, "inspect", PLACE)
        return
    said = run(hub, "quantize", PLACE, *QUANTIZE, "--out", tmp_path / "out", code=3)
    assert "ckpt: cannot read the checkpoint" in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []
    document = json.loads(run(hub, "inspect", PLACE, "--json", code=3))
    assert document["problems"][0]["remedy"]


def test_an_address_with_a_token_in_it_is_a_wrong_use_that_does_not_show_it(hub: HubServer) -> None:
    said = run(hub, "inspect", f"hf://user:{hub.token[:-1]}@owner/base", code=2)
    assert hub.token[:-1] not in said
    assert "HF_TOKEN" in said


def test_a_repository_is_not_changed_in_place(hub: HubServer, qwen_moe_base: Path) -> None:
    hub.publish("owner/base", qwen_moe_base)
    assert "--out" in run(hub, "ignore", PLACE, "add", "re:.*foo", "--in-place", code=3)

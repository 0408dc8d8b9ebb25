"""What importing the project loads: nothing that could ask the network, and nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = (
    *("checkpoint", "surgery", "verify", "schemas", "recipes", "cards"),
    *("costs", "compare", "serving", "fidelity", "latency", "ckpt"),
)

KERNELS = frozenset(
    {
        "compare.kernels", "surgery.kernels", "surgery.triton_kernels", "surgery.triton_packing", "verify.distances",
        "verify.intrinsics", "verify.kernels", "verify.triton_kernels",
    }
)  # fmt: skip
"""Modules that are their library's code and are imported, each in one place, where that library is used."""

SCRIPTS = frozenset({"recipes.calibration.make"})
"""Not in the wheel."""

LIGHT = frozenset({"click", "yaml"})
"""All that may be loaded beside the standard library."""

CLIENTS = frozenset(
    {
        "huggingface_hub", "hf_xet", "httpx", "httpx2", "httpcore", "requests", "urllib3", "aiohttp", "ssl",
        "http.client", "urllib.request", "ftplib", "smtplib", "xmlrpc.client",
    }
)  # fmt: skip
"""What speaks to other machines."""

WATCH = """
import importlib, pkgutil, sys
asked = []
sys.addaudithook(lambda event, arguments: asked.append(event) if event in {events!r} else None)
before = set(sys.modules)
names = set({rooms!r})
for room in {rooms!r}:
    path = importlib.import_module(room).__path__
    names |= {{module.name for module in pkgutil.walk_packages(path, room + ".")}}
for name in sorted(names - {left_out!r}):
    importlib.import_module(name)
print(*sorted(asked))
print(*sorted(set(sys.modules) - before))
"""
EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.bind", "socket.sendto", "subprocess.Popen", "os.system")


@pytest.fixture(scope="module")
def imported() -> tuple[list[str], set[str]]:
    return watched(ROOT, ROOMS, KERNELS | SCRIPTS)


def test_no_module_asks_anything_of_the_network_or_starts_a_process_when_it_is_imported(
    imported: tuple[list[str], set[str]],
) -> None:
    assert imported[0] == []


def test_no_module_loads_what_speaks_to_other_machines(imported: tuple[list[str], set[str]]) -> None:
    assert {"checkpoint.remote.ranges", "ckpt.hub.sending", "ckpt.signing", "cards.card"} <= imported[1]
    assert not imported[1] & CLIENTS


def test_every_module_loads_the_standard_library_click_and_yaml_at_most(imported: tuple[list[str], set[str]]) -> None:
    tops = {name.partition(".")[0] for name in imported[1]}
    assert {name for name in tops - sys.stdlib_module_names - set(ROOMS) if not _is_compiled_helper(name)} <= LIGHT


def test_the_watch_sees_a_client_and_a_connection(tmp_path: Path) -> None:
    (tmp_path / "leaky").mkdir()
    (tmp_path / "leaky" / "__init__.py").write_text("")
    code = "import contextlib, http.client\nwith contextlib.suppress(OSError):\n"
    code += "    http.client.HTTPConnection('127.0.0.1', 9, timeout=1).request('GET', '/')\n"
    (tmp_path / "leaky" / "inside.py").write_text(code)
    events, loaded = watched(tmp_path, ("leaky",))
    assert "socket.connect" in events
    assert "http.client" in loaded & CLIENTS


def watched(folder: Path, rooms: tuple[str, ...], left_out: frozenset[str] = frozenset()) -> tuple[list[str], set[str]]:
    """Audit events and loaded modules of a child that imports every module of `rooms` in `folder`."""
    code = WATCH.format(events=EVENTS, rooms=rooms, left_out=left_out)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert child.returncode == 0, child.stderr
    events, loaded = child.stdout.splitlines()
    return events.split(), set(loaded.split())


def _is_compiled_helper(name: str) -> bool:
    """Modules that compiled code of PyYAML, and setuptools' start-up file, put among the loaded ones."""
    return name.startswith(("_cython", "cython_runtime", "_yaml", "_distutils_hack", "distutils"))

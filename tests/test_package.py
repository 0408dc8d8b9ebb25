"""The wheel and the sdist: what is in them, and that the commands run from them without this tree.

`make package` runs the same from the wheel installed in an environment of its own, which has the core and no extra:
CKPT_INSTALLED is that environment, CKPT_DIST the folder with the built files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest
from building import packed_llama

ROOT = Path(__file__).parent.parent
ROOMS = (
    *("checkpoint", "surgery", "verify", "schemas", "recipes", "cards"),
    *("costs", "compare", "serving", "fidelity", "latency", "ckpt"),
)
KINDS = {".py", ".json", ".yaml", ".jsonl", ".css", ".md", ".txt", ".typed"}
NOT_SHIPPED = {"recipes/calibration/make.py", "recipes/calibration/prompts.yaml"}
NOT_INSIDE = {"tests", "benchmarks", "demo", "reliability", "evidence", "__pycache__"}
INSTALLED = os.environ.get("CKPT_INSTALLED")

Ckpt = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Dist:
    """The two files that are published."""

    wheel: Path
    sdist: Path

    def in_wheel(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if not name.endswith("/")}

    def in_sdist(self) -> set[str]:
        with tarfile.open(self.sdist) as archive:
            return {str(PurePosixPath(*PurePosixPath(one.name).parts[1:])) for one in archive if one.isfile()}

    def read(self, name: str) -> str:
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.read(name).decode()

    @property
    def info(self) -> str:
        """The folder in the wheel that tells of it."""
        return "-".join(self.wheel.name.split("-")[:2]) + ".dist-info"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """The sdist, and the wheel made of the sdist."""
    given = os.environ.get("CKPT_DIST")
    folder = Path(given) if given else tmp_path_factory.mktemp("dist")
    if not given:
        pytest.importorskip("build", reason="needs the extra test-core")
        pytest.importorskip("hatchling", reason="needs the extra test-core")
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        assert run.returncode == 0, run.stdout + run.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Dist(wheel, sdist)


@pytest.fixture(scope="module")
def ckpt(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Ckpt:
    """Runs `ckpt` of the wheel, in an empty folder."""
    home, surroundings = tmp_path_factory.mktemp("elsewhere"), {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [str(Path(INSTALLED or "", "bin", "ckpt").absolute())]
    if not INSTALLED:
        unpacked = tmp_path_factory.mktemp("unpacked")
        with zipfile.ZipFile(dist.wheel) as archive:
            archive.extractall(unpacked)
        command = [sys.executable, "-P", "-m", "ckpt"]
        surroundings["PYTHONPATH"] = str(unpacked)

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        words = [*command, *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True, cwd=home, env=surroundings, check=False)

    return run


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed_llama(tmp_path_factory.mktemp("export") / "model")


@pytest.fixture
def written(ckpt: Ckpt, export: Path, tmp_path: Path) -> Path:
    """A folder that a command has written, with its manifest."""
    out = tmp_path / "out"
    run = ckpt("graft", export, "--from", export, "--tensors", "model.norm.weight", "--out", out)
    assert run.returncode == 0, run.stdout + run.stderr
    return out


def test_the_wheel_holds_the_rooms_whole_and_nothing_else(dist: Dist) -> None:
    ours = {
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {name for name in dist.in_wheel() if not name.startswith(f"{dist.info}/")} == ours - NOT_SHIPPED
    assert {PurePosixPath(name).suffix for name in ours if not name.endswith("py.typed")} <= KINDS


def test_every_room_says_that_it_is_typed(dist: Dist) -> None:
    assert {f"{room}/py.typed" for room in ROOMS} <= dist.in_wheel()


def test_data_that_is_read_at_run_time_is_in_the_wheel(dist: Dist) -> None:
    data = {
        "cards/engines.json", "cards/parts.json", "checkpoint/families/qwen3_5_moe.json", "recipes/body-int4-g128.yaml",
        "recipes/calibration/dialogue.jsonl", "schemas/compressed_tensors_releases.json",
        "schemas/manifest.schema.json", "schemas/profiles/body-int4-g128.schema.json", "verify/engines/vllm.json",
        "verify/reports/page.css",
    }  # fmt: skip
    assert data <= dist.in_wheel()


def test_the_wheel_carries_the_licence_and_says_which_it_is(dist: Dist) -> None:
    told = Parser().parsestr(dist.read(f"{dist.info}/METADATA"))
    assert told["License-Expression"] == "Apache-2.0"
    assert dist.read(f"{dist.info}/licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_wheel_asks_for_what_pyproject_says_and_has_one_command(dist: Dist) -> None:
    told = Parser().parsestr(dist.read(f"{dist.info}/METADATA"))
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [one.replace(" ", "") for one in told.get_all("Requires-Dist") or () if "extra ==" not in one]
    assert {_ordered(one) for one in asked} == {_ordered(one) for one in stated["dependencies"]}
    assert dist.read(f"{dist.info}/entry_points.txt").strip() == "[console_scripts]\nckpt = ckpt.__main__:main"


def test_the_sdist_holds_what_the_wheel_is_made_of_and_no_more(dist: Dist) -> None:
    beside = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "PKG-INFO", ".gitignore"}
    rooms = {name for name in dist.in_wheel() if not name.startswith(f"{dist.info}/")}
    assert dist.in_sdist() == rooms | NOT_SHIPPED | beside


def test_nothing_of_tests_caches_or_this_machine_is_in_them(dist: Dist) -> None:
    names = dist.in_wheel() | dist.in_sdist()
    assert not {name for name in names if NOT_INSIDE & set(name.split("/"))}
    assert str(ROOT) not in dist.read(f"{dist.info}/METADATA") + dist.read(f"{dist.info}/RECORD")


def test_the_wheel_knows_its_version(ckpt: Ckpt, dist: Dist) -> None:
    assert ckpt("--version").stdout.split()[-1] == dist.wheel.name.split("-")[1]


@pytest.mark.parametrize("command", ["inspect", "inspect --costs", "layout", "verify", "card --dry-run", "ignore show"])
def test_commands_that_read_headers_run(command: str, ckpt: Ckpt, export: Path) -> None:
    first, *rest = command.split()
    run = ckpt(first, export, *rest)
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_reports_can_be_made(ckpt: Ckpt, export: Path, tmp_path: Path) -> None:
    for form in ("json", "html"):
        run = ckpt("verify", export, "--schema", "layout", "--format", form, "--output", tmp_path / form)
        assert run.returncode == 0, run.stderr
        assert (tmp_path / form).stat().st_size > 0


def test_moving_bytes_and_proving_them_needs_no_extra(ckpt: Ckpt, written: Path) -> None:
    for arguments in (
        ("ignore", written, "add", "re:.*norm$", "--in-place"),
        ("manifest", "complete", written),
        ("manifest", "verify", written),
    ):
        run = ckpt(*arguments)
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(not INSTALLED, reason="make package has an environment without extras")
@pytest.mark.parametrize(
    "arguments, extra",
    [
        ("quantize {written} --preset experts-int4-g32 --dry-run", "torch"),
        ("int8-head {written} --dry-run", "torch"),
        ("manifest sign {written} --sigstore", "sign"),
        ("fidelity --base {written} {written}", "fidelity"),
        ("diff {written} {written} --plot x.png", "plots"),
    ],
)
def test_what_an_extra_brings_is_named_in_one_line(arguments: str, extra: str, ckpt: Ckpt, written: Path) -> None:
    run = ckpt(*arguments.format(written=written).split(), "--json")
    assert run.returncode == 3, run.stdout + run.stderr
    assert f'pip install "ckpt-surgery[{extra}]"' in json.loads(run.stdout)["problems"][0]["remedy"]


def _ordered(requirement: str) -> tuple[str, ...]:
    """A requirement whose bounds may come in any order."""
    start = min(requirement.find(sign) for sign in "<>=" if sign in requirement)
    return requirement[:start].lower().replace("_", "-"), *sorted(requirement[start:].split(","))

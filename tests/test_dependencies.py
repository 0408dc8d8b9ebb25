"""What the project depends on: every import is declared, every bound stands at both ends, pinned files keep in step."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ROOMS: list[str] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

OWN = canonicalize_name(PROJECT["name"])
FOR_USERS = ("torch", "fast", "sign", "gptq", "serve", "plots", "fidelity")
"""Extras that the shipped code needs; the others are for those who work on it."""

NAMES = {"yaml": "pyyaml", "openssl": "pyopenssl"}
"""Modules whose package has another name."""

BROUGHT = {
    "referencing": "jsonschema",
    "llvmlite": "numba",
    "cryptography": "model-signing",
    "sigstore": "model-signing",
    "requests": "sigstore",
    "packaging": "transformers",
}
"""What is imported and comes with a package that is declared, which states the versions that go with it."""

WITH_A_GPU = frozenset({"triton"})
"""Comes with torch's CUDA builds only."""

ORACLES = frozenset({"safetensors"})
"""Installed for users though no module imports it: the tests hold the reader and the writer against it."""

NOT_AT_THE_LOWEST = frozenset({"torch", "compressed-tensors"})
"""Old releases of torch are built with CUDA alone, gigabytes of it, and compressed-tensors imports torch."""


def requirements(texts: Iterable[str]) -> list[Requirement]:
    """Requirements, those by an extra of our own in full."""
    found: list[Requirement] = []
    for text in texts:
        one = Requirement(text)
        own = canonicalize_name(one.name) == OWN
        found += [inner for extra in sorted(one.extras) for inner in requirements(EXTRAS[extra])] if own else [one]
    return found


def names(found: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(one.name) for one in found}


def lower(specifier: SpecifierSet) -> str | None:
    return next((one.version for one in specifier if one.operator in ("==", ">=")), None)


def has_upper(specifier: SpecifierSet) -> bool:
    return any(one.operator in ("==", "<", "<=") for one in specifier)


EVERY = [
    *PYPROJECT["build-system"]["requires"],
    *PROJECT["dependencies"],
    *(one for extra in EXTRAS.values() for one in extra),
]
CORE = requirements(PROJECT["dependencies"])
USERS = CORE + requirements(one for extra in FOR_USERS for one in EXTRAS[extra])
DEVELOPERS = CORE + requirements(EXTRAS["dev"])
AT_ALL_ENDS = USERS + requirements(EXTRAS["test-core"])
AT_BOTH_ENDS = ("sign", "fast", "serve", "plots", "test-core")
AT_THE_LOWEST = [
    one
    for one in CORE + requirements(one for extra in AT_BOTH_ENDS for one in EXTRAS[extra])
    if canonicalize_name(one.name) not in NOT_AT_THE_LOWEST
]


@pytest.mark.parametrize("text", sorted({str(one) for one in requirements(EVERY)}))
def test_every_requirement_has_a_lower_and_an_upper_bound(text: str) -> None:
    specifier = Requirement(text).specifier
    assert lower(specifier)
    assert has_upper(specifier)


@pytest.mark.parametrize("text", ["a", "a>=1", "a<2", "a!=1.5"])
def test_a_bound_that_is_missing_is_seen(text: str) -> None:
    specifier = Requirement(text).specifier
    assert not (lower(specifier) and has_upper(specifier))


def test_the_lowest_releases_are_the_lower_bounds() -> None:
    pinned = dict(pins((ROOT / "constraints-lowest.txt").read_text(encoding="utf-8")))
    bounds = {canonicalize_name(one.name): lower(one.specifier) for one in AT_THE_LOWEST}
    assert {name: _release(version) for name, version in pinned.items()} == {
        name: _release(version or "") for name, version in bounds.items()
    }


@pytest.mark.parametrize("one", {str(one): one for one in AT_ALL_ENDS}.values(), ids=str)
def test_what_is_installed_is_within_the_bounds(one: Requirement) -> None:
    try:
        version = metadata.version(one.name)
    except metadata.PackageNotFoundError:
        pytest.skip("not installed here")
    assert one.specifier.contains(version, prereleases=True)


def test_every_import_is_declared_or_comes_with_what_is_declared() -> None:
    declared = names(USERS) | {OWN}
    assert {name for name in imported() if name not in declared | BROUGHT.keys() | WITH_A_GPU} == set()
    assert {carrier for carrier in BROUGHT.values() if carrier not in declared | BROUGHT.keys()} == set()


@pytest.mark.parametrize("name, carrier", BROUGHT.items())
def test_what_comes_along_is_asked_for_by_what_brings_it(name: str, carrier: str) -> None:
    try:
        asked = metadata.requires(carrier) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{carrier} is not installed here")
    assert name in names(Requirement(text) for text in asked)


def test_what_users_install_is_imported_but_for_an_oracle() -> None:
    assert names(USERS) - imported() - {"pyopenssl"} == ORACLES


def test_the_lock_has_every_requirement_of_a_developer_within_its_bounds() -> None:
    locked = dict(pins(LOCK))
    missing = names(DEVELOPERS) - locked.keys()
    outside = {str(one) for one in DEVELOPERS if not one.specifier.contains(locked[canonicalize_name(one.name)])}
    assert (missing, outside) == (set(), set())


def test_every_line_of_the_lock_has_a_version_and_hashes() -> None:
    entries = re.sub(r"\\\n\s*", "", LOCK)
    lines = [line for line in entries.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!]+( +--hash=sha256:[0-9a-f]{64})+", line)] == []


def test_the_lock_pins_the_torch_that_ci_installs() -> None:
    constraints = dict(pins((ROOT / "constraints.txt").read_text(encoding="utf-8")))
    assert dict(pins(LOCK))["torch"] == constraints["torch"]


LOCK = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")


def pins(text: str) -> Iterator[tuple[str, str]]:
    """Name and version of each pinned package of a requirements or constraints file."""
    for match in re.finditer(r"^([\w.-]+)==([\w.+!]+)", text, re.MULTILINE):
        yield canonicalize_name(match[1]), match[2]


def imported() -> set[str]:
    """Packages that shipped code imports, at the top of a module or inside a function."""
    found: set[str] = set()
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    strangers = found - sys.stdlib_module_names - set(ROOMS)
    return {NAMES.get(name.lower(), canonicalize_name(name)) for name in strangers}


def _release(version: str) -> tuple[int, ...]:
    """1.2 and 1.2.0 are one release."""
    parts = [int(part) for part in version.split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)

"""Ask every release of compressed-tensors which variants of quantization_config it reads, and record the answers.

    python tests/data/collect_compressed_tensors.py RELEASES

RELEASES is a folder that receives one folder for each release (`pip install --no-deps --target`); those already there
are taken as they are. Each release judges the variants of `tests/quantization_configs.py` in a process of its own, by
its `QuantizationConfig.model_validate`, with the torch and pydantic of the interpreter that runs this. Each also writes
the plain variant, by `model_dump`, and reads what the others wrote. The answers go to
`compressed_tensors_variants.json` beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORD = HERE / "compressed_tensors_variants.json"
RELEASES = (
    *("0.12.0", "0.12.1", "0.12.2", "0.13.0", "0.14.0", "0.14.0.1", "0.15.0", "0.15.0.1"),
    *("0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.19.0", "0.20.0", "0.20.1"),
)
"""Every release on PyPI from 0.12 up, the oldest first (`pip index versions compressed-tensors`)."""

JUDGE = """
import json, sys, warnings
import compressed_tensors
from compressed_tensors.quantization import QuantizationConfig

def reads(document):
    try:
        QuantizationConfig.model_validate(document)
    except (ValueError, KeyError, NotImplementedError, TypeError):
        return False
    return True

warnings.simplefilter("ignore")
documents = json.load(sys.stdin)
written = QuantizationConfig.model_validate(json.loads(json.dumps(documents[0]))).model_dump()
answer = {"release": compressed_tensors.__version__, "written": written, "reads": [reads(one) for one in documents]}
json.dump(answer, sys.stdout)
"""


def main(folder: Path) -> None:
    """Install what is missing below `folder`, ask every release, and write the record."""
    sys.path.insert(0, str(HERE.parent))
    from quantization_configs import VARIANTS

    for release in RELEASES:
        install(release, folder / release)
    written = written_forms({release: ask(folder, release, [VARIANTS["plain"]])["written"] for release in RELEASES})
    documents = VARIANTS | written
    answers = [ask(folder, release, list(documents.values()))["reads"] for release in RELEASES]
    columns = zip(*answers, strict=True)
    verdicts = {
        name: "".join("+" if read else "-" for read in column) for name, column in zip(documents, columns, strict=True)
    }
    RECORD.write_text(record(documents, verdicts), encoding="utf-8")


def install(release: str, target: Path) -> None:
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
        subprocess.run([*pip, f"compressed-tensors=={release}"], check=True)


def ask(folder: Path, release: str, documents: list[Any]) -> dict[str, Any]:
    """What `release` says of each document, and how it writes the first. Raises ValueError if another one answers."""
    environment = {**os.environ, "PYTHONPATH": str(folder / release)}
    run = subprocess.run(
        [sys.executable, "-c", JUDGE],
        input=json.dumps(documents),
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=True,
    )
    answer: dict[str, Any] = json.loads(run.stdout)
    if answer["release"] != release:
        raise ValueError(f"{answer['release']} answered in place of {release}")
    return answer


def written_forms(documents: dict[str, Any]) -> dict[str, Any]:
    """Documents by the span of releases that write them; equal ones once."""
    spans: dict[str, list[str]] = {}
    for release, document in documents.items():
        spans.setdefault(json.dumps(document, sort_keys=True), []).append(release)
    return {name_of(span): documents[span[0]] for span in spans.values()}


def name_of(span: list[str]) -> str:
    return f"as {span[0]} writes it" if len(span) == 1 else f"as {span[0]} to {span[-1]} write it"


def record(documents: dict[str, Any], verdicts: dict[str, str]) -> str:
    """The record as JSON text, one variant a line, + for read and - for refused in the order of the releases."""
    lines = [
        f"    {json.dumps(name)}: " + json.dumps({"verdicts": verdicts[name], "document": document})
        for name, document in documents.items()
    ]
    variants = ",\n".join(lines)
    return f'{{\n  "releases": {json.dumps(RELEASES)},\n  "variants": {{\n{variants}\n  }}\n}}\n'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", type=Path, metavar="RELEASES")
    main(parser.parse_args().releases.resolve())

"""`pip install --dry-run --report FILE`, turned into a requirements file that pip installs by hash alone.

    python .ci/lock.py FILE > requirements-dev.lock

A hash is that of the file which pip chose here: for Linux on x86-64 and CPython 3.11, as CI has them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = """# Everything that `make test` and `make lint` need, by version and hash: `make lock` writes this file.
#
#     python3.11 -m venv .venv && .venv/bin/pip install --require-hashes -r requirements-dev.lock
#     .venv/bin/pip install --no-deps --no-build-isolation --editable .
#
# The hashes are those of the files for Linux on x86-64 and CPython 3.11. That of torch is its CPU build's, which PyPI
# does not have: pip must find it by --find-links or --extra-index-url, or it is installed before (see constraints.txt).
"""


def entries(report: dict[str, Any]) -> Iterator[str]:
    """A requirement with its hash for each package that is not of this tree."""
    for item in report["install"]:
        archive = item["download_info"].get("archive_info")
        if archive is not None:
            name, version = item["metadata"]["name"], item["metadata"]["version"].partition("+")[0]
            yield f"{name.lower().replace('_', '-')}=={version} \\\n    --hash=sha256:{archive['hashes']['sha256']}\n"


if __name__ == "__main__":
    found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(HEAD + "".join(sorted(entries(found))))

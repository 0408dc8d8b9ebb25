"""`ckpt.manifest.json`: what a written folder was made of, by which operations, and the hash of all that is in it.

`apply_plan` places it in every folder that it writes. `read_manifest` reads one back, strictly: it may have come from
anywhere. `differences` holds a folder against it, `traced` tells where a tensor came from, through all runs that it
knows of. Its form is `schemas/manifest.schema.json`.
"""

from checkpoint.manifest.checking import Checked, differences
from checkpoint.manifest.completing import completed
from checkpoint.manifest.provenance import Provenance
from checkpoint.manifest.tracing import Origin, traced
from checkpoint.manifest.value import Manifest, read_manifest

__all__ = ["Checked", "Manifest", "Origin", "Provenance", "completed", "differences", "read_manifest", "traced"]

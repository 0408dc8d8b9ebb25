"""`ckpt manifest`: what a folder was made of, and whether it is still what was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checkpoint import Place, Problem, UnreadableCheckpoint, default_workers, escape, open_checkpoint
from ckpt.options import FOLDER, PLACE, examples, output_from, output_options
from ckpt.text import plural, size

if TYPE_CHECKING:
    from checkpoint.manifest import Checked, Manifest
    from checkpoint.places import Root
    from ckpt.output import Output

FILE = click.Path(path_type=Path, dir_okay=False, exists=True)

EXAMPLES = examples(
    "ckpt manifest verify EXPORT",
    "ckpt manifest show EXPORT lm_head.weight_packed",
    "ckpt manifest complete EXPORT",
    "ckpt manifest sign EXPORT --key key.pem",
    "ckpt manifest check-signature EXPORT --public-key key.pub",
)


@click.group("manifest", epilog=EXAMPLES)
def command() -> None:
    """Read ckpt.manifest.json, which every command that writes leaves in the folder.

    It says which inputs and operations the folder was made of, through all runs before, and has the SHA-256 of every
    file and tensor that was written. It proves nothing against someone who can change it, too: a signature does.
    """


@command.command("verify")
@click.argument("root", metavar="DIR", type=FOLDER)
@click.option("--headers", is_flag=True, help="Of shards compare sizes and headers alone; read no weights.")
@click.option("--workers", type=click.IntRange(1, 256), help="Threads that read (default: the cores, at most 8).")
@output_options
def verify_command(root: Path, headers: bool, workers: int | None, **options: Any) -> None:
    """Compare every file of DIR with what its manifest says, by size and SHA-256.

    All that is missing, extra or changed is listed; a changed shard is narrowed down to the tensors that changed. Files
    whose hash was never computed are named: of them only sizes and headers were compared. Exits with 1 if anything
    differs, with 3 if there is no manifest or none that can be read.
    """
    from checkpoint.manifest import differences

    output, manifest = output_from(options), _manifest(root)
    total = 0 if headers else sum(entry["bytes"] for entry in manifest.shards.values() if entry["sha256"])
    with output.progress("comparing", total) as advance:
        workers = workers or default_workers()
        checked = differences(manifest, root, headers=headers, workers=workers, progress=advance)
    _show_checked(checked, output)
    if checked.problems:
        raise click.exceptions.Exit(1)


@command.command("show")
@click.argument("place", metavar="SRC", type=PLACE)
@click.argument("tensors", metavar="[TENSOR]...", nargs=-1)
@output_options
def show_command(place: Place, tensors: tuple[str, ...], **options: Any) -> None:
    """Say what SRC was made of, or where each TENSOR came from, back through all runs that are known."""
    from ckpt.manifest_words import show_summary, show_tensors

    output = output_from(options)
    if isinstance(place, Path) and not tensors:
        show_summary(_manifest(place), output)
        return
    checkpoint = open_checkpoint(place)
    manifest = _manifest(checkpoint.root)
    if tensors:
        show_tensors(manifest, checkpoint, tensors, output)
    else:
        show_summary(manifest, output)


@command.command("complete")
@click.argument("root", metavar="DIR", type=FOLDER)
@click.option("--edited", multiple=True, metavar="FILE", help="A side file that you changed or added; repeatable.")
@click.option("--workers", type=click.IntRange(1, 256), help="Threads that read (default: the cores, at most 8).")
@output_options
def complete_command(root: Path, edited: tuple[str, ...], workers: int | None, **options: Any) -> None:
    """Compute the hashes that DIR's manifest lacks: those of shards that were linked and so never read.

    Only the manifest is written, in one step. Refused where a file is not the one that was written, as far as its size,
    its header and the hashes there are can tell; a side file that was changed by hand, as README.md, has to be named.
    """
    from checkpoint.manifest import completed
    from checkpoint.manifest.completing import lacking_bytes, with_edited
    from checkpoint.recovery import editing

    output = output_from(options)
    with editing(root):
        manifest = _manifest(root)
        told = with_edited(manifest, root, edited)
        total = lacking_bytes(told)
        with output.progress("hashing", total) as advance:
            whole = completed(told, root, workers=workers or default_workers(), progress=advance)
        if whole != manifest:
            whole.write(root)
    output.result({"hashed_bytes": total, "files": len({**whole.files, **whole.shards})})
    output.line(f"hashed {size(total)}; every file of {root} has its sha256" if total else "nothing was lacking")


@command.command("sign")
@click.argument("root", metavar="DIR", type=FOLDER)
@click.option("--key", type=FILE, help="Private key: PEM, an elliptic curve (P-256, P-384 or P-521), not encrypted.")
@click.option("--certificate", type=FILE, help="Certificate of the key, for a signature by certificate.")
@click.option("--chain", type=FILE, multiple=True, help="Certificates between it and the root; repeatable.")
@click.option(
    "--sigstore", is_flag=True, help="Sign with an identity, by Sigstore. Needs the network; a browser opens."
)
@output_options
def sign_command(root: Path, key: Path | None, **options: Any) -> None:
    """Sign DIR as the package model-signing does, into model.sig in DIR.

    Every file is hashed once more, ckpt.manifest.json among them, and compared with what the manifest says before
    anything is signed. `model_signing verify` checks the signature without this tool. It proves that who holds the key
    vouched for these very files; not who holds it, nor that what the manifest tells of their origin is true.
    """
    from ckpt.signing import Signer, sign

    output = output_from(options)
    signer = Signer(key, options["certificate"], tuple(options["chain"]), options["sigstore"])
    files = sign(root, _manifest(root), signer)
    output.result({"signature": str(root / "model.sig"), "files": files})
    output.line(f"signed {plural(files, 'file')} of {root} into model.sig")


@command.command("check-signature")
@click.argument("root", metavar="DIR", type=FOLDER)
@click.option("--public-key", type=FILE, help="Public key of the signer, from a source that you trust.")
@click.option("--chain", type=FILE, multiple=True, help="Root and other certificates to trust; repeatable.")
@click.option("--identity", help="With Sigstore: who must have signed.")
@click.option("--issuer", help="With Sigstore: who must have vouched for the identity.")
@output_options
def check_signature_command(root: Path, public_key: Path | None, **options: Any) -> None:
    """Check model.sig of DIR: every file is as it was signed, and none was added or left out.

    Exits with 1 where it is not, with 3 where there is no signature that could be checked.
    """
    from ckpt.signing import Trust, check_signature

    output = output_from(options)
    found = check_signature(root, Trust(public_key, options["chain"], options["identity"], options["issuer"]))
    output.result({"ok": found is None, "found": found})
    if found is not None:
        output.line(f"{root}: {found}")
        raise click.exceptions.Exit(1)
    output.line(f"{root}: every file is as it was signed")


def _manifest(root: Root) -> Manifest:
    from checkpoint.folder import MANIFEST
    from checkpoint.manifest import read_manifest

    if isinstance(root, Path) and not root.is_dir():
        raise UnreadableCheckpoint(Problem("no-folder", "is not a folder", str(root)))
    manifest = read_manifest(root)
    if manifest is None:
        remedy = "Every command that writes makes one; for a folder made by other means there is none to invent"
        raise UnreadableCheckpoint(Problem("manifest-absent", f"has no {MANIFEST}", str(root), remedy=remedy))
    return manifest


def _show_checked(checked: Checked, output: Output) -> None:
    fields = ("code", "file", "tensor", "found", "expected", "remedy")
    output.result(
        {
            "ok": not checked.problems,
            "files": checked.files,
            "hashed_bytes": checked.nbytes,
            "problems": [{field: getattr(problem, field) for field in fields} for problem in checked.problems],
            "unknown": list(checked.unknown),
            "unread": list(checked.unread),
        }
    )
    for problem in checked.problems:
        output.line(f"{problem.code}: {problem}")
    for name in checked.unknown:
        output.line(f"not known: {escape(name)} has no sha256 in the manifest; its size was compared alone")
    if checked.unknown:
        output.hint("`ckpt manifest complete DIR` computes what is not known")
    said = f"{plural(len(checked.problems), 'difference')}" if checked.problems else "as written"
    read = "weights were not read" if checked.unread else f"{size(checked.nbytes)} hashed"
    output.line(f"{said}: {plural(checked.files, 'file')}, {read}")

"""Signatures over a folder by the package model-signing: its serialisation, its format, its cryptography.

All files are signed, ckpt.manifest.json among them; the signature lies beside them as `model.sig`. The files are hashed
by model-signing itself, which takes as long as reading them (1.2 GB/s on two cores): hashes that were taken at another
time would vouch for files that nobody has looked at since.
"""

from __future__ import annotations

from ast import literal_eval
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpoint import CkptError, Problem, Refused, UnreadableCheckpoint
from checkpoint.errors import require
from checkpoint.folder import MANIFEST, SIGNATURE
from checkpoint.manifest import Manifest

if TYPE_CHECKING:
    from model_signing.hashing import Config as Hashing
    from model_signing.manifest import Manifest as Hashes

PACKAGES = ("model_signing", "OpenSSL")
"""model-signing 1.1.1 imports pyOpenSSL, which sigstore 4.5 no longer brings."""

IGNORED = (SIGNATURE, ".cache")
"""Beside git's files, which model-signing leaves out itself: they come with a download and differ by machine."""

_MISMATCH = "Signature mismatch: "
"""What model-signing begins with when a list of differences follows, as Python spells one."""


class SigningFailed(CkptError):
    """The key, or what Sigstore answered, does not allow to sign or to check."""

    headline = "the signature could not be made or checked"


@dataclass(frozen=True)
class Signer:
    """Who signs: a `key`, a key with its `certificate` and the `chain` above it, or an identity by Sigstore."""

    key: Path | None = None
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()
    sigstore: bool = False


@dataclass(frozen=True)
class Trust:
    """Whose signature counts: that of a `public_key`, of a certificate below `chain`, or of an `identity`."""

    public_key: Path | None = None
    chain: tuple[Path, ...] = ()
    identity: str | None = None
    issuer: str | None = None


def sign(root: Path, manifest: Manifest, signer: Signer) -> int:
    """Write `model.sig` into `root`; the number of files that it vouches for.

    Raises Refused where they are not what `manifest` says, MissingExtra, SigningFailed.
    """
    _refuse_unclear(signer)
    require("a signature", *PACKAGES, extra="sign")
    from model_signing import signing

    try:
        hashes = _hashing().hash(root)
        _refuse_changed(hashes, manifest)
        config = signing.Config()
        if signer.sigstore:
            config.use_sigstore_signer()
        elif signer.certificate:
            config.use_certificate_signer(
                private_key=signer.key, signing_certificate=signer.certificate, certificate_chain=signer.chain
            )
        else:
            config.use_elliptic_key_signer(private_key=signer.key)
        config.set_hashing_config(_Known(hashes)).sign(root, root / SIGNATURE)
    except _failures() as error:
        raise SigningFailed(Problem("signing-failed", _words(error), str(root))) from error
    return sum(1 for _ in hashes.resource_descriptors())


def check_signature(root: Path, trust: Trust) -> str | None:
    """None where every file of `root` is as it was signed by who is trusted; else what is wrong, in words.

    Raises UnreadableCheckpoint where there is no signature, MissingExtra, SigningFailed.
    """
    _refuse_vague(trust)
    signature = root / SIGNATURE
    if not signature.is_file():
        raise UnreadableCheckpoint(Problem("signature-absent", f"has no {SIGNATURE}", str(root)))
    require("a signature", *PACKAGES, extra="sign")
    from cryptography.exceptions import InvalidSignature
    from model_signing import verifying

    try:
        config = verifying.Config()
        if trust.identity:
            config.use_sigstore_verifier(identity=trust.identity, oidc_issuer=trust.issuer or "")
        elif trust.public_key:
            config.use_elliptic_key_verifier(public_key=trust.public_key)
        else:
            config.use_certificate_verifier(certificate_chain=trust.chain)
    except _failures() as error:
        raise SigningFailed(Problem("trust-unusable", _words(error), str(root))) from error
    try:
        # links: a snapshot in the Hub cache is made of them, and what they lead to is hashed all the same
        config.set_hashing_config(_hashing(links=True)).verify(root, signature)
    except InvalidSignature:
        return "the signature is not of this key"
    except _failures() as error:
        return _words(error)
    return None


class _Known:
    """What model-signing asks for hashes, with those that it took before."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes

    def hash(self, model_path: Any, *, files_to_hash: Any = None) -> Hashes:
        return self._hashes


def _hashing(*, links: bool = False) -> Hashing:
    from model_signing import hashing

    config = hashing.Config().use_file_serialization(allow_symlinks=links)
    return config.set_ignored_paths(paths=IGNORED).set_allow_symlinks(links)


def _refuse_changed(hashes: Hashes, manifest: Manifest) -> None:
    """Raise Refused where a file is not what the manifest says, is not there, or is none of its."""
    found = {one.identifier: one.digest.digest_hex for one in hashes.resource_descriptors()}
    listed = {**manifest.files, **manifest.shards}
    remedy = "`ckpt manifest verify DIR` tells more"
    problems = [
        Problem("content-changed", "is not what the manifest says", name, remedy=remedy)
        for name, entry in listed.items()
        if name in found and entry["sha256"] not in (None, found[name])
    ]
    git = {".gitattributes", ".gitignore"}
    absent = listed.keys() - found.keys() - git
    problems += [Problem("file-missing", "is listed and not there", name, remedy=remedy) for name in sorted(absent)]
    hidden = {name for name in found if any(part.startswith(".") for part in name.split("/"))}
    extra = sorted(found.keys() - listed.keys() - {MANIFEST, "ckpt.report.json"})
    problems += [
        Problem("file-extra", "is not in the manifest", name, remedy="Remove it first" if name in hidden else remedy)
        for name in extra
    ]
    if problems:
        raise Refused(problems, "nothing was signed")


def _refuse_unclear(signer: Signer) -> None:
    one_way = signer.sigstore != (signer.key is not None)
    if not one_way or (signer.certificate and not signer.key) or (signer.chain and not signer.certificate):
        expected = "--key, --key with --certificate, or --sigstore"
        raise Refused(Problem("signer-unclear", "who signs is not clear", expected=expected), "nothing was signed")


def _refuse_vague(trust: Trust) -> None:
    ways = (trust.public_key is not None, bool(trust.chain), trust.identity is not None)
    if sum(ways) != 1 or (trust.identity is None) != (trust.issuer is None):
        expected = "--public-key, --chain, or --identity with --issuer"
        raise Refused(Problem("trust-unclear", "whose signature counts is not clear", expected=expected))


def _failures() -> tuple[type[Exception], ...]:
    """What model-signing and what it is built on raise for keys, certificates and signatures that do not do."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from OpenSSL.crypto import X509StoreContextError
    from requests import RequestException
    from sigstore.errors import Error

    return (
        ValueError, TypeError, KeyError, IndexError, AttributeError, OSError, InvalidSignature, UnsupportedAlgorithm,
        X509StoreContextError, RequestException, Error,
    )  # fmt: skip


def _words(error: BaseException) -> str:
    """What it says, without the digests that it quotes as Python spells bytes."""
    text = str(error)
    if text.startswith(_MISMATCH):
        differences: list[str] = literal_eval(text.removeprefix(_MISMATCH))
        said = (one.partition(": Expected ")[0].removeprefix("Hash mismatch for ") for one in differences)
        return f"not as it was signed: {'; '.join(said)}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

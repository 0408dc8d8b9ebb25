"""Signatures by model-signing, with real keys and certificates: what is signed, what is refused, what breaks one."""

from __future__ import annotations

import base64
import datetime
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("model_signing", reason="needs the extra sign: model-signing and pyOpenSSL")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from drafting import opened, sample, with_work, write
from test_cli import ckpt

from checkpoint import MissingExtra, Refused, UnreadableCheckpoint
from checkpoint.folder import MANIFEST, SIGNATURE
from checkpoint.manifest import Manifest, read_manifest
from ckpt.signing import Signer, SigningFailed, Trust, check_signature, sign

Key = ec.EllipticCurvePrivateKey


def write_key(folder: Path, name: str) -> Key:
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / f"{name}.pem").write_bytes(private)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pub").write_bytes(public)
    return key


def write_certificate(path: Path, key: Key, name: str, issuer: Key, issuer_name: str) -> None:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, issuer_name)]
    ca = key is issuer
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(issuer, hashes.SHA256())
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    mine, root = write_key(folder, "mine"), write_key(folder, "root")
    write_key(folder, "other")
    write_certificate(folder / "root.crt", root, "Root", root, "Root")
    write_certificate(folder / "mine.crt", mine, "Mine", root, "Root")
    stranger = write_key(folder, "stranger")
    write_certificate(folder / "stranger.crt", stranger, "Root", stranger, "Root")
    return folder


@pytest.fixture
def folder(source: Path, target: Path) -> Path:
    return write(with_work(opened(source)[1], "t0").noting("edit", ""), target)


def told(folder: Path) -> Manifest:
    found = read_manifest(folder)
    assert found is not None
    return found


@pytest.fixture
def signed(folder: Path, keys: Path) -> Path:
    sign(folder, told(folder), Signer(keys / "mine.pem"))
    return folder


def test_a_signed_folder_is_as_it_was_signed(signed: Path, keys: Path) -> None:
    assert check_signature(signed, Trust(keys / "mine.pub")) is None


def test_every_file_is_signed_the_manifest_among_them(signed: Path) -> None:
    bundle = json.loads((signed / SIGNATURE).read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    names = {one["name"] for one in statement["predicate"]["resources"]}
    assert names == {path.relative_to(signed).as_posix() for path in signed.rglob("*")} - {SIGNATURE}
    assert MANIFEST in names


def test_model_signings_own_command_line_takes_it(signed: Path, keys: Path) -> None:
    import os
    import subprocess

    command = [sys.executable, "-m", "model_signing", "verify", "key", str(signed)]
    command += ["--signature", str(signed / SIGNATURE), "--public_key", str(keys / "mine.pub")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"NO_COLOR": "1"})
    assert run.returncode == 0, run.stderr


TAMPERINGS: dict[str, tuple[Any, str]] = {
    "a weight": (lambda f: _flip(f / "model-00002-of-00003.safetensors"), "model-00002-of-00003.safetensors"),
    "the config": (lambda f: (f / "config.json").write_text("{}"), "config.json"),
    "the manifest": (lambda f: _flip(f / MANIFEST), MANIFEST),
    "a file more": (lambda f: (f / "payload.py").write_text("x"), "payload.py"),
    "a file less": (lambda f: (f / "config.json").unlink(), "config.json"),
}


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-2] ^= 1
    path.unlink()
    path.write_bytes(raw)


@pytest.mark.parametrize(("tamper", "name"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_what_changed_since_is_found(tamper: Any, name: str, signed: Path, keys: Path) -> None:
    tamper(signed)
    found = check_signature(signed, Trust(keys / "mine.pub"))
    assert found is not None
    assert name in found
    assert "digest_value" not in found


def test_what_a_download_adds_breaks_nothing(signed: Path, keys: Path) -> None:
    (signed / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (signed / ".cache" / "huggingface").mkdir(parents=True)
    (signed / ".cache" / "huggingface" / "note").write_text("x")
    assert check_signature(signed, Trust(keys / "mine.pub")) is None


def test_a_snapshot_of_links_can_be_checked(signed: Path, keys: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in signed.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert check_signature(snapshot, Trust(keys / "mine.pub")) is None
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text("{}")
    assert check_signature(snapshot, Trust(keys / "mine.pub")) is not None


def test_another_key_is_not_taken(signed: Path, keys: Path) -> None:
    assert check_signature(signed, Trust(keys / "other.pub")) is not None


def test_a_signature_of_something_else_is_not_taken(signed: Path, keys: Path, tmp_path: Path) -> None:
    other = write(opened(sample(tmp_path / "source2"))[1].without(["t8"]), tmp_path / "target2")
    sign(other, told(other), Signer(keys / "mine.pem"))
    shutil.copy(other / SIGNATURE, signed / SIGNATURE)
    assert check_signature(signed, Trust(keys / "mine.pub")) is not None


def test_a_certificate_below_a_trusted_root_is_taken_and_no_other(folder: Path, keys: Path) -> None:
    signer = Signer(keys / "mine.pem", keys / "mine.crt", (keys / "root.crt",))
    sign(folder, told(folder), signer)
    assert check_signature(folder, Trust(chain=(keys / "root.crt",))) is None
    assert check_signature(folder, Trust(chain=(keys / "stranger.crt",))) is not None


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json", '{"dsseEnvelope": {}}'])
def test_what_is_no_signature_is_not_taken(content: str, folder: Path, keys: Path) -> None:
    (folder / SIGNATURE).write_text(content)
    assert check_signature(folder, Trust(keys / "mine.pub")) is not None


def test_without_a_signature_nothing_is_said_to_be_signed(folder: Path, keys: Path) -> None:
    with pytest.raises(UnreadableCheckpoint, match=r"has no model\.sig"):
        check_signature(folder, Trust(keys / "mine.pub"))


def test_a_folder_that_is_not_what_its_manifest_says_is_not_signed(folder: Path, keys: Path) -> None:
    (folder / "extra.txt").write_text("x")
    (folder / "config.json").write_text("{}")
    with pytest.raises(Refused) as caught:
        sign(folder, told(folder), Signer(keys / "mine.pem"))
    assert {problem.file for problem in caught.value.problems} == {"extra.txt", "config.json"}
    assert not (folder / SIGNATURE).exists()


def test_a_folder_is_signed_anew_after_an_edit(signed: Path, keys: Path) -> None:
    (signed / "README.md").write_text("card\n")
    told(signed).with_file("README.md", b"card\n").write(signed)
    assert check_signature(signed, Trust(keys / "mine.pub")) is not None
    sign(signed, told(signed), Signer(keys / "mine.pem"))
    assert check_signature(signed, Trust(keys / "mine.pub")) is None


@pytest.mark.parametrize("name", ["mine.pub", "mine.crt"])
def test_a_key_that_is_none_is_refused(name: str, folder: Path, keys: Path) -> None:
    with pytest.raises(SigningFailed):
        sign(folder, told(folder), Signer(keys / name))


@pytest.mark.parametrize("signer", [Signer(), Signer(sigstore=True, key=Path("k")), Signer(None, Path("c"))])
def test_who_signs_must_be_clear(signer: Signer, folder: Path) -> None:
    with pytest.raises(Refused, match="who signs is not clear"):
        sign(folder, told(folder), signer)


@pytest.mark.parametrize("trust", [Trust(), Trust(Path("k"), (Path("c"),)), Trust(identity="me@x"), Trust(issuer="y")])
def test_who_is_trusted_must_be_clear(trust: Trust, folder: Path) -> None:
    with pytest.raises(Refused, match="whose signature counts is not clear"):
        check_signature(folder, trust)


def test_without_the_package_the_extra_is_named(folder: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"ckpt-surgery\[sign\]"):
        sign(folder, told(folder), Signer(keys / "mine.pem"))


def test_the_commands_sign_and_check(folder: Path, keys: Path) -> None:
    run = ckpt("manifest", "sign", folder, "--key", keys / "mine.pem")
    assert run.returncode == 0, run.stderr
    assert "into model.sig" in run.stdout
    check = ("manifest", "check-signature", folder, "--public-key", keys / "mine.pub")
    assert ckpt(*check).returncode == 0
    (folder / "config.json").write_text("{}")
    run = ckpt(*check)
    assert run.returncode == 1
    assert "not as it was signed: 'config.json'" in run.stdout

"""A card from a folder: README.md as it is, and as it should be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cards.engines import advice
from cards.frontmatter import read_front, with_keys
from cards.hashes import Hashed, Progress, hash_files
from cards.made import Made, base_place
from cards.markdown import text
from cards.markers import README, Readme, Settings, read_readme
from cards.metadata import Metadata, Origin, base_model_of, metadata
from cards.model import Model, look_at
from cards.section import NO_REPO, Section
from checkpoint import open_checkpoint
from checkpoint.wholefile import write_whole


@dataclass(frozen=True)
class Options:
    """What a user may say. `hashing` and `repo` None stand for what the section there was made with.

    `base_card` is the text of the base's README.md, `statistics` a document of `ckpt gptq`.
    """

    base_model: str | None = None
    quantized_by: str | None = None
    title: str | None = None
    repo: str | None = None
    hashing: bool | None = None
    base_card: str | None = None
    statistics: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Card:
    """README.md of `folder`: `before` is its text as it is, None where there is none, `after` as it should be."""

    folder: Path
    model: Model = field(repr=False)
    metadata: Metadata
    files: tuple[Hashed, ...] = field(repr=False)
    before: str | None = field(repr=False)
    after: str = field(repr=False)
    section: str = field(repr=False)
    lacking: tuple[str, ...]

    @property
    def stale(self) -> bool:
        return self.before != self.after

    def write(self) -> None:
        """Put the card in place, in one step, if it is not there already. Raises WriteFailed."""
        if self.stale:
            write_whole(self.after.encode(), self.folder / README, "card-unwritable")


def make_card(
    folder: Path,
    options: Options,
    *,
    manifest: Mapping[str, Any] | None,
    version: str,
    progress: Progress = lambda name, nbytes: None,
) -> Card:
    """The card of the checkpoint in `folder`, whose manifest's document is `manifest`; `version` is the toolkit's.

    Reads headers, documents and small files, weights only to hash them. Raises Refused where README.md cannot be edited
    without harm, UnreadableCheckpoint where the folder is no checkpoint or one that contradicts itself: whoever has not
    fetched the shards gets no card of what is not there.
    """
    readme = read_readme(folder)
    front = read_front(readme.text if readme else "")
    checkpoint = open_checkpoint(folder)
    model = look_at(checkpoint)
    origin = _origin(options, manifest)
    said = metadata(model, front.values, origin)
    settings = _settings(options, readme)
    known = {**manifest["files"], **manifest["shards"]} if manifest else {}
    files = hash_files(checkpoint, folder, known, hashing=settings.hashing, progress=progress)
    made = Made(manifest, options.statistics) if manifest or options.statistics else None
    base = base_model_of(front.values, origin)
    section = Section(model, advice(model.facts, settings.repo or NO_REPO), files, made, base, version)
    current = readme or Readme(before=_title(options, settings, folder))
    edited = current.with_section(section.lines(), settings)
    # The section stands behind the front matter, so the front matter of the edited text is that of the one before.
    after = with_keys(read_front(edited.text), said.added, current.newline).text
    lacking = (*said.lacking, *_lacking(manifest, settings, files))
    return Card(folder, model, said, files, readme.text if readme else None, after, edited.section or "", lacking)


def _origin(options: Options, manifest: Mapping[str, Any] | None) -> Origin:
    card = read_front(options.base_card).values if options.base_card is not None else None
    base = options.base_model or (base_place(manifest) if manifest else None)
    return Origin(base, options.quantized_by, card)


def _settings(options: Options, readme: Readme | None) -> Settings:
    """What is asked for now, else what the section there was made with."""
    settings = readme.settings if readme else Settings()
    if options.repo is not None:
        settings = replace(settings, repo=options.repo)
    return settings if options.hashing is None else replace(settings, hashing=options.hashing)


def _title(options: Options, settings: Settings, folder: Path) -> str:
    name = options.title or (settings.repo or "").rpartition("/")[2] or folder.resolve().name
    return f"# {text(name)}\n"


def _lacking(manifest: Mapping[str, Any] | None, settings: Settings, files: tuple[Hashed, ...]) -> list[str]:
    said = []
    if manifest is None:
        said.append("how it was made: there is no ckpt.manifest.json")
    if settings.repo is None:
        said.append(f"the repository: commands say {NO_REPO}; give --repo OWNER/NAME")
    unknown = sum(one.sha256 is None for one in files)
    if unknown:
        said.append(f"the SHA-256 of {unknown:,} files: --hash computes them")
    return said

"""What an upload changes on the Hub: decided from names, sizes and hashes, before a byte is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from checkpoint import INDEX
from checkpoint.shelf import SHARD_SUFFIX
from ckpt.hub.contents import Item
from ckpt.hub.repository import Entry, Remote

Change = Literal["new", "changed", "unchanged"]


@dataclass(frozen=True)
class Delivery:
    """One commit on top of `remote`. `items` are all files of the checkpoint, `changes` what each is to the Hub;
    `deleted` are files of an earlier checkpoint, `kept` those on the Hub that are none of either."""

    remote: Remote
    items: tuple[Item, ...]
    changes: Mapping[str, Change]
    deleted: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def sent(self) -> list[Item]:
        return [item for item in self.items if self.changes[item.name] != "unchanged"]

    @property
    def nbytes(self) -> int:
        return sum(item.size for item in self.sent)

    @property
    def is_empty(self) -> bool:
        return not self.sent and not self.deleted


def delivery(items: Iterable[Item], remote: Remote, ours: Iterable[str] = ()) -> Delivery:
    """What has to be sent and deleted so that `remote` holds the checkpoint `items`.

    Deleted are shards and index that are not in it, since engines read them, and files in `ours`: what this tool wrote
    about the checkpoint that was there before. Everything else on the Hub is kept.
    """
    items = tuple(items)
    names = {item.name for item in items}
    others = [name for name in remote.files if name not in names]
    stale = [name for name in others if _is_weight(name) or name in set(ours)]
    changes: dict[str, Change] = {item.name: _change(item, remote.files.get(item.name)) for item in items}
    return Delivery(remote, items, changes, tuple(stale), tuple(name for name in others if name not in stale))


def is_same(item: Item, entry: Entry) -> bool:
    """Is the file on the Hub, as the Hub itself describes it, this one?"""
    if item.size != entry.size:
        return False
    return item.sha256 == entry.sha256 if entry.sha256 else item.blob == entry.blob


def _change(item: Item, entry: Entry | None) -> Change:
    if entry is None:
        return "new"
    return "unchanged" if is_same(item, entry) else "changed"


def _is_weight(name: str) -> bool:
    return name == INDEX or ("/" not in name and name.endswith(SHARD_SUFFIX))

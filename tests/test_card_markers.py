"""README.md around a card's section: what people wrote stays, byte for byte."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from building import packed_llama
from carding import card_of

from cards.markers import END, MAX_LINES, Settings, parse_readme, read_readme
from checkpoint import Refused

BEGIN = Settings().marker
PEOPLE = "# Title\n\nWords, *emphasis*, trailing blanks  \n\n| a | b |\n|---|---|\n| 1 | 2 |\n"


def written(folder: Path, content: bytes) -> bytes:
    """README.md after a card was made beside `content`."""
    (folder / "README.md").write_bytes(content)
    card_of(folder).write()
    return (folder / "README.md").read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return packed_llama(tmp_path / "model")


FRONT = b"---\nlibrary_name: x\npipeline_tag: y\ntags: [z]\n---\n"
"""With all keys that a card of this checkpoint would add."""


@pytest.mark.parametrize(
    "people",
    [
        PEOPLE.encode(),
        PEOPLE.replace("\n", "\r\n").encode(),
        b"no final newline",
        b"final newline only once\n",
        b"\n\n\n",
        "Umlaute, 漢字, \u2028 and \x0c, lone \r in a line\n".encode(),
        b"mixed\r\nline\nends\r\n",
    ],
)
def test_what_people_wrote_is_the_beginning_of_the_file_byte_for_byte(folder: Path, people: bytes) -> None:
    front = FRONT.replace(b"\n", b"\r\n") if people.find(b"\r\n") in range(1, 40) else FRONT
    after = written(folder, front + people)
    assert after.startswith(front + people)
    assert after.rstrip().endswith(END.encode())


def test_a_byte_order_mark_stays_first(folder: Path) -> None:
    after = written(folder, b"\xef\xbb\xbf" + FRONT + b"text\n")
    assert after.startswith(b"\xef\xbb\xbf" + FRONT + b"text\n")
    assert after.count(b"\xef\xbb\xbf") == 1


def test_an_empty_line_stands_before_the_section(folder: Path) -> None:
    for people in (b"text", b"text\n", b"text\n\n"):
        assert written(folder, FRONT + people).startswith(FRONT + b"text\n\n" + BEGIN.encode())


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_only_what_is_between_the_markers_is_replaced(folder: Path, newline: str) -> None:
    before = FRONT.decode() + "above\n\n"
    after = "\nbelow, no final newline"
    old = f"{before}{BEGIN}\nstale\n{END}{after}".replace("\n", newline)
    new = written(folder, old.encode()).decode()
    assert new.startswith(before.replace("\n", newline) + BEGIN)
    assert new.endswith(END + after.replace("\n", newline))
    assert "stale" not in new
    assert new.replace("\r\n", "").count("\n") == (0 if newline == "\r\n" else new.count("\n"))


def test_a_second_run_changes_nothing(folder: Path) -> None:
    first = written(folder, FRONT + PEOPLE.encode())
    assert written(folder, first) == first
    assert not card_of(folder).stale


def test_the_section_is_stale_once_a_tensor_changed(folder: Path, tmp_path: Path) -> None:
    written(folder, PEOPLE.encode())
    other = packed_llama(tmp_path / "other", bits=8)
    (other / "README.md").write_bytes((folder / "README.md").read_bytes())
    assert card_of(other).stale


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{BEGIN}\n", "begin in line 1"),
        (f"x\n{END}\n", "end in line 2"),
        (f"{END}\n{BEGIN}\n", "begin in line 2, end in line 1"),
        (f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n", "begin in line 1, begin in line 3, end in line 2, end in line 4"),
        (f"{BEGIN}\n{BEGIN}\n{END}\n", "begin in line 1, begin in line 2, end in line 3"),
        (f"{BEGIN}\n{END} and words\n", "line 2: a damaged marker"),
        (f" {BEGIN}\n{END}\n", "line 1: a damaged marker"),
        (f"{BEGIN.replace('begin', 'begin repo=no')}\n{END}\n", "line 1: a damaged marker"),
        (f"{BEGIN.replace('begin', 'begin repo=a/b--c')}\n{END}\n", "line 1: a damaged marker"),
        (f"{BEGIN}\n<!--ckpt:card END-->\n", "line 2: a damaged marker"),
    ],
)
def test_damaged_markers_are_refused_with_their_lines(folder: Path, text: str, said: str) -> None:
    (folder / "README.md").write_text(text)
    with pytest.raises(Refused) as refusal:
        card_of(folder)
    assert said in str(refusal.value)
    assert (folder / "README.md").read_text() == text


def test_the_markers_remember_what_the_section_was_made_with(folder: Path) -> None:
    card_of(folder, repo="me/model", hashing=True).write()
    assert parse_readme((folder / "README.md").read_text()).settings == Settings(hashing=True, repo="me/model")
    again = card_of(folder)
    assert not again.stale
    assert "vllm serve me/model" in again.section
    assert "not computed" not in again.section
    assert "not computed" in card_of(folder, hashing=False).section


def test_without_a_readme_one_is_made(folder: Path) -> None:
    card_of(folder, title="A *title*").write()
    text = (folder / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "\n---\n\n# A &#42;title&#42;\n\n<!-- ckpt:card begin -->\n" in text
    assert text.endswith(f"{END}\n")


def test_the_title_is_the_name_of_the_repository_or_the_folder(folder: Path) -> None:
    assert "\n# model\n" in card_of(folder).after
    assert "\n# Llama-INT4\n" in card_of(folder, repo="me/Llama-INT4").after


@pytest.mark.parametrize("content", [b"\xff\xfe text", b"ok \x80"])
def test_a_readme_that_is_not_utf8_is_refused(folder: Path, content: bytes) -> None:
    (folder / "README.md").write_bytes(content)
    with pytest.raises(Refused, match="not UTF-8"):
        card_of(folder)


def test_a_readme_that_links_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    (folder / "README.md").symlink_to(secret)
    with pytest.raises(Refused, match="inside the folder"):
        card_of(folder)


def test_a_pipe_in_place_of_a_readme_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "README.md")
    with pytest.raises(Refused, match="inside the folder"):
        card_of(folder)


def test_the_card_is_replaced_in_one_step_and_readable(folder: Path) -> None:
    (folder / "README.md").write_text(PEOPLE)
    twin = folder.parent / "twin.md"
    os.link(folder / "README.md", twin)
    card_of(folder).write()
    assert twin.read_text() == PEOPLE
    assert stat.S_IMODE((folder / "README.md").stat().st_mode) & 0o444 == 0o444
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_readme_of_a_book_is_refused_and_one_of_many_pages_read(tmp_path: Path, end: str) -> None:
    (tmp_path / "README.md").write_text(f"x{end}" * MAX_LINES, newline="")
    assert read_readme(tmp_path)
    (tmp_path / "README.md").write_text(f"x{end}" * (MAX_LINES + 1), newline="")
    with pytest.raises(Refused, match="over 200,000 lines"):
        read_readme(tmp_path)

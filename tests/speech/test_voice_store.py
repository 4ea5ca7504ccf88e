"""Uploaded voices survive restarts, and a bad file or name does not affect the others."""

import errno
import logging
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from oscine.errors import ConfigError, OscineError, RequestError, VoiceError
from oscine.server.http.errors import api_error
from oscine.speech.voice_store import VoiceStore
from oscine.voice import Voice

RESERVED = ("Ryan", "alloy", "default")


def voice(number: float = 0.0, transcript: str | None = None) -> Voice:
    speaker = np.full(8, number, np.float32)
    return Voice(speaker) if transcript is None else Voice(speaker, np.ones((3, 16), np.int64), transcript)


def open_store(folder: Path | None, max_voices: int = 1000) -> VoiceStore:
    return VoiceStore(folder, RESERVED, max_voices)


@pytest.fixture(params=["files", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VoiceStore:
    return open_store(tmp_path / "voices" if request.param == "files" else None)


def status_of(caught: pytest.ExceptionInfo[OscineError]) -> int:
    return api_error(caught.value).status


def test_a_stored_voice_is_found_by_its_name_in_any_case(store: VoiceStore) -> None:
    store.add("Anna", voice(), consent="anna said yes", speaker_description="calm")
    stored = store.get("aNNa")
    assert stored is not None and stored.voice == voice() and (stored.name, stored.id) == ("Anna", "anna")
    assert (stored.consent, stored.speaker_description, stored.mode) == ("anna said yes", "calm", "timbre")
    assert store.names() == ["anna"] and store.all() == [stored]
    assert store.get("bob") is None


def test_a_deleted_voice_is_gone(store: VoiceStore) -> None:
    store.add("anna", voice(), consent="yes")
    assert store.delete("ANNA") == "anna"
    assert store.get("anna") is None and store.all() == []
    with pytest.raises(RequestError) as caught:
        store.delete("anna")
    assert status_of(caught) == 404
    store.add("anna", voice(1), consent="yes")
    assert store.all()[0].voice == voice(1)


def test_adding_the_same_voice_again_succeeds_and_another_is_a_conflict(store: VoiceStore) -> None:
    first = store.add("anna", voice(), consent="first", source_hash="clip 1")
    assert store.add("ANNA", voice(), consent="second") == first
    assert store.add("anna", voice(1), consent="second", source_hash="clip 1") == first  # encoders may round
    for other, clip in ((voice(1), None), (voice(1), "clip 2"), (voice(0, "hello"), None)):
        with pytest.raises(RequestError, match="is taken by another voice; delete or overwrite it") as caught:
            store.add("anna", other, consent="yes", source_hash=clip)
        assert status_of(caught) == 409 and caught.value.param == "name"
    assert store.all() == [first]


HASH = "0123456789abcdef" * 2
UNPRINTABLE = ["a\0", "anna\tbell", "a\nb", "\u202eanna", "a\u200bb", "a\ud800", "\x7f", "a\u2028b"]


@pytest.mark.parametrize("name", ["", " ", "a" * 65, f"voice.{HASH}", f"VOICE.{HASH.upper()}", *UNPRINTABLE])
def test_invalid_names_are_refused(store: VoiceStore, name: str) -> None:
    with pytest.raises(VoiceError, match="1 to 64 printable characters") as caught:
        store.add(name, voice(), consent="yes")
    assert caught.value.param == "name"
    assert store.get(name) is None
    with pytest.raises(RequestError) as missing:
        store.delete(name)
    assert status_of(missing) == 404


PRINTABLE = [
    *("Anna B.", "ännä", "小明", "AC/DC", "a\\b", "50% off?", "#1", '"quoted"', "ßtraße", "İpek", "👩", "x" * 64),
    *(
        ".",
        "..",
        "../anna",
        "/etc/passwd",
        "..\\..\\anna",
        "%2e%2e%2fanna",
        "C:\\anna",
        "~root",
        "-rf",
        "anna.safetensors",
    ),
    *("con", "nul.txt", "a" * 60 + "ÄÖÜ!", "$(id)", "`id`", "a;b", "<script>", "{0}", "%s"),
]


@pytest.mark.parametrize("name", PRINTABLE)
def test_any_printable_name_can_be_used_and_stays_in_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a" / "voices"
    for outside in (tmp_path / "anna.safetensors", folder.parent / "anna.safetensors"):
        outside.parent.mkdir(parents=True, exist_ok=True)
        voice(9).save(outside)
    store = open_store(folder)
    first = store.add(name, voice(1, "hello"), consent="yes")
    assert first.name == name
    (file,) = folder.iterdir()
    assert re.fullmatch(r"[a-z0-9_-]{1,64}\.safetensors|voice\.[0-9a-f]{32}\.safetensors", file.name)
    assert file.stat().st_mode & 0o777 == 0o600
    again = open_store(folder)
    assert again.all() == [first] and again.get(first.id) == again.get(name.upper()) == first
    with pytest.raises(RequestError, match="is taken by another voice"):
        again.add(name.lower(), voice(2), consent="yes")
    assert again.delete(name) == name and list(folder.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"a", "anna.safetensors"}


def test_spellings_of_a_name_mean_one_voice(store: VoiceStore) -> None:
    first = store.add(" Zoë ", voice(), consent="yes")  # with spaces around, and a combined letter
    assert first.name == "Zoë"
    for spelling in ("ZOË", "zoe\u0308", "zoë", first.id):
        assert store.get(spelling) == first
    assert store.get("zoe") is None
    kelvin = store.add("\u212a", voice(1), consent="yes")
    assert kelvin.id == "k" and store.get("K") == kelvin


def test_reserved_names_are_reserved_in_every_spelling(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, ("Zoë", "uncle fu"))
    for name in ("zoe\u0308", "ZOË", "Uncle Fu"):
        with pytest.raises(RequestError, match="is reserved"):
            store.add(name, voice(), consent="yes")


def test_an_overwritten_voice_is_replaced_with_everything_that_belongs_to_it(store: VoiceStore) -> None:
    first = store.add("anna", voice(1), consent="first", speaker_description="calm", mime_type="audio/wav")
    second = store.add("Anna", voice(2, "hello"), consent="second", overwrite=True)
    assert (second.voice, second.consent, second.speaker_description) == (voice(2, "hello"), "second", None)
    assert (second.name, second.mime_type) == ("Anna", None) and second != first
    assert store.all() == [second] and store.get("anna") == second
    assert store.add("bob", voice(3), consent="yes", overwrite=True).voice == voice(3)


def test_a_full_store_can_still_overwrite(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        store = open_store(folder, max_voices=1)
        store.add("a", voice(), consent="yes")
        assert store.add("a", voice(1), consent="yes", overwrite=True).voice == voice(1)
        with pytest.raises(RequestError, match="1 voices are stored"):
            store.add("b", voice(), consent="yes", overwrite=True)


@pytest.mark.parametrize("name", ["ryan", "RYAN", "alloy", "Default"])
def test_reserved_names_cannot_be_taken(store: VoiceStore, name: str) -> None:
    with pytest.raises(RequestError, match="is reserved") as caught:
        store.add(name, voice(), consent="yes")
    assert status_of(caught) == 409
    assert store.get(name) is None


def test_a_full_store_refuses_new_voices(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        store = open_store(folder, max_voices=2)
        for name in ("a", "b"):
            store.add(name, voice(), consent="yes")
        with pytest.raises(RequestError, match="2 voices are stored") as caught:
            store.add("c", voice(), consent="yes")
        assert status_of(caught) == 409
        store.add("a", voice(), consent="yes")
        store.delete("b")
        store.add("c", voice(), consent="yes")


# Files


def test_voices_survive_a_restart(tmp_path: Path) -> None:
    notes = {"consent": "yes, 你好\n", "speaker_description": "calm", "source_hash": "clip 1"}
    first = open_store(tmp_path / "new" / "voices").add("anna", voice(3, "hello you"), **notes)
    (again,) = open_store(tmp_path / "new" / "voices").all()
    assert again == first
    assert again.mode == "in_context" and again.voice.transcript == "hello you"
    assert again.file_size == (tmp_path / "new" / "voices" / "anna.safetensors").stat().st_size


def test_a_voice_is_one_file_that_voice_load_reads(tmp_path: Path) -> None:
    open_store(tmp_path).add("anna", voice(3, "hello you"), consent="yes")
    assert [path.name for path in tmp_path.iterdir()] == ["anna.safetensors"]
    assert Voice.load(tmp_path / "anna.safetensors") == voice(3, "hello you")


def test_a_voice_file_that_an_operator_added_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    voice(5).save(tmp_path / "bob.safetensors")
    os.utime(tmp_path / "bob.safetensors", (1000, 1000))
    stored = store.get("bob")
    assert stored is not None and stored.voice == voice(5)
    assert (stored.consent, stored.created_at) == (None, 1000)


def test_changes_by_another_process_are_noticed(tmp_path: Path) -> None:
    one, other = open_store(tmp_path), open_store(tmp_path)
    one.add("anna", voice(1), consent="yes")
    found = other.get("anna")
    assert found is not None and found.voice == voice(1)
    other.delete("anna")
    other.add("anna", voice(2), consent="yes")
    found = one.get("anna")
    assert found is not None and found.voice == voice(2)
    other.delete("anna")
    assert one.get("anna") is None and one.all() == []


def test_one_process_wins_when_several_store_the_same_name(tmp_path: Path) -> None:
    stores = [open_store(tmp_path) for _ in range(8)]
    begin = threading.Barrier(len(stores))
    outcomes: list[object] = []

    def add(number: int, store: VoiceStore) -> None:
        begin.wait()
        try:
            outcomes.append(store.add("anna", voice(number), consent="yes").voice)
        except RequestError as error:
            outcomes.append(api_error(error).status)

    threads = [threading.Thread(target=add, args=pair) for pair in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [outcome for outcome in outcomes if isinstance(outcome, Voice)]
    assert len(winners) == 1 and outcomes.count(409) == len(stores) - 1
    assert all(stored.voice == winners[0] for store in stores for stored in store.all())
    assert [path.name for path in tmp_path.iterdir()] == ["anna.safetensors"]


def damage(path: Path, how: str) -> None:
    if how == "pipe":
        os.mkfifo(path)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "notes":
        voice().save(path, {"created_at": "yesterday"})
    else:
        voice().save(path)
        path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize("how", ["cut", "empty", "notes", "pipe"])
def test_a_damaged_file_is_reported_once_and_does_not_affect_others(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_store(tmp_path).add("anna", voice(), consent="yes")
    damage(tmp_path / "bob.safetensors", how)
    with caplog.at_level(logging.WARNING):
        store = open_store(tmp_path)
        assert [stored.name for stored in store.all()] == ["anna"]
        for _ in range(3):
            with pytest.raises(VoiceError, match=r"the file of voice 'bob' is damaged.*; delete the voice"):
                store.get("bob")
    assert len([record for record in caplog.records if "bob" in record.getMessage()]) == 1
    with pytest.raises(VoiceError, match="damaged"):
        store.add("bob", voice(), consent="yes")
    store.delete("bob")
    store.add("bob", voice(), consent="yes")
    assert store.names() == ["anna", "bob"]


def test_an_overwrite_repairs_a_damaged_file_and_does_not_follow_a_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / "voices", tmp_path / "outside"
    store = open_store(folder)
    outside.write_bytes(b"not yours")
    (folder / "anna.safetensors").symlink_to(outside)
    assert store.add("anna", voice(1), consent="yes", overwrite=True).voice == voice(1)
    assert outside.read_bytes() == b"not yours" and not (folder / "anna.safetensors").is_symlink()


def test_a_renamed_file_with_a_plain_name_is_a_voice_and_with_another_hash_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_store(tmp_path).add("Anna B.", voice(), consent="yes")
    content = (tmp_path / f"{first.id}.safetensors").read_bytes()
    (tmp_path / "bea.safetensors").write_bytes(content)
    (tmp_path / f"voice.{HASH}.safetensors").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        store = open_store(tmp_path)
    assert sorted(stored.name for stored in store.all()) == ["Anna B.", "bea"]
    assert "was renamed" in caplog.text
    store.delete(f"voice.{HASH}")
    assert store.get("Anna B.") is not None


def test_listing_again_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        open_store(tmp_path).add(f"Voice no. {number}", voice(number), consent="yes")
    store = open_store(tmp_path)

    def fail(path: Path) -> object:
        raise AssertionError(path)

    monkeypatch.setattr(Voice, "load_with_notes", staticmethod(fail))
    assert len(store.all()) == 20 and "Voice no. 7" in store.names()


def test_an_exported_voice_is_the_content_of_a_voice_file(store: VoiceStore, tmp_path: Path) -> None:
    store.add("Anna B.", voice(1, "hello"), consent="yes", mime_type="audio/wav")
    stored, content = store.export("anna b.")
    (tmp_path / "copy.safetensors").write_bytes(content)
    loaded, notes = Voice.load_with_notes(tmp_path / "copy.safetensors")
    assert loaded == stored.voice and (notes["name"], notes["mime_type"]) == ("Anna B.", "audio/wav")
    with pytest.raises(RequestError, match="uploaded voice 'bob' does not exist"):
        store.export("bob")


def test_files_that_are_not_voices_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["Anna.safetensors", "ryan.safetensors", "a b.safetensors", "notes.txt", ".anna.1234.part"]
    for name in names:
        voice().save(tmp_path / name)
    with caplog.at_level(logging.WARNING):
        store = open_store(tmp_path)
    assert store.all() == [] and store.get("ryan") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert len(caplog.records) == 3


def test_a_file_system_without_hard_links_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = open_store(tmp_path)
    store.add("anna", voice(), consent="yes")
    assert [path.name for path in tmp_path.iterdir()] == ["anna.safetensors"]
    assert store.all()[0].voice == voice()


def test_a_full_disk_is_a_server_error_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OscineError, match="cannot store voice 'anna' because of a disk error; see the log") as caught:
        store.add("anna", voice(), consent="yes")
    assert status_of(caught) == 500 and str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert "No space left" in caplog.text
    caplog.clear()  # expected
    monkeypatch.undo()
    store.add("anna", voice(), consent="yes")


def test_a_dangling_link_is_a_conflict(tmp_path: Path) -> None:
    (tmp_path / "anna.safetensors").symlink_to(tmp_path / "nothing")
    with pytest.raises(RequestError) as caught:
        open_store(tmp_path).add("anna", voice(), consent="yes")
    assert status_of(caught) == 409


def test_an_unusable_folder_is_reported_at_startup(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        open_store(tmp_path / "file")


def test_a_removed_folder_is_a_server_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(tmp_path / "voices")
    (tmp_path / "voices").rmdir()
    with pytest.raises(OscineError) as caught:
        store.all()
    assert status_of(caught) == 500
    assert "cannot list the voices" in caplog.text
    caplog.clear()  # expected


def test_files_of_voices_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    open_store(tmp_path).add("anna", voice(), consent="anna")
    assert (tmp_path / "anna.safetensors").stat().st_mode & 0o777 == 0o600
    open_store(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_voice_that_root_adds_belongs_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12346)
    open_store(tmp_path).add("anna", voice(), consent="anna")
    found = (tmp_path / "anna.safetensors").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (12345, 12346, 0o600)


def test_a_voice_that_is_deleted_while_it_is_read_is_just_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_store(tmp_path).add("anna", voice(), consent="anna")
    store, load = open_store(tmp_path / "."), Voice.load_with_notes
    store._cache.clear()

    def load_late(path: Path) -> object:
        path.unlink()
        return load(path)

    monkeypatch.setattr(Voice, "load_with_notes", staticmethod(load_late))
    assert store.get("anna") is None
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_upload_whose_file_is_deleted_at_once_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, load = open_store(tmp_path), Voice.load_with_notes

    def load_late(path: Path) -> object:
        path.unlink()
        return load(path)

    monkeypatch.setattr(Voice, "load_with_notes", staticmethod(load_late))
    with pytest.raises(RequestError, match="was deleted while it was stored; add it again"):
        store.add("anna", voice(), consent="anna")

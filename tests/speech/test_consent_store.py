"""Consent recordings in a folder: bounded, private, shared by processes."""

import os
import stat
from pathlib import Path

import pytest

from oscine.errors import RequestError
from oscine.server.http.errors import api_error
from oscine.speech.consent_store import ConsentStore


@pytest.mark.parametrize("has_folder", [True, False])
def test_consents_are_bounded_in_number(tmp_path: Path, has_folder: bool) -> None:
    store = ConsentStore(tmp_path if has_folder else None, 2, 2**20)
    first = store.add("a", "en", b"one", "audio/wav")
    store.add("b", "en", b"two", None)
    with pytest.raises(RequestError, match="2 consents are stored") as caught:
        store.add("c", "en", b"three", None)
    assert api_error(caught.value).status == 409
    store.delete(first.id)
    assert store.add("c", "en", b"three", None) in store.all()


def test_recordings_are_bounded_in_bytes(tmp_path: Path) -> None:
    store = ConsentStore(tmp_path, 10, 1000)
    first = store.add("a", "en", bytes(600), None)
    with pytest.raises(RequestError, match="the recordings of all consents"):
        store.add("b", "en", bytes(600), None)
    store.delete(first.id)
    store.add("b", "en", bytes(600), None)


def test_another_process_sees_the_same_consents(tmp_path: Path) -> None:
    one, other = ConsentStore(tmp_path, 10, 1000), ConsentStore(tmp_path, 10, 1000)
    consent = one.add("a", "de-DE", b"ja", "audio/wav")
    assert other.get(consent.id) == consent and other.all() == [consent]
    assert other.rename(consent.id, "b").name == one.get(consent.id).name == "b"
    other.delete(consent.id)
    assert one.all() == [] and list((tmp_path / "consents").iterdir()) == []


def test_only_the_owner_can_read_a_recording(tmp_path: Path) -> None:
    ConsentStore(tmp_path, 10, 1000).add("a", "en", b"yes", None)
    folder = tmp_path / "consents"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["", "..", "cons_1234", "../anna", "cons_" + "g" * 24, "cons_" + "0" * 24])
def test_no_id_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "anna.json").write_text("{}")
    with pytest.raises(RequestError) as caught:
        ConsentStore(tmp_path, 10, 1000).get(name)
    assert api_error(caught.value).status == 404


def test_damaged_and_interrupted_files_are_no_consents(tmp_path: Path) -> None:
    store = ConsentStore(tmp_path, 10, 1000)
    consent = store.add("a", "en", b"yes", None)
    folder = tmp_path / "consents"
    (folder / f"cons_{'1' * 24}.json").write_text("[")
    orphan, young = folder / f"cons_{'2' * 24}.recording", folder / f"cons_{'3' * 24}.recording"
    for path in (orphan, young):
        path.write_bytes(b"half")
    os.utime(orphan, (0, 0))
    assert store.all() == [consent]
    store.add("b", "en", b"yes", None)
    assert not orphan.exists() and young.exists()

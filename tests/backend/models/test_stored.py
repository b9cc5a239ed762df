"""Files of models: packed the same each time, fetched whole, again when damaged, swept when nothing names them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from backend.errors import StoreUnavailable
from backend.models.loading import ModelLoader
from backend.models.packing import measure, pack, unpack
from backend.models.stored import StoredModels, keep_model
from backend.settings import Settings, load_settings
from backend.store import Store
from backend.store.project_models import find_file, prune_models, read_file
from backend.store.tables import ModelChunk, ModelFile
from backend.tagger.errors import InvalidModel
from backend.tagger.model_files import MODEL_FILE, read_header
from tests.support.own_models import learn_own
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("own") / "model"
    learn_own(out)
    return out


@pytest.fixture
def here(url: str, tmp_path: Path) -> Settings:
    return load_settings(database_url=url, model_dir=str(tmp_path / "models"))


def keep(store: Store, model: Path, settings: Settings, **how: int) -> str:
    with store.write() as session:
        return keep_model(session, model, settings=settings, **how)


def test_a_directory_is_always_the_same_file(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (copy / "checkpoint.partial").write_bytes(b"left by a training")  # is no part of the model
    os.utime(copy / MODEL_FILE, (1, 1))
    content = bytearray()
    assert pack(copy, content.extend) == measure(model)
    (tmp_path / "back").mkdir()
    unpack(bytes(content), tmp_path / "back")
    assert [each.name for each in (tmp_path / "back").iterdir()] == [MODEL_FILE]
    assert measure(tmp_path / "back") == measure(model)
    (copy / "starter.Drug.safetensors").write_bytes(b"a starter")
    assert measure(copy) != measure(model)
    for wrong in (b"no archive", bytes(content[:700])):
        with pytest.raises(InvalidModel):
            unpack(wrong, tmp_path / "back")


def test_what_is_kept_can_be_fetched_anywhere(store: Store, model: Path, here: Settings, tmp_path: Path) -> None:
    digest = keep(store, model, here)
    assert keep(store, model, here) == digest
    elsewhere = StoredModels(store, tmp_path / "another machine")
    place = elsewhere.fetch(digest)
    header = read_header(place)
    assert header is not None
    assert header.hash == digest
    before = (place / MODEL_FILE).stat().st_mtime_ns
    assert elsewhere.fetch(digest) == place
    assert (place / MODEL_FILE).stat().st_mtime_ns == before  # what is whole is not fetched again
    (place / MODEL_FILE).write_bytes(b"damaged")
    assert measure(elsewhere.fetch(digest)) == measure(model)
    shutil.rmtree(place)
    assert measure(elsewhere.fetch(digest)) == measure(model)


def test_what_nobody_has_whole_is_said(store: Store, model: Path, here: Settings) -> None:
    stored = StoredModels(store, here.models_directory)
    with pytest.raises(InvalidModel, match="got none: train it again"):
        stored.fetch("ab" * 32)
    with pytest.raises(InvalidModel, match="made by `surespan train`"):
        keep(store, here.models_directory, here)
    digest = keep(store, model, here)
    with store.write() as session:
        session.execute(sa.update(ModelChunk).values(content=b"damaged"))
    with pytest.raises(InvalidModel, match="got a damaged one"):
        stored.fetch(digest)
    assert not stored.place(digest).exists()


def test_a_large_model_lies_in_the_directory_that_all_share(store: Store, model: Path, here: Settings) -> None:
    digest = keep(store, model, here, largest=10)
    with store.read() as session:
        file = find_file(session, digest)
        assert read_file(session, digest) is None
    assert file is not None
    assert file.path == str((here.models_directory / digest).absolute())
    assert (file.size, file.sha256) == measure(model)
    stored = StoredModels(store, here.models_directory)
    assert measure(stored.fetch(digest)) == measure(model)
    assert measure(StoredModels(store, here.models_directory / "other").fetch(digest)) == measure(model)
    (stored.place(digest) / MODEL_FILE).write_bytes(b"damaged")
    with pytest.raises(InvalidModel, match="every replica must see the directory MODEL_DIR"):
        stored.fetch(digest)
    assert keep(store, model, here, largest=10) == digest  # trained again, it is whole again
    assert measure(stored.fetch(digest)) == measure(model)


def test_what_the_database_has_forgotten_is_swept_from_the_disk(store: Store, model: Path, here: Settings) -> None:
    digest = keep(store, model, here)
    stored = StoredModels(store, here.models_directory)
    assert stored.sweep() == 0  # there is not even a directory
    stored.fetch(digest)
    mine = here.models_directory / "a folder of somebody"
    mine.mkdir()
    half = here.models_directory / ".half"
    half.mkdir()
    with store.write() as session:
        session.execute(sa.update(ModelFile).values(stored_at=sa.text("'2026-01-01 00:00:00'")))
        assert [each.model_hash for each in prune_models(session)] == [digest]
    assert stored.sweep() == 0  # too young: a large model may be there before its row is
    for each in (stored.place(digest), mine, half):
        os.utime(each, (1, 1))
    assert stored.sweep() == 2
    assert list(here.models_directory.iterdir()) == [mine]


def test_a_database_that_is_away_is_asked_again(store: Store, model: Path, here: Settings) -> None:
    digest = keep(store, model, here)
    stored, tries = StoredModels(store, here.models_directory), [0]

    def fetch() -> Path:
        tries[0] += 1
        if tries[0] < 3:
            raise StoreUnavailable("away")
        return stored.fetch(digest)

    loader = ModelLoader(here, name=f"stored:{digest}", wanted=digest, fetch=fetch)
    assert loader.state == "idle"
    assert loader.tagger(60.0).hash == digest
    assert tries == [3]
    loader.drop()
    assert loader.state == "idle"
    loader.start()
    loader.drop()  # while it loads
    wait_for(lambda: loader.state == "idle", "what was dropped is not kept once it has loaded")
    loader.close()

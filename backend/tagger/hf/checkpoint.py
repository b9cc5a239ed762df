"""Where a checkpoint lies, what it says about itself, and its hash: all known without loading a weight.

A model is named by a folder or by a hub id (`owner/name`, with `@revision` for a certain one). A hub id is looked for
in the local cache first and used from there without asking, so that a model does not change under a project; what is
not there is downloaded once. Weights are read from safetensors only, and no code of a checkpoint is ever run.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import regex

from backend.tagger.errors import InvalidModel
from backend.tagger.hf.mapping import MAPPING_FILE, LabelMapping, Labels, map_labels, read_mapping

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
CHAIN_FILE = "surespan-chain.safetensors"
_HUB_ID = regex.compile(r"[\w][\w.-]*(?:/[\w][\w.-]*)?(?:@[\w./-]+)?")
# What decides the pieces of a text, in any family; absent ones are left out.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spm.model", "spiece.model", "tokenizer.model",
    "bpe.codes", "source.spm",
)  # fmt: skip
_WANTED = (CONFIG_FILE, *TOKENIZER_FILES, WEIGHTS_FILE, WEIGHTS_INDEX, "model-*.safetensors", MAPPING_FILE, CHAIN_FILE)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on this machine: its name, its folder, its labels, its fitted chain if there is one, its hash."""

    name: str
    folder: Path
    labels: Labels
    mapping: LabelMapping
    chain: Path | None
    hash: str

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of its labels."""
        return self.labels.space.classes


def is_hub_id(model: str) -> bool:
    """Whether a name could be a hub id.

    >>> is_hub_id("dslim/bert-base-NER"), is_hub_id("a/b@main"), is_hub_id("./model"), is_hub_id("a/b/c")
    (True, True, False, False)
    """
    return _HUB_ID.fullmatch(model) is not None


def find_folder(model: str, *, download: bool = True) -> Path:
    """Return the folder of a checkpoint: itself, or the snapshot of a hub id in the cache.

    Raises InvalidModel when there is none, with what to do; without `download` the hub is not asked.
    """
    if Path(model).is_dir():
        return Path(model)
    if not is_hub_id(model):
        raise InvalidModel(f"expected a model folder or a hub id (owner/name), got {model!r}, which is neither")
    # Imported where it is needed: most installations never ask the hub.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    name, _, revision = model.partition("@")

    def snapshot(*, local: bool) -> Path:
        folder = snapshot_download(
            name, revision=revision or None, allow_patterns=list(_WANTED), local_files_only=local
        )
        return Path(str(folder))

    try:
        cached = snapshot(local=True)
        if _is_whole(cached):
            return cached
    except (OSError, ValueError):
        pass
    if not download:
        raise InvalidModel(f"expected {model} in the local cache, got nothing there yet")
    try:
        return snapshot(local=False)
    except (OSError, ValueError) as error:
        raise InvalidModel(
            f"expected a model folder at {model} or a model of that name on the hub, got {type(error).__name__}: "
            "the hub is out of reach, or has no such model, or wants a token (HF_TOKEN). On a machine that reaches it: "
            f"`hf download {name}`; then copy its cache (HF_HOME) here, or set SURESPAN_MODEL to a folder"
        ) from None


def _is_whole(folder: Path) -> bool:
    if not (folder / CONFIG_FILE).is_file():
        return False
    try:
        return bool(weight_files(folder)) and bool(tokenizer_files(folder))
    except InvalidModel:
        return False


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint.

    Raises InvalidModel when there are none, or when some of an index are missing.
    """
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if (folder / WEIGHTS_INDEX).is_file():
        index = _json(folder / WEIGHTS_INDEX).get("weight_map")
        files = [folder / str(name) for name in sorted(set(index.values()))] if isinstance(index, dict) else []
        missing = [file.name for file in files if not file.is_file() or file.parent != folder]
        if files and not missing:
            return files
        raise InvalidModel(f"expected the files that {WEIGHTS_INDEX} names, got none of {missing}; copy them again")
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.h5", "*.ckpt") for file in folder.glob(pattern))
    raise InvalidModel(
        f"expected weights in safetensors ({WEIGHTS_FILE}) in {folder}, got {pickled or 'none'}; nothing is ever "
        "unpickled. Save them once with `model.save_pretrained(folder)`, or take the revision of the hub that has "
        "them (often owner/name@refs/pr/1)"
    )


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files that decide the tokenizer."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


def label_names(folder: Path) -> list[str]:
    """Return the labels of a checkpoint's columns, from its configuration."""
    config = _json(folder / CONFIG_FILE)
    names = config.get("id2label")
    if not isinstance(names, dict) or not names:
        raise InvalidModel(
            f"expected the labels of a token classifier (id2label) in {folder / CONFIG_FILE}, got none; "
            "an encoder alone becomes a tagger with `surespan train --encoder`"
        )
    try:
        return [str(names[str(i)]) for i in range(len(names))]
    except KeyError:
        raise InvalidModel(f"expected labels numbered from 0 in {CONFIG_FILE}, got {sorted(names)}") from None


def describe_checkpoint(
    model: str, *, mapping_file: Path | None = None, int8: bool = False, download: bool = True
) -> Checkpoint:
    """Say everything about a checkpoint that is known without its weights in memory.

    A folder may hold only a `surespan.json` whose `checkpoint` names another folder or a hub id, and a chain fitted
    to it. The hash is over configuration, weights, tokenizer, fitted chain, what the labels are mapped to, and int8.
    """
    folder = find_folder(model, download=download)
    own = folder / MAPPING_FILE
    mapping = read_mapping(mapping_file or own) if mapping_file or own.is_file() else LabelMapping()
    pointed = read_mapping(own).checkpoint if own.is_file() else None
    source = folder
    if pointed:
        # A path beside the file means the same from every directory.
        source = folder / pointed if (folder / pointed).is_dir() else find_folder(pointed, download=download)
    if not (source / CONFIG_FILE).is_file():
        raise InvalidModel(f"expected a checkpoint ({CONFIG_FILE}) in {source}, got none")
    labels = map_labels(label_names(source), mapping)
    chain = folder / CHAIN_FILE
    files = [source / CONFIG_FILE, *weight_files(source), *tokenizer_files(source)]
    if chain.is_file():
        files.append(chain)
    digest = hashlib.sha256(b"surespan-checkpoint\0")
    for file in sorted(files):
        digest.update(f"{file.name}\0{_file_hash(file)}\0".encode())
    for extra in (mapping.to_json(), "int8" if int8 else ""):
        if extra:
            digest.update(f"{extra}\0".encode())
    name = Path(model).resolve().name if Path(model).is_dir() else model.partition("@")[0].rpartition("/")[2]
    return Checkpoint(name, source, labels, mapping, chain if chain.is_file() else None, digest.hexdigest())


def describe_encoder(model: str) -> tuple[Path, str]:
    """Return the folder of an encoder and the hash of its configuration, weights and tokenizer.

    Raises InvalidModel.
    """
    folder = find_folder(model)
    if not (folder / CONFIG_FILE).is_file():
        raise InvalidModel(f"expected an encoder ({CONFIG_FILE}) in {folder}, got none")
    digest = hashlib.sha256(b"surespan-encoder\0")
    for file in sorted([folder / CONFIG_FILE, *weight_files(folder), *tokenizer_files(folder)]):
        digest.update(f"{file.name}\0{_file_hash(file)}\0".encode())
    return folder, digest.hexdigest()


def _file_hash(file: Path) -> str:
    stat = file.stat()
    return _hash_once(str(file.resolve()), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _hash_once(path: str, size: int, changed: int) -> str:  # noqa: ARG001 - size and time make a changed file another key
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidModel(f"expected a JSON file at {path}, got: {error}") from None
    if not isinstance(content, dict):
        raise InvalidModel(f"expected an object in {path}, got {type(content).__name__}")
    return content

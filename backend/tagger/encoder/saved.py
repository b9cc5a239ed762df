"""The saved BERT-BiLSTM-CRF: the same one file as the bundled model's, with the encoder and its tokenizer inside.

Weights are stored as they are (float32), so that a loaded model predicts what the trained one did. The files of the
encoder's configuration and tokenizer are stored as bytes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

from backend.tagger.encoder.network import EncoderNetwork, HeadConfig
from backend.tagger.errors import InvalidModel
from backend.tagger.hf.checkpoint import CONFIG_FILE, TOKENIZER_FILES
from backend.tagger.hf.int8 import quantise
from backend.tagger.hf.loading import explained, load_tokenizer, pick_device, quiet, use_threads
from backend.tagger.hf.subwords import Subworder
from backend.tagger.hf.tagger import WindowModel, WindowTagger
from backend.tagger.model_files import Kind, option_hash
from backend.tagger.options import TaggerOptions
from backend.tagger.saved_file import FORMAT, FORMAT_VERSION, Arrays, read_saved, write_saved
from backend.tagger.training_texts import Fingerprints
from conformal.labels import LabelSpace
from conformal.trellis.potentials import Chain

_FILE = "file."
_SEEN = "seen"


@dataclass(frozen=True)
class EncoderInfo:
    """What a saved model says about itself; `hash` is filled in by saving and checked by loading."""

    name: str
    classes: tuple[str, ...]
    languages: tuple[str, ...]
    head: HeadConfig
    limit: int  # pieces of a window, without special tokens
    margin: int
    training: Mapping[str, Any] = field(default_factory=dict)
    hash: str = ""

    @property
    def space(self) -> LabelSpace:
        """The label space."""
        return LabelSpace(self.classes)

    def to_json(self) -> str:
        """Everything but the hash, in a fixed order."""
        fields = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": Kind.ENCODER.value,
            "name": self.name,
            "classes": list(self.classes),
            "languages": list(self.languages),
            "head": asdict(self.head),
            "limit": self.limit,
            "margin": self.margin,
            "training": dict(self.training),
        }
        return json.dumps(fields, ensure_ascii=False, sort_keys=True)


def save_encoder(
    network: EncoderNetwork,
    directory: Path,
    *,
    info: EncoderInfo,
    files: Mapping[str, bytes],
    seen: Fingerprints | None = None,
) -> EncoderInfo:
    """Write `model.safetensors` into a directory, whole or not at all; return the info with its hash.

    `files` are the encoder's configuration and its tokenizer's files, by name.
    """
    arrays: Arrays = {}
    for name, value in network.state_dict().items():
        if not torch.isfinite(value).all():
            raise InvalidModel(f"expected finite weights, got NaN or infinity in {name}; the training diverged")
        arrays[name] = value.detach().cpu().numpy()
    for name, content in files.items():
        arrays[f"{_FILE}{name}"] = np.frombuffer(content, np.uint8)
    arrays[_SEEN] = np.zeros(0, np.int64) if seen is None else seen
    return replace(info, hash=write_saved(directory, info.to_json(), arrays))


def encoder_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint that a saved model holds: its configuration and its tokenizer."""
    names = [CONFIG_FILE, *TOKENIZER_FILES]
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def load_encoder_tagger(
    path: Path,
    *,
    languages: Sequence[str] | None = None,
    concurrency: int = 1,
    options: TaggerOptions | None = None,
) -> WindowTagger:
    """Load a tagger that `surespan train --encoder` made, and check its hash.

    Raises InvalidModel when the file is missing, damaged, of another format version or does not fit its description.
    """
    chosen = options or TaggerOptions()
    use_threads(chosen)
    device = pick_device(chosen)
    info, arrays, digest = read_saved(path, _parse)
    seen = arrays.pop(_SEEN, np.zeros(0, np.int64))
    files = {name.removeprefix(_FILE): arrays.pop(name) for name in list(arrays) if name.startswith(_FILE)}
    encoder, subworder = _unpack({name: content.tobytes() for name, content in files.items()})
    network = EncoderNetwork(encoder, info.head, info.space)
    try:
        network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()}, assign=True)
    except RuntimeError as error:
        raise InvalidModel(f"expected weights that fit the description in {path.name}, got: {error}") from None
    network.requires_grad_(False)
    network.train(False)
    if chosen.int8:
        quantise(network.encoder)
    network.encoder.to(device)  # type: ignore[arg-type]
    with torch.no_grad():
        transitions, start, end = (t.double().numpy() for t in network.chain())
    windows = WindowModel(
        name=info.name,
        hash=option_hash(digest, chosen),
        base_hash=digest,
        space=info.space,
        languages=info.languages,
        subworder=subworder,
        emit=network,
        chain=Chain(transitions=transitions, start=start, end=end),
        seen=seen,
        limit=info.limit,
        margin=info.margin,
        by_sentence=True,
        gpu=device != "cpu",
    )
    return WindowTagger(windows, languages=languages, concurrency=concurrency)


def _unpack(files: Mapping[str, bytes]) -> tuple[PreTrainedModel, Subworder]:
    """Build the encoder, its weights still to be filled in, and its tokenizer from the stored files."""
    unknown = sorted(set(files) - {CONFIG_FILE, *TOKENIZER_FILES})
    if unknown or CONFIG_FILE not in files:
        raise InvalidModel(f"expected the files of an encoder in the model, got {sorted(files)}; train it again")
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        subworder = Subworder(load_tokenizer(folder))
        with quiet(), explained(folder, "encoder"), torch.random.fork_rng(devices=[]):
            config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
            encoder = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    return encoder.float(), subworder


def _parse(header: str, name: str) -> EncoderInfo:
    try:
        fields = json.loads(header)
        identity = (fields["format"], fields["format_version"], fields.get("kind"))
        wanted = (FORMAT, FORMAT_VERSION, Kind.ENCODER.value)
        if identity != wanted:
            raise InvalidModel(f"expected a model of {wanted} in {name}, got {identity}; use the release that wrote it")
        return EncoderInfo(
            name=str(fields["name"]),
            classes=tuple(fields["classes"]),
            languages=tuple(fields["languages"]),
            head=HeadConfig(**fields["head"]),
            limit=int(fields["limit"]),
            margin=int(fields["margin"]),
            training=fields["training"],
        )
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidModel):
            raise
        raise InvalidModel(f"expected a Surespan model description in {name}, got {error!r}") from None

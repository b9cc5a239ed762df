"""Loading of checkpoints: weights from safetensors, the tokenizer, how long a window may be, where it runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModel,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as hf_logging

from backend.tagger.errors import InvalidModel
from backend.tagger.hf.chain import load_chain, structural
from backend.tagger.hf.checkpoint import Checkpoint, describe_checkpoint
from backend.tagger.hf.classifier import Classifier
from backend.tagger.hf.int8 import quantise
from backend.tagger.hf.subwords import Subworder
from backend.tagger.hf.tagger import WindowModel, WindowTagger
from backend.tagger.options import TaggerOptions

# A checkpoint does not say which languages it knows; those of the bundled model are told apart unless a mapping file
# says otherwise.
LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru")
_LONGEST = 512  # pieces of a window, special tokens included; attention grows with the square
_MARGIN_SHARE = 8  # an eighth of a window is context at each inner edge
_HEAD = frozenset({"classifier", "score"})  # stays in float32: it is small, and decides


def load_checkpoint_tagger(
    model: str,
    *,
    languages: Sequence[str] | None = None,
    concurrency: int = 1,
    options: TaggerOptions | None = None,
) -> WindowTagger:
    """Load a token-classification checkpoint by folder or hub id.

    Raises InvalidModel for a checkpoint that is no token classifier, is not in safetensors, or needs code of its own.
    """
    chosen = options or TaggerOptions()
    use_threads(chosen)
    checkpoint = describe_checkpoint(model, mapping_file=chosen.mapping, int8=chosen.int8)
    base = describe_checkpoint(model, mapping_file=chosen.mapping) if chosen.int8 else checkpoint
    device = pick_device(chosen)
    subworder = Subworder(load_tokenizer(checkpoint.folder))
    network = _load_classifier(checkpoint)
    limit = window_limit(network, subworder)
    if chosen.int8:
        quantise(network, keep=_HEAD)
    network.to(device)  # type: ignore[arg-type]
    fitted = (
        structural(checkpoint.labels) if checkpoint.chain is None else load_chain(checkpoint.chain, checkpoint.labels)
    )
    windows = WindowModel(
        name=checkpoint.name,
        hash=checkpoint.hash,
        base_hash=base.hash,
        space=checkpoint.labels.space,
        languages=LANGUAGES if checkpoint.mapping.languages is None else checkpoint.mapping.languages,
        subworder=subworder,
        emit=Classifier(network, checkpoint.labels, temperature=fitted.temperature, device=device),
        chain=fitted.chain,
        seen=fitted.seen,
        limit=limit,
        margin=limit // _MARGIN_SHARE,
        by_sentence=False,
        gpu=device != "cpu",
    )
    return WindowTagger(windows, languages=languages, concurrency=concurrency)


def use_threads(options: TaggerOptions) -> None:
    """Compute in as many threads as the options say; None leaves it to torch."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)


def pick_device(options: TaggerOptions) -> str:
    """Return where to run.

    Raises InvalidModel for int8 on a GPU, and for a device that is not there.
    """
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() and not options.int8 else "cpu"
    if device != "cpu" and options.int8:
        raise InvalidModel(f"expected int8 on the CPU, got the device {device}; leave int8 out there")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidModel(f"expected a GPU for the device {device}, got none; set SURESPAN_DEVICE=cpu or auto")
    return device


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint, fast if it has a fast one.

    Raises InvalidModel.
    """
    with quiet(), explained(folder, "tokenizer"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    return tokenizer


def _load_classifier(checkpoint: Checkpoint) -> PreTrainedModel:
    with quiet(), explained(checkpoint.folder, "token-classification model"):
        network, info = AutoModelForTokenClassification.from_pretrained(
            str(checkpoint.folder), **_from_safetensors(), output_loading_info=True
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise InvalidModel(
            f"expected all weights of a token classifier in {checkpoint.name}, got none for {missing[:3]}; "
            "an encoder alone becomes a tagger with `surespan train --encoder`"
        )
    return _ready(network)


def load_encoder(folder: Path) -> PreTrainedModel:
    """Load the encoder of a checkpoint, without what stands on it.

    Raises InvalidModel.
    """
    with quiet(), explained(folder, "encoder"):
        return _ready(AutoModel.from_pretrained(str(folder), **_from_safetensors()))


def _ready(network: PreTrainedModel) -> PreTrainedModel:
    network.requires_grad_(False)
    network.train(False)
    return network


def _from_safetensors() -> dict[str, Any]:
    return {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False, "dtype": torch.float32}


def window_limit(network: PreTrainedModel, subworder: Subworder, *, longest: int = _LONGEST) -> int:
    """Return the pieces of a window without special tokens: what the model's positions and its tokenizer allow."""
    limits = [longest, int(min(subworder.longest, longest))]
    positions = getattr(network.config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        embeddings = getattr(network.base_model, "embeddings", None)
        table = getattr(embeddings, "position_embeddings", None)
        # RoBERTa and its kin count positions from behind the padding index.
        skipped = getattr(table, "padding_idx", None)
        limits.append(positions - (0 if skipped is None else skipped + 1))
    limit = min(limits) - len(subworder.before) - len(subworder.after)
    if limit < 1:
        raise InvalidModel(f"expected a model with room for a text, got one for {min(limits)} pieces in all")
    return limit


@contextmanager
def explained(folder: Path, what: str) -> Iterator[None]:
    """Turn what `transformers` raises into one error with what to do."""
    try:
        yield
    except (
        OSError,
        ValueError,
        KeyError,
        ImportError,
        RuntimeError,
        TypeError,
        AttributeError,
        SafetensorError,
    ) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        hint = "code of its own is never run" if "remote" in str(error).lower() else "look whether its files are whole"
        raise InvalidModel(f"expected a {what} that this release can load in {folder}, got: {first}; {hint}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Leave the terminal alone: progress bars and notices of `transformers` are for people who call it themselves."""
    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(level)
        hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]

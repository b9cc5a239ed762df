"""Small checkpoints made here, each real in every part: architecture, tokenizer, configuration, safetensors."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers, trainers

IOB2 = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC"]
IO = ["O", "MISC", "PER", "ORG", "LOC"]
BIOES = ["O", *(f"{prefix}-{name}" for name in ("PER", "LOC") for prefix in "BIES")]
ONTONOTES_CLASSES = [
    "CARDINAL", "DATE", "EVENT", "FAC", "GPE", "LANGUAGE", "LAW", "LOC", "MONEY", "NORP", "ORDINAL", "ORG", "PERCENT",
    "PERSON", "PRODUCT", "QUANTITY", "TIME", "WORK_OF_ART",
]  # fmt: skip
ONTONOTES = ["O", *(f"{prefix}-{name}" for name in ONTONOTES_CLASSES for prefix in "BI")]
FAMILIES = ("bert", "roberta", "xlm-roberta", "distilbert", "deberta-v2")
TEXTS = [
    "Anna Berg met Luc Morel in Gdańsk.",
    "Zoë's flight to New-York left at 10:45, she said.",
    "L'Aquila, (Italy): \"O'Brien\" isn't   here...",
    "She lives here. Nobody saw Bob in Lima! Why?",
    "日本 Tokyo 2020",
    "x",
]
_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = "anna berg met luc morel in gdan flight new york left at she said italy lives here nobody saw bob lima why"
_WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def wordpiece_vocabulary(*, lower: bool) -> dict[str, int]:
    """Special tokens, letters and their continuations, and some words."""
    letters = "abcdefghijklmnopqrstuvwxyzëńé0123456789.,:;!?'\"()-日本"
    if not lower:
        letters += letters.upper()
    words = [word if lower else word.title() for word in _WORDS.split()]
    pieces = dict.fromkeys([*_SPECIALS, *letters, *(f"##{c}" for c in letters), *words])
    return {piece: i for i, piece in enumerate(pieces)}


def unigram_vocabulary(specials: Sequence[str]) -> list[tuple[str, float]]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=list(specials), unk_token=specials[-1], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [(piece, score) for piece, score in pieces]


def make_tokenizer(family: str, folder: Path, *, lower: bool = False) -> Any:
    from transformers import (  # takes seconds
        BertTokenizer,
        DebertaV2Tokenizer,
        DistilBertTokenizer,
        RobertaTokenizer,
        XLMRobertaTokenizer,
    )

    longest = 64
    if family in {"bert", "distilbert"}:
        kind = BertTokenizer if family == "bert" else DistilBertTokenizer
        return kind(vocab=wordpiece_vocabulary(lower=lower), do_lower_case=lower, model_max_length=longest)
    if family == "roberta":
        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(
            TEXTS * 4,
            vocab_size=330,
            special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
            show_progress=False,
        )
        folder.mkdir(parents=True, exist_ok=True)
        trained.save_model(str(folder))
        merges = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
        vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        return RobertaTokenizer(
            vocab=vocab, merges=[tuple(line.split(" ")) for line in merges], model_max_length=longest
        )
    if family == "xlm-roberta":
        vocab = unigram_vocabulary(["<s>", "<pad>", "</s>", "<unk>"])
        return XLMRobertaTokenizer(vocab=[*vocab, ("<mask>", 0.0)], model_max_length=longest)
    vocab = unigram_vocabulary(["[PAD]", "[CLS]", "[SEP]", "[UNK]"])
    return DebertaV2Tokenizer(vocab=[*vocab, ("[MASK]", 0.0)], unk_id=3, model_max_length=longest)


def make_config(family: str, tokenizer: Any, labels: Sequence[str], **extra: Any) -> Any:
    from transformers import BertConfig, DebertaV2Config, DistilBertConfig, RobertaConfig, XLMRobertaConfig

    named = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    common = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **named, **extra}
    if family == "bert":
        return BertConfig(max_position_embeddings=64, **_WIDTH, **common)
    if family == "roberta":
        return RobertaConfig(max_position_embeddings=66, type_vocab_size=1, **_WIDTH, **common)
    if family == "xlm-roberta":
        return XLMRobertaConfig(max_position_embeddings=66, type_vocab_size=1, **_WIDTH, **common)
    if family == "distilbert":
        return DistilBertConfig(max_position_embeddings=64, dim=32, n_layers=2, n_heads=2, hidden_dim=48, **common)
    return DebertaV2Config(
        max_position_embeddings=64,
        relative_attention=True,
        position_buckets=16,
        pos_att_type=["p2c", "c2p"],
        **_WIDTH,
        **common,
    )


def make_checkpoint(
    folder: Path, family: str = "bert", *, labels: Sequence[str] = IOB2, lower: bool = False, seed: int = 5
) -> Path:
    """Write a token-classification checkpoint with random weights large enough to tell words apart."""
    tokenizer = make_tokenizer(family, folder, lower=lower)
    return _save(folder, tokenizer, make_config(family, tokenizer, labels), seed)


def _save(folder: Path, tokenizer: Any, config: Any, seed: int) -> Path:
    from transformers import AutoModelForTokenClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # DeBERTa's module uses torch.jit.script
        torch.manual_seed(seed)
        model = AutoModelForTokenClassification.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@lru_cache(maxsize=16)
def plain(folder: Path) -> tuple[Any, Any]:
    """The tokenizer and the model as `transformers` itself loads them."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoTokenizer.from_pretrained(folder), AutoModelForTokenClassification.from_pretrained(folder).eval()


def make_slow_checkpoint(folder: Path, *, labels: Sequence[str] = IOB2) -> Path:
    """Write a checkpoint whose tokenizer has no fast form (PhoBERT's: words split by a list of merges)."""
    from transformers import PhobertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted({c for text in TEXTS for c in text if not c.isspace()})
    pieces = [*letters, *(f"{c}@@" for c in letters), "An@@", "na"]
    (folder / "vocab.txt").write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
    (folder / "bpe.codes").write_text("A n 9\nn a</w> 8\n", encoding="utf-8")
    tokenizer = PhobertTokenizer(str(folder / "vocab.txt"), str(folder / "bpe.codes"), model_max_length=64)
    return _save(folder, tokenizer, make_config("roberta", tokenizer, labels), 7)

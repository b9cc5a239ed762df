"""Labelled files in and out: CoNLL columns and Label Studio exports."""

from backend.tagger.readers.conll import read_conll, write_conll
from backend.tagger.readers.files import read_labelled
from backend.tagger.readers.label_studio import read_label_studio, write_label_studio
from backend.tagger.readers.types import LabelledText, Reading, join_documents

__all__ = [
    "LabelledText",
    "Reading",
    "join_documents",
    "read_conll",
    "read_label_studio",
    "read_labelled",
    "write_conll",
    "write_label_studio",
]

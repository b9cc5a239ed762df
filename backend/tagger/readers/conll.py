"""Column files with one word a line and a blank line after each sentence.

Understood without options: CoNLL-2003 and CoNLL++ (word, part of speech, chunk, tag), two columns (word, tag),
WikiNEuRal (index, word, tag) and IOB2 files with comments, such as Universal NER's (index, word, tag, ... behind
`# sent_id` and `# text` lines). `.gz` files are read as they are.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TextIO

import regex

from backend.tagger.errors import InvalidData
from backend.tagger.readers.types import LabelledText, Reading, from_words
from backend.tagger.spans import to_token_spans
from backend.tagger.tokens import Token, tokenize
from conformal.labels import Scheme, to_iob2

_TAG = regex.compile(r"O|[BIESLU]-\S+")
_INDEX = regex.compile(r"\d+(?:[-.]\d+)?")
_LANGUAGE = regex.compile(r"#\s*(?:lang|language)\s*=\s*(\S+)", regex.IGNORECASE)
_NEW_DOCUMENT = regex.compile(r"#\s*newdoc\b")
_NAME_LANGUAGE = regex.compile(r"([a-z]{2,3})(?:[_.-])")


def open_text(path: Path) -> TextIO:
    """Open a text file as UTF-8 (a byte order mark is dropped), `.gz` transparently; line ends are left alone."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="\n")
    return path.open("r", encoding="utf-8-sig", newline="\n")


def read_conll(path: str | Path, *, language: str | None = None, scheme: Scheme | None = None) -> Reading:
    """Read a column file; each sentence becomes one text, its words joined with one space.

    Documents are numbered where `-DOCSTART-` lines or `# newdoc` comments begin them; see `join_documents`.

    The language of a sentence is `language`, else a `# lang = xx` comment before it, else the leading `xx.` of a file
    name such as `de.val.conllu.gz`, else None. A stray `I-x` opens an entity and is counted in `repairs`. `scheme`
    names the tags' scheme when it is not IOB2; BIOES/BILOU is recognised by itself, IOB1 cannot be and must be named.

    Raises InvalidData with file and line for a line that is not (word, ..., tag), and for a file that is not UTF-8.
    """
    file = Path(path)
    named = _NAME_LANGUAGE.match(file.name)
    default = language or (named[1] if named and file.name.count(".") > 1 and len(named[1]) == 2 else None)
    texts: list[LabelledText] = []
    repairs = 0
    skipped: Counter[str] = Counter()
    try:
        with open_text(file) as stream:
            for words, tags, line, said, document in _sentences(stream, file.name, skipped):
                legal, illegal = to_iob2(tags, scheme or _scheme_of(tags))
                repairs += illegal
                text = from_words(words, legal, language=language or said or default, source=file.name, line=line)
                texts.append(replace(text, document=document))
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise InvalidData(f"{file.name}: expected a UTF-8 text file, got {error}; convert it first") from None
    except OSError as error:
        raise InvalidData(f"{file}: expected a readable file, got {error.strerror or error}") from None
    return Reading(tuple(texts), repairs, skipped)


def _scheme_of(tags: Iterable[str]) -> Scheme:
    return Scheme.BIOES if any(tag[0] in "ESLU" for tag in tags) else Scheme.IOB2


class _Format(NamedTuple):
    """Columns of a file, decided by its first word line."""

    tabs: bool
    width: int
    word: int
    tag: int

    def split(self, line: str) -> list[str]:
        return line.split("\t") if self.tabs else line.split()

    def fits(self, columns: list[str]) -> bool:
        return len(columns) == self.width and _TAG.fullmatch(columns[self.tag]) is not None


def _format_of(line: str) -> _Format:
    tabs = "\t" in line
    columns = line.split("\t") if tabs else line.split()
    behind_index = len(columns) > 2 and _INDEX.fullmatch(columns[0]) and _TAG.fullmatch(columns[2])
    if tabs and behind_index and not (len(columns) == 4 and _TAG.fullmatch(columns[3])):
        return _Format(tabs, len(columns), 1, 2)  # with four columns and two tags the third is the chunk (CoNLL-2003)
    return _Format(tabs, len(columns), 0, len(columns) - 1)


def _sentences(
    stream: Iterable[str], name: str, skipped: Counter[str]
) -> Iterator[tuple[list[str], list[str], int, str | None, int]]:
    words: list[str] = []
    tags: list[str] = []
    first = document = 0
    said: str | None = None
    layout: _Format | None = None
    for number, raw in enumerate(stream, start=1):
        line = raw.rstrip("\r\n")
        if not line.strip(" \t"):
            if words:
                yield words, tags, first, said, document
                words, tags, said = [], [], None
            continue
        if line.startswith("#") and "\t" not in line and (layout is None or not layout.fits(layout.split(line))):
            marked = _LANGUAGE.match(line)
            said = marked[1].lower() if marked else said
            document += _NEW_DOCUMENT.match(line) is not None
            continue
        if line.startswith("-DOCSTART-"):
            skipped["-DOCSTART- lines"] += 1
            document += 1
            continue
        layout = layout or _format_of(line)
        columns = layout.split(line)
        if layout.width < 2 or not layout.fits(columns):
            raise InvalidData(
                f"{name}:{number}: expected {max(layout.width, 2)} columns with O, B-x or I-x in column "
                f"{max(layout.tag, 1) + 1}, got {line[:80]!r}; correct the line or remove it"
            )
        word = columns[layout.word].strip()
        if not word:
            raise InvalidData(f"{name}:{number}: expected a word before the tag, got a blank; remove the line")
        if not words:
            first = number
        words.append(word)
        tags.append(columns[layout.tag])
    if words:
        yield words, tags, first, said, document


def write_conll(texts: Iterable[LabelledText], path: str | Path) -> int:
    """Write texts as `word<TAB>tag`; return how many.

    Text that was read from a tokenised file keeps its words, so reading the file again gives equal texts. Any other
    text is cut into the live tokenizer's tokens, and a span that those cannot express raises InvalidData.
    """
    count = 0
    with Path(path).open("w", encoding="utf-8", newline="\n") as stream:
        for text in texts:
            if text.language:
                stream.write(f"# lang = {text.language}\n")
            stream.writelines(f"{word}\t{tag}\n" for word, tag in _rows(text))
            stream.write("\n")
            count += 1
    return count


def _rows(text: LabelledText) -> Iterator[tuple[str, str]]:
    if text.words is None:
        tokens = tokenize(text.text)
    else:
        tokens = []
        position = 0
        for word in text.words:
            tokens.append(Token(position, position + len(word)))
            position += len(word) + 1
    aligned = to_token_spans(text.spans, tokens, text=text.text)
    if aligned.inexpressible:
        raise InvalidData(f"expected spans made of whole tokens, got: {aligned.inexpressible[0]}; leave this text out")
    tags = ["O"] * len(tokens)
    for start, end, label in aligned.spans:
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    for (start, end), tag in zip(tokens, tags, strict=True):
        yield text.text[start:end], tag

"""Dialogues and HTML pages in the editor: what is highlighted, drawn and stored are the same characters everywhere."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import sqlalchemy as sa

from backend.documents.document import Document, UnreadableDocument
from backend.documents.html_nodes import TextNode, read_nodes
from backend.documents.reading import read_document
from backend.domain.target import TextTag
from backend.labelstudio.config import parse_config
from backend.store.tables import Label, Task
from tests.support.editor import Editor
from tests.support.label_studio import LabelStudioServer, Project, Service
from tests.support.trouble import PAGES, TEXTS, random_page
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.end_to_end import ProjectFactory

_LABELS = """<{kind} name="label" toName="text">
    <Label value="PER" background="#e6194b"/><Label value="ORG" background="#4363d8"/>
    <Label value="LOC" background="#3cb44b"/><Label value="MISC" background="#911eb4"/>
  </{kind}>
  <{kind} name="flag" toName="text"><Label value="Needs review" background="#ffb000"/></{kind}>"""
TALK = [
    {"who": "Ann", "said": "Hello 😀, I am Angela Merkel."},
    {"who": "Bob"},
    {"who": "Ann", "said": "Jordan visited Paris with 👩‍👧 Washington.\nThen Berlin."},
    {"who": "Bob", "said": "Is that Dr."},
    {"who": "Ann", "said": "Smith went to Rome"},
]
ARTICLE = """<!DOCTYPE html>
<html><head><title>News</title><style>h1 { color: navy }</style></head>
<body>
  <h1>News 😀 from Berlin</h1>
  <p>Angela <b>Merkel</b> &amp; Jordan met\tin&nbsp;Paris 😀 and Washington.<!-- no -->
     Then Rome.<br/>In Oslo.</p>
  <table><tr><td>Madrid</td><td>Boris Johnson</td></tr></table>
</body></html>
"""


class Shape(NamedTuple):
    """A project of one shape: its label config, a task's data, what a person draws, and where the editor shows it."""

    config: str
    data: dict[str, Any]
    drawn: tuple[tuple[str, str], ...]
    root: str


SHAPES = {
    "dialogue": Shape(
        f"""<View>{_LABELS.format(kind="ParagraphLabels")}
        <Paragraphs name="text" value="$talk" layout="dialogue" nameKey="who" textKey="said"/></View>""",
        {"talk": TALK},
        (("Washington", "PER"), ("Angela Merkel", "PER"), ("Rome", "LOC")),
        "div[class*=paragraphs]",
    ),
    "page": Shape(
        f"""<View>{_LABELS.format(kind="HyperTextLabels")}<HyperText name="text" value="$page"/></View>""",
        {"page": ARTICLE},
        (("Washington", "PER"), ("Berlin", "PER"), ("Boris Johnson", "PER"), ("Merkel", "PER")),
        "iframe.lsf-htx-richtext, iframe.htx-richtext",
    ),
}

# What is highlighted, with its colour, in the order of the page.
_HIGHLIGHTED = """() => {
  const found = new Map();
  for (const e of document.querySelectorAll('.htx-highlight')) {
    const own = [...e.classList].find(name => /^htx-highlight-r?[^l]/.test(name) && name !== 'htx-highlight-last');
    const key = own || found.size;
    const colour = getComputedStyle(e).backgroundColor;
    found.set(key, [(found.get(key) || [''])[0] + e.textContent, colour]);
  }
  return [...found.values()];
}"""
# Select words as a mouse does: the editor reads the selection when the button comes up.
_SELECT = """([needle, flat]) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const places = []; let text = '';
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (flat && !node.parentElement.closest('[class*=dialoguetext]')) continue;
    for (let i = 0; i < node.length; i++) places.push([node, i]);
    text += node.data;
  }
  const at = text.indexOf(needle);
  const [first, from] = places[at], [last, to] = places[at + needle.length - 1];
  const range = document.createRange();
  range.setStart(first, from); range.setEnd(last, to + 1);
  getSelection().removeAllRanges(); getSelection().addRange(range);
  const target = first.parentElement;
  for (const kind of ['mousedown', 'mouseup'])
    target.dispatchEvent(new MouseEvent(kind, {bubbles: true, view: window}));
}"""
# The text nodes of each page as a browser has them once the editor's own code has cleaned it.
_NODES = """pages => {
  const name = Object.keys(window).find(key => key.startsWith('webpackChunk'));
  let load;
  window[name].push([[Symbol()], {}, given => { load = given; }]);
  const id = Object.keys(load.m).find(key => load.m[key].toString().includes('sanitizeHtml:()'));
  const clean = load(id).sanitizeHtml;
  const nodesBelow = root => {
    const nodes = []; let at = 0;
    const walk = (parent, path) => {
      const counts = {};
      for (const node of parent.childNodes) {
        const name = node.nodeType === 3 ? 'text()' : node.nodeName.toLowerCase();
        counts[name] = (counts[name] || 0) + 1;
        const here = `${path}/${name}[${counts[name]}]`;
        if (node.nodeType === 3) { nodes.push([here, at, node.data]); at += [...node.data].length; }
        else if (node.nodeName === 'BR') at += 1;
        else walk(node, here);
      }
    };
    walk(root, '');
    return nodes;
  };
  const frame = document.createElement('iframe');
  document.body.append(frame);
  const shown = html => new Promise(done => {
    frame.onload = () => done(nodesBelow(frame.contentDocument.body));
    frame.srcdoc = clean(html) || '<!-- -->';
  });
  const inline = html => {
    const div = document.createElement('div');
    div.innerHTML = clean(html);
    return nodesBelow(div);
  };
  return (async () => {
    const all = [];
    for (const [html, isInline] of pages) all.push(isInline ? inline(html) : await shown(html));
    return all;
  })();
}"""


class Wired(NamedTuple):
    """A connected project with one task, and what it shows."""

    surespan: Service
    project: Project
    task: int
    document: Document


@pytest.fixture(scope="module", params=SHAPES)
def wired(
    request: pytest.FixtureRequest,
    showing_service: Service,
    make_project: ProjectFactory,
    label_studio: LabelStudioServer,
) -> tuple[Shape, Wired]:
    shape = SHAPES[request.param]
    empty = make_project(label_config=shape.config, title=f"Shown as a {request.param}")
    path = f"/api/projects/{empty.id}/import"
    (task,) = label_studio.call("POST", path, [{"data": shape.data}], return_task_ids="true")["task_ids"]
    project = Project(label_studio, empty.id, empty.created_at, (task,))
    showing_service.connect(project)
    tag = tag_of(shape.config)
    return shape, Wired(showing_service, project, task, read_document(shape.data[tag.key], tag))


def tag_of(config: str) -> TextTag:
    return parse_config(config).target(["PER"]).text


def test_what_is_predicted_is_highlighted_and_what_is_drawn_is_stored(
    wired: tuple[Shape, Wired], page: Page, label_studio: LabelStudioServer
) -> None:
    shape, (surespan, project, task, document) = wired
    best = label_studio.task(task)["predictions"][-1]["result"]
    spans = [document.find(region["value"]) for region in best]
    assert all(spans)
    assert [document.text[span[0] : span[1]] for span in spans if span] == [region["value"]["text"] for region in best]
    flagged = {region["value"]["text"] for region in best if region["from_name"] == "flag"}
    editor = Editor(page, project)
    page.goto(f"/projects/{project.id}/data?task={task}")
    page.wait_for_load_state("networkidle")
    page.locator(shape.root).first.wait_for()
    regions = len({region["id"] for region in best})

    def highlighted() -> list[list[str]]:
        frames = [frame.evaluate(_HIGHLIGHTED) for frame in page.frames]
        return max(frames, key=len)

    shown = wait_for(lambda: highlighted() if len(highlighted()) == regions else None, "all regions are highlighted")
    assert sorted(words for words, _ in shown) == sorted({r["id"]: r["value"]["text"] for r in best}.values())
    assert {words for words, colour in shown if colour.startswith("rgba(255, 176, 0")} == flagged
    assert flagged, "the texts have names that the bundled model is in doubt about"

    editor.create()
    for words, label in shape.drawn:
        before = len(editor.regions())
        page.locator(".lsf-label").filter(has_text=label).first.click()
        flat = "talk" in shape.data
        frame = page.frames[0] if flat else page.frames[-1]
        frame.evaluate(_SELECT, [words, flat])
        wait_for(lambda: len(editor.regions()) > before, f"{words!r} is a region")  # noqa: B023 - asked at once
    submitted = editor.submit()
    wanted = sorted((document.text.index(words), label) for words, label in shape.drawn)
    assert len(submitted["result"]) == len(wanted)

    def stored() -> list[Any] | None:
        with surespan.open_store() as store, store.read() as session:
            found = session.execute(
                sa.select(Label.spans, Task.text).join(Task, Label.task_id == Task.id).where(
                    Task.external_id == str(task)
                )
            ).all()  # fmt: skip
            return [tuple(row) for row in found] or None

    ((kept, text),) = wait_for(stored, "the label is stored")
    assert text == document.text
    spans_kept = json.loads(kept) if isinstance(kept, str) else kept
    assert sorted((text[start:end], label) for start, end, label in spans_kept) == sorted(shape.drawn)
    assert sorted((start, label) for start, _, label in spans_kept) == wanted


def test_no_offset_of_a_page_is_wrong(page: Page, make_project: ProjectFactory) -> None:
    draw = random.Random(23)
    pages = [(html, False) for html in PAGES.values()] + [(html, True) for html in PAGES.values()]
    pages += [(random_page(draw), i % 3 == 0) for i in range(400)]
    pages += [(text, False) for text in TEXTS.values()]
    read: list[tuple[str, bool, list[TextNode]]] = []
    for html, inline in pages:
        try:
            read.append((html, inline, [n for n in read_nodes(html, inline=inline) if isinstance(n, TextNode)]))
        except UnreadableDocument:
            continue
    assert len(read) > 250, "most generated pages are read"
    assert len(read) < len(pages), "and some are refused"
    page.goto("/projects/")
    page.wait_for_load_state("networkidle")
    project = make_project(title="Pages", label_config=SHAPES["page"].config).id
    page.goto(f"/projects/{project}/data")
    page.wait_for_load_state("networkidle")
    shown = page.evaluate(_NODES, [(html, inline) for html, inline, _ in read])
    for (html, inline, nodes), there in zip(read, shown, strict=True):
        ours = [(node.path, node.start, node.text) for node in nodes]
        by_path = {path: (path, start, text) for path, start, text in there}
        for node in ours:
            theirs = by_path.get(node[0])
            assert theirs is not None, (html, inline, node, there)
            assert theirs[1] == node[1], (html, inline, node, there)
            assert theirs[2].startswith(node[2]), (html, inline, node, there)
        seen = "".join(text for path, _, text in there if "/style[" not in path).split()
        assert "".join(seen) == "".join("".join(text for _, _, text in ours).split()), (html, inline)

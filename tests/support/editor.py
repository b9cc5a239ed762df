"""Label Studio's editor as a person uses it: what is seen is read from the page, what is done is clicked or typed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support.label_studio import Project
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page, Response

_EMPTY_SECONDS = 1.5
_AMBER = re.compile(r"rgba?\(255, 1[67]\d, 0\b")  # both the flag of `surespan connect` and that of FLAGGED

# Where a piece of the text stands on the screen: the outer edges of its first and last character.
_EDGES = """([needle, occurrence]) => {
  const box = document.querySelector('.lsf-htx-richtext');
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  const nodes = []; let text = '';
  while (walker.nextNode()) { nodes.push([walker.currentNode, text.length]); text += walker.currentNode.data; }
  let at = -1;
  for (let i = 0; i <= occurrence; i++) at = text.indexOf(needle, at + 1);
  if (at < 0) return null;
  const rect = (from, to) => {
    const place = (offset, end) => {
      for (const [node, start] of nodes)
        if (offset >= start && (end ? offset <= start + node.length : offset < start + node.length))
          return [node, offset - start];
    };
    const range = document.createRange();
    range.setStart(...place(from, false)); range.setEnd(...place(to, true));
    const r = range.getBoundingClientRect();
    return {left: r.left, right: r.right, y: (r.top + r.bottom) / 2};
  };
  const size = (i) => text.codePointAt(i) > 0xffff ? 2 : 1;
  const low = (i) => { const c = text.charCodeAt(i); return c >= 0xdc00 && c <= 0xdfff; };
  const end = at + needle.length;
  const last = low(end - 1) ? end - 2 : end - 1;
  return [rect(at, at + size(at)), rect(last, end)];
}"""
# Regions that overlap are drawn in pieces; pieces of one region share a class.
_SHOWN = """() => {
  const regions = new Map();
  for (const e of document.querySelectorAll('.lsf-htx-richtext .htx-highlight')) {
    const key = [...e.classList].find(name => name.startsWith('htx-highlight-'));
    const region = regions.get(key) || {text: '', label: '', start: null, end: null};
    region.text += e.textContent;
    region.label = e.dataset.label || region.label;
    if ('start' in e.dataset) region.start = +e.dataset.start;
    if ('end' in e.dataset) region.end = +e.dataset.end;
    region.colour = getComputedStyle(e).backgroundColor;
    regions.set(key, region);
  }
  return [...regions.values()];
}"""
# Two frames after what was done, the page changes no more for an eighth of a second.
_QUIET = """() => new Promise(done => {
  let timer;
  const observer = new MutationObserver(restart);
  function restart() {
    clearTimeout(timer);
    timer = setTimeout(() => { observer.disconnect(); done(); }, 125);
  }
  requestAnimationFrame(() => requestAnimationFrame(() => {
    observer.observe(document.body, {attributes: true, characterData: true, childList: true, subtree: true});
    restart();
  }));
})"""


class Shown(NamedTuple):
    """A highlighted span: offsets as the editor has them, its text, the name on it, and whether it is amber."""

    start: int
    end: int
    text: str
    label: str
    amber: bool


class Editor:
    """The editor over a project's tasks, in quick view or in the label stream."""

    def __init__(self, page: Page, project: Project) -> None:
        self.page, self._project = page, project

    # What is seen

    def shown(self, *, number: int | None = None) -> list[Shown]:
        """Return the spans that are highlighted, in the order of the text.

        The list of regions is there before they are highlighted, so as many are waited for; with `number`, so many:
        the list of a long document is drawn as far as it is in view.
        """

        empty_since: list[float] = []

        def drawn() -> list[Any] | None:
            found: list[Any] = self.page.evaluate(_SHOWN)
            if len(found) != (len(self.regions()) if number is None else number):
                return None
            if found:
                return [found]
            # A task that is still being loaded has no regions either.
            empty_since.append(time.monotonic())
            return [found] if empty_since[-1] - empty_since[0] > _EMPTY_SECONDS else None

        (found,) = wait_for(drawn, "all regions are highlighted")
        return sorted(
            Shown(
                each["start"],
                each["end"],
                each["text"],
                each["label"].partition(":")[2],
                _AMBER.match(each["colour"]) is not None,
            )
            for each in found
        )

    def regions(self) -> list[str]:
        """Return the lines of the region list, such as "Needs review, PER Jordan"."""
        lines = self.page.locator(".lsf-outliner-item__title").all_inner_texts()
        return [" ".join(line.split()) for line in lines]

    def wait_for_regions(self, number: int) -> None:
        """Wait until there are so many regions."""
        wait_for(lambda: len(self.regions()) == number, f"{number} regions")

    def tabs(self) -> list[str]:
        """Return the names on the annotation and prediction tabs, left to right (long ones are shortened)."""
        return self.page.locator(".lsf-annotation-button__name").all_inner_texts()

    # Going somewhere

    def open_task(self, task: int) -> None:
        """Open a task in quick view."""
        self.page.goto(f"/projects/{self._project.id}/data?task={task}")
        self._ready()

    def label_all(self) -> int:
        """Press "Label All Tasks" in the Data Manager; return the task that the stream gives."""
        self.page.goto(f"/projects/{self._project.id}/data")
        button = self.page.get_by_text("Label All Tasks")
        button.wait_for()
        task = self._next_task(button.click)
        self.close_instruction()
        return task

    def close_instruction(self) -> None:
        """Close the instruction that the stream begins with, if there is one."""
        close = self.page.get_by_label("Close modal")
        if close.count():
            close.first.click()
            close.first.wait_for(state="detached")

    # Doing something

    def choose_tab(self, index: int) -> None:
        """Open an annotation or prediction tab."""
        self.page.locator(".lsf-annotation-button").nth(index).click()
        self._settle()

    def create(self) -> None:
        """Begin an annotation from nothing."""
        before = len(self.tabs())
        self.page.get_by_label("Create an annotation").click()
        wait_for(lambda: len(self.tabs()) == before + 1, "the new annotation has a tab")
        self._settle()

    def duplicate(self, index: int) -> None:
        """Choose "Duplicate Annotation" in the menu of a tab."""
        before = len(self.tabs())
        self._menu(index, "Duplicate Annotation")
        wait_for(lambda: len(self.tabs()) == before + 1, "the copy has a tab")
        self._settle()

    def select(self, span: Shown) -> None:
        """Click a highlighted span."""
        self.page.locator(f".htx-highlight[data-start='{span.start}'][data-end='{span.end}']").first.click()
        self._settle()

    def press(self, key: str) -> None:
        """Press a key."""
        self.page.keyboard.press(key)
        self._settle()

    def draw(self, text: str, *, key: str, occurrence: int = 0, rtl: bool = False) -> None:
        """Choose a label by its key and drag the mouse over a piece of the text."""
        self.press("Escape")
        self.press(key)
        edges = self.page.evaluate(_EDGES, [text, occurrence])
        assert edges is not None, f"{text!r} is not on the page"
        first, last = edges
        begin, end = (first["right"] - 1, last["left"] + 1) if rtl else (first["left"] + 1, last["right"] - 1)
        before = len(self.regions())
        mouse = self.page.mouse
        mouse.move(begin, first["y"])
        mouse.down()
        mouse.move((begin + end) / 2, last["y"], steps=4)
        mouse.move(end, last["y"], steps=4)
        mouse.up()
        wait_for(lambda: len(self.regions()) > before, f"{text!r} is a region")

    def turn_on_suggestions(self) -> None:
        """Switch Auto-Annotation on unless it is, and leave the switch: keys go to labels again."""
        switch = self.page.get_by_test_id("bottombar-auto-annotation-toggle")
        switch.wait_for(state="attached")
        if not switch.is_checked():
            self.page.get_by_text("Auto-Annotation").click()
        self.page.evaluate("document.activeElement.blur()")
        self._settle()

    def submit(self) -> dict[str, Any]:
        """Press Submit; return the annotation as the server stored it."""
        return self._answered("POST", "/annotations", self.page.get_by_test_id("bottombar-submit-button").click)

    def skip(self) -> dict[str, Any]:
        """Press Skip; return the cancelled annotation."""
        return self._answered("POST", "/annotations", self.page.get_by_test_id("bottombar-skip-button").click)

    def update(self) -> dict[str, Any]:
        """Press Update; return the annotation as the server stored it."""
        return self._answered("PATCH", "/annotations/", self.page.get_by_test_id("bottombar-update-button").click)

    def delete(self, index: int = 0) -> None:
        """Choose "Delete Annotation" in the menu of a tab, and confirm."""
        self._menu(index, "Delete Annotation")
        confirm = self.page.get_by_role("button", name="Delete", exact=True)
        with self.page.expect_response(lambda r: r.request.method == "DELETE" and "/annotations/" in r.url) as info:
            confirm.click()
        assert info.value.ok

    def _menu(self, index: int, item: str) -> None:
        self.page.locator(".lsf-annotation-button").nth(index).locator(".lsf-annotation-button__trigger").click()
        self.page.get_by_text(item).click()

    def _answered(self, method: str, path: str, act: Callable[[], None]) -> dict[str, Any]:
        def fits(response: Response) -> bool:
            return response.request.method == method and path in response.url

        with self.page.expect_response(fits) as info:
            act()
        answer = info.value
        assert answer.ok, f"{method} {answer.url}: {answer.status}"
        return dict(answer.json())

    def _next_task(self, act: Callable[[], None]) -> int:
        with self.page.expect_response(lambda response: "id=next_task" in response.url) as info:
            act()
        self._ready()
        return int(info.value.json()["id"])

    def _ready(self) -> None:
        self.page.wait_for_load_state("networkidle")
        self.page.locator(".lsf-htx-richtext").wait_for()
        self.page.locator(
            "[data-testid=bottombar-submit-button], [data-testid=bottombar-update-button]"
        ).first.wait_for()
        self.page.locator(".lsf-richtext[data-needs-update]").wait_for()
        self._settle()

    def _settle(self) -> None:
        # Highlights are drawn a frame or two after the state changed, later on a busy machine.
        self.page.evaluate(_QUIET)

"""The pages of the site: what stands on each, what can be clicked there, and how a page is written as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from gongfu.envs.webshop.catalogue import Product

__all__ = [
    "BACK",
    "BUY",
    "NEXT",
    "PREVIOUS",
    "SEARCH",
    "SUBPAGES",
    "Form",
    "Line",
    "Page",
    "done_page",
    "item_page",
    "results_page",
    "start_page",
    "sub_page",
    "write",
]

Form = Literal["text", "text_rich", "brief"]
"""text, text_rich: the two of the original. brief: for small models, without buttons, and after the first page without the
instruction and in lower case, as what is clicked."""

FORMS: tuple[Form, ...] = get_args(Form)

SEARCH, BACK, NEXT, PREVIOUS, BUY = "Search", "Back to Search", "Next >", "< Prev", "Buy Now"
SUBPAGES = ("Description", "Features", "Reviews", "Attributes")
ASK = "Instruction:"


@dataclass(frozen=True, slots=True)
class Line:
    """Strings that belong together.

    head: the instruction. text: plain strings. buttons: each can be clicked. product: an id to click, title, price.
    options: the name of an option, then its values to click.
    """

    kind: Literal["head", "text", "buttons", "product", "options"]
    strings: tuple[str, ...]
    clicked: frozenset[str] = frozenset()
    """Clickable strings that were clicked before: chosen values, visited products."""

    def can_click(self, place: int) -> bool:
        """Whether the string at this place is a link, a button or a value."""
        return self.kind == "buttons" or (self.kind == "product" and place == 0) or (self.kind == "options" and place > 0)

    @property
    def clickable(self) -> tuple[str, ...]:
        return tuple(string for place, string in enumerate(self.strings) if self.can_click(place))


@dataclass(frozen=True, slots=True)
class Page:
    lines: tuple[Line, ...]
    has_search_bar: bool = False

    @property
    def clickables(self) -> tuple[str, ...]:
        """Everything that can be clicked, lower-case, in the order of the page, each once."""
        return tuple(dict.fromkeys(string.lower() for line in self.lines for string in line.clickable))


def start_page(instruction: str) -> Page:
    return Page((Line("text", ("WebShop",)), Line("head", (ASK, instruction)), Line("buttons", (SEARCH,))), has_search_bar=True)


def results_page(instruction: str, shown: Sequence[Product], number: int, total: int, visited: frozenset[str]) -> Page:
    """Page `number` of `total` hits; `next >` is always there."""
    pager = (NEXT,) if number == 1 else (PREVIOUS, NEXT)
    lines = [Line("buttons", (BACK,)), Line("text", (f"Page {number} (Total results: {total})",)), Line("buttons", pager)]
    lines += [Line("product", (p.asin, p.name, p.price_tag), visited & {p.asin}) for p in shown]
    return Page((Line("head", (ASK, instruction)), *lines))


def item_page(instruction: str, product: Product, chosen: Mapping[str, str], *, attributes: bool) -> Page:
    """`chosen`: name of an option -> its value. `attributes`: whether they have a page of their own."""
    options = [Line("options", (n, *v), frozenset(v) & {chosen.get(n, "")}) for n, v in product.options.items()]
    about = Line("text", (product.name, f"Price: {product.price_tag}", "Rating: N.A."))
    buttons = Line("buttons", (*(SUBPAGES if attributes else SUBPAGES[:-1]), BUY))
    return Page((Line("head", (ASK, instruction)), Line("buttons", (BACK, PREVIOUS)), *options, about, buttons))


def sub_page(instruction: str, product: Product, name: str) -> Page:
    """One of `SUBPAGES`. There are no reviews."""
    texts = {"Description": (product.description,), "Features": product.bullets, "Attributes": product.attributes}
    lines = [Line("text", (text,)) for text in texts.get(name, ()) if text]
    return Page((Line("head", (ASK, instruction)), Line("buttons", (BACK, PREVIOUS)), *lines))


def done_page(reward: float) -> Page:
    lines = ("Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", str(round(reward, 4)))
    return Page((Line("text", lines),))


def write(page: Page, form: Form, *, opening: bool = False) -> str:
    """A page as text. `opening`: it is the first of an episode, so that also a brief one says the instruction."""
    match form:
        case "text":
            return " [SEP] ".join(string for line in page.lines for string in line.strings)
        case "text_rich":
            return _rich(page)
        case "brief":
            shown = (line for line in page.lines if line.kind != "buttons" and (opening or line.kind != "head"))
            return "\n".join(line if opening else line.lower() for line in map(_brief, shown))


def _rich(page: Page) -> str:
    """One string a line, buttons in brackets; the values chosen last stand first."""
    lines: list[str] = []
    for line in page.lines:
        for place, string in enumerate(line.strings):
            if not line.can_click(place):
                lines.append(string)
            elif string in line.clicked:
                lines.append(f"[clicked button] {string} [clicked button_]")
                lines[:0] = [f"You have clicked {string}."] if line.kind == "options" else []
            else:
                lines.append(f"[button] {string} [button_]")
    return "\n".join(lines)


def _brief(line: Line) -> str:
    first, *others = line.strings
    match line.kind:
        case "options":
            return f"{first}: {', '.join(others)}"
        case "text":
            return ", ".join(line.strings)
    return " ".join(line.strings)

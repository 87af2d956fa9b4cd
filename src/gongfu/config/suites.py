"""Settings of the suites."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from gongfu.config.section import Positive, Section, Share, drop_hint

_OF_FILES = ("attributes", "instructions", "test", "dev")
_OF_GENERATED_SHOPS = ("products", "train", "seen", "unseen")
_OF_WORLDS = ("worlds", "unseen_worlds", "people", "train", "seen", "unseen", "seed")
_OF_ROOMS = ("size", "boxes", "solution", "train", "seen", "unseen", "seed")


class HouseholdConfig(Section):
    """ALFWorld: official games, or generated homes with habits."""

    name: Literal["household"] = "household"
    source: str = "generated"
    """"generated", a folder of official games, or a .jsonl.xz file / a folder of them."""
    engine: Literal["fast", "official"] = "fast"
    kinds: tuple[str, ...] = ()
    """Task types to keep; empty = all six."""
    max_steps: Positive = 50
    habit_strength: Share = 0.85
    """Chance that an object lies where its home family usually keeps it."""
    families: Positive = 12
    """Home families of the splits train and seen."""
    unseen_families: Positive = 4
    """Further families, of the split unseen only."""
    receptacles: tuple[Positive, Positive] = (8, 14)
    """Fewest and most receptacles of a generated home."""
    distractors: tuple[int, int] = (6, 10)
    """Fewest and most objects that the task is not about."""
    train: Positive = 1200
    """Generated tasks of the split."""
    seen: Positive = 300
    unseen: Positive = 300
    facts: bool = False
    seed: int = 0


class WebShopConfig(Section):
    """WebShop: the official files, or a generated shop. docs/data.md says what stands in the files."""

    idle: ClassVar = {"items": lambda items: _OF_GENERATED_SHOPS if items else _OF_FILES}
    name: Literal["webshop"] = "webshop"
    items: str = ""
    """Path of the catalogue, items_shuffle_1000.json or items_shuffle.json; empty = a generated shop. Relative to the folder
    that the command is run in, as all paths here."""
    attributes: str = ""
    """Path of the attributes of `items`, items_ins_v2_1000.json or items_ins_v2.json."""
    instructions: str = ""
    """Path of the human instructions, items_human_ins.json; empty = the synthetic instructions of `attributes`."""
    test: int = Field(default=500, ge=0)
    """Official goals of the split, the first of all in their usual order."""
    dev: int = Field(default=1000, ge=0)
    """Official goals of the split, the next ones; all others are of the split train."""
    products: Positive = 1000
    """Size of a generated shop."""
    train: Positive = 1200
    """Generated tasks of the split."""
    seen: Positive = 300
    """The same kinds of products as in train, but other products."""
    unseen: Positive = 300
    """Kinds of products that train never asks for."""
    observation: Literal["text", "text_rich", "brief"] = "text"
    """text, text_rich: the original's pages. brief: without buttons; after the first page in lower case and
    without the instruction."""
    score: Literal["reward", "success"] = "reward"
    """What an episode is paid: the official reward, or 1 for the full reward and 0 for less (GiGPO's and UniSkill's code)."""
    queries: int = Field(default=4, ge=0)
    """Most search queries that are listed, made from the instruction; 0 = one open search for models that write their own."""
    results_per_page: Positive = 10
    show_attributes: bool = False
    """Give items a page of their attributes."""
    show_chosen: bool = False
    """End the pages of an item with the options chosen so far."""
    max_steps: Positive = 15
    seed: int = 0
    """Of the generated shop, of prices within a range and of price limits."""

    @property
    def sizes(self) -> dict[str, int]:
        """Tasks of the splits whose size is a setting."""
        return self.model_dump(include={"test", "dev"} if self.items else {"train", "seen", "unseen"})

    @model_validator(mode="after")
    def _fits(self) -> WebShopConfig:
        if self.items and not self.attributes:
            raise ValueError(
                "items needs the file of their attributes too (items_ins_v2_1000.json beside items_shuffle_1000.json)"
            )
        if changed := self.in_vain("items"):
            why = (
                "describe a generated shop, and items are given"
                if self.items
                else "belong to official items, and none are given"
            )
            raise ValueError(f"{', '.join(changed)} {why}: {drop_hint('items')}")
        return self


class SearchQAConfig(Section):
    """Questions to be answered by search, over generated worlds or over passages of a file (docs/data.md: the formats)."""

    idle: ClassVar = {
        "source": lambda source: ("corpus",) if source == "generated" else _OF_WORLDS,
        "retriever": lambda kind: {"server": ("embedder", "corpus"), "dense": ("url",)}.get(kind, ("embedder", "url")),
    }
    name: Literal["searchqa"] = "searchqa"
    source: str = "generated"
    """"generated"; a file of questions (a hash of each id puts it into the split train, or one in ten of them into seen); or a
    folder with one such file a split (train.jsonl, hotpotqa.json, ...)."""
    corpus: str = ""
    """File of the passages that the questions of a file are searched in; empty = those that the questions bring along."""
    kinds: tuple[str, ...] = ()
    """Types of questions to keep (generated: one_hop, two_hop, three_hop, comparison); empty = all."""
    retriever: Literal["bm25", "dense", "server"] = "bm25"
    """dense: cosine of embeddings. server: a search server that speaks as Search-R1's, at `url`."""
    embedder: str = ""
    """dense: folder or hub id of an embedding model; empty = the small one of the extra "embed"."""
    url: str = ""
    top_k: Positive = 3
    """Passages that a search shows."""
    max_steps: Positive = 6
    """Searches and the answer; the papers have 4."""
    candidates: bool = True
    """List likely actions, by the names in question and passages. Others are accepted, but then count as not admissible."""
    score: Literal["f1", "em"] = "f1"
    """What an episode is scored, and so paid: F1 or exact match. Success is exact match."""
    worlds: Positive = 16
    """Generated worlds of the splits train and seen."""
    unseen_worlds: Positive = 4
    """Further worlds, of the split unseen only."""
    people: int = Field(default=16, ge=4, le=96)
    """People of a generated world; other things are in proportion, some 3.4 passages a person."""
    train: Positive = 1200
    """Generated tasks of the split."""
    seen: Positive = 300
    unseen: Positive = 300
    seed: int = 0

    @model_validator(mode="after")
    def _fits(self) -> SearchQAConfig:
        if self.embedder and self.retriever != "dense":
            raise ValueError('an embedder is used by retriever = "dense" only; set that, or leave embedder empty')
        if bool(self.url) != (self.retriever == "server"):
            raise ValueError('retriever = "server" needs a url, and only that uses one')
        if self.source == "generated" and (self.corpus or self.retriever == "server"):
            raise ValueError(
                "generated worlds bring their own passages: leave out corpus, and set retriever to bm25 or dense; or set "
                "source to a file of questions"
            )
        if self.corpus and self.retriever == "server":
            raise ValueError("a search server has its own passages: leave out corpus")
        if self.source != "generated":
            _refuse_generated(self)
        return self


class SokobanConfig(Section):
    """Sokoban in text: generated rooms that can be solved, or files of Boxoban levels."""

    idle: ClassVar = {"source": lambda source: () if source == "generated" else _OF_ROOMS}
    name: Literal["sokoban"] = "sokoban"
    source: str = "generated"
    """"generated", or a folder of Boxoban files named by their split (train.txt, ...)."""
    size: int = Field(default=6, ge=5, le=12)
    """Width and height of a generated room, its outer walls included."""
    boxes: int = Field(default=1, ge=1, le=4)
    solution: tuple[Positive, Positive] = (3, 12)
    """Fewest and most moves of the shortest solution of a generated room."""
    max_steps: Positive = 15
    score: Literal["outcome", "boxes"] = "outcome"
    """What an episode is scored, and so paid. outcome: 1 for a solved room. boxes: the share of boxes on targets at its end."""
    train: Positive = 1200
    """Generated tasks of the split."""
    seen: Positive = 300
    unseen: Positive = 300
    facts: bool = False
    """Give the state as predicates with every observation."""
    seed: int = 0

    @model_validator(mode="after")
    def _fits(self) -> SokobanConfig:
        if self.source != "generated":
            _refuse_generated(self)
        return self


class CustomSuiteConfig(Section):
    """A suite of your own: any object with the methods of `gongfu.envs.protocol.Suite`."""

    name: Literal["custom"] = "custom"
    object: str
    """"package.module:factory", called with `args`."""
    args: dict[str, Any] = Field(default_factory=dict)


SuiteConfig = Annotated[
    HouseholdConfig | WebShopConfig | SearchQAConfig | SokobanConfig | CustomSuiteConfig,
    Field(discriminator="name"),
]


def _refuse_generated(section: Section) -> None:
    """Raises ValueError for settings of generated tasks that would do nothing."""
    if changed := section.in_vain("source"):
        raise ValueError(f'{", ".join(changed)} are for generated tasks: set source = "generated", or {drop_hint("source")}')

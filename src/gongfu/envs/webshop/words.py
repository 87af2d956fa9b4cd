"""What the words of titles, queries and option values are: search terms, nouns, colours, and how alike two phrases are."""

from __future__ import annotations

import re
from functools import lru_cache

import snowballstemmer
from rapidfuzz import fuzz, utils

__all__ = ["alike", "content_words", "nouns", "same_color", "terms"]


def _listed(words: str) -> dict[str, None]:
    """A set that keeps its order."""
    return dict.fromkeys(words.split())


ALIKE = 85
"""Two phrases are alike above this token-set ratio (0 to 100)."""

STOP = _listed(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to "
    "was will with"
)
"""Words that a search index leaves out."""

_SAYING = _listed(
    "i im am me my we our you your he she his her its one ones some any few lot find get give show help looking look search "
    "searching seeking need needs want wants would like buy purchase shop shopping order try trying interested please can "
    "could should shall may might must do does did has have had having been being so too very also just only really about "
    "from up out than more most less least over under which who whom what where when how whose something anything item "
    "product kind type sort made make makes comes come preferably prefer ideally size color colour flavor flavour scent s t "
    "ve d ll m re"
)
"""Words of an instruction that name no property of a product."""

_NOT_NOUNS = _listed(
    "about after all also amazing any assorted authentic available average basic beautiful best better big bigger black "
    "blue brand breathable bright brown can casual cheap classic clean clear cold comfortable compatible complete cool cute "
    "daily dark deep delicious different digital double dry durable each easily easy elegant electric essential every "
    "everyday extra fancy fast favorite fine fit flat flexible free fresh full fun funny gentle golden good gorgeous grand "
    "great green grey gray hard heavy high hot huge ideal inner instant international large last lightweight light little "
    "long lovely low luxurious made mini modern multi natural new nice old only open optional orange organic other outdoor "
    "outer own perfect permanent personal pink plain popular portable practical premium professional pure purple quick "
    "quiet rapid ready real red regular relaxed replaceable reusable rich romantic round safe same sexy sharp short simple "
    "single slim slow small smart smooth soft solid special square stainless standard strong stylish suitable super sweet "
    "tall thick thin tight tiny top traditional ultra unique universal useful versatile vintage warm wet white whole wide "
    "wild wireless yellow young several many much few our your his her its their them you we us has have made using use "
    "used via per plus from up out off over under between during without within more most less very so too than when which "
    "who why how"
)
"""Adjectives and other words of titles that are no nouns."""

_COLORS = _listed(
    "amber apricot aqua aquamarine azure beige berry black blonde blossom blue blush bronze brown burgundy camel camouflage "
    "caramel champagne charcoal cherry chestnut chocolate clear cobalt coffee copper coral cream crimson cyan denim emerald "
    "espresso floral fuchsia gold graphite gray green grey hazel honey indigo ivory jade khaki lavender lemon leopard lilac "
    "lime magenta mahogany maroon mauve mint mocha mulberry multicolor mustard navy nude oak olive onyx orange orchid peach "
    "pearl pewter pink plum purple rainbow raspberry red rose ruby rust sage salmon sapphire scarlet silver slate tan taupe "
    "teal transparent turquoise vanilla violet walnut white wine yellow"
)
"""Colour words in alphabetical order: the first one that a value contains stands for it."""

_POSSESSIVE = re.compile(r"['’]s\b")
_TERM = re.compile(r"[a-z0-9]+")
_LETTERS = re.compile(r"[^\W\d_]+")
_stemmer = snowballstemmer.stemmer("porter")


def terms(text: str) -> list[str]:
    """The search terms of a text: lower-case, without stop words and possessive endings, stemmed.

    >>> terms("Men's Running Shoes for the Gym")
    ['men', 'run', 'shoe', 'gym']
    """
    return [_stem(word) for word in _TERM.findall(_POSSESSIVE.sub("", text.lower())) if word not in STOP]


@lru_cache(maxsize=1 << 18)
def _stem(word: str) -> str:
    return _stemmer.stemWord(word)


def content_words(text: str) -> list[str]:
    """The words of an instruction that say something about the product, in order, each once.

    >>> content_words("i'm looking for a black hoodie, size x-large")
    ['black', 'hoodie', 'x-large']
    """
    found = re.findall(r"[a-z0-9]+(?:[-.][a-z0-9]+)*", text.lower())
    return list(dict.fromkeys(word for word in found if word not in STOP and word not in _SAYING))


def nouns(title: str) -> list[str]:
    """The nouns of a title, lower-case, repeated as often as they stand there.

    The original asks a tagger, for which nearly every capitalised word of a title is a proper noun; here a list of words that
    are none does.

    >>> nouns("Slim Fit Hoodie for Women, 2 Pack")
    ['hoodie', 'women', 'pack']
    """
    found = _LETTERS.findall(title.lower())
    return [word for word in found if len(word) > 1 and word not in STOP and word not in _NOT_NOUNS]


def same_color(value: str) -> str:
    """A value with its shade taken off: the first known colour word that it contains, or the value itself.

    >>> same_color("dark navy heather"), same_color("x-large")
    ('navy', 'x-large')
    """
    return next((color for color in _COLORS if color in value), value)


def alike(a: str, b: str) -> bool:
    """Whether two phrases share nearly all of their words (token-set ratio above 85, rounded as the original does).

    >>> alike("long sleeve", "sleeve, long"), alike("long sleeve", "short sleeve")
    (True, False)
    """
    return round(fuzz.token_set_ratio(a, b, processor=utils.default_process)) > ALIKE

"""What a generated shop sells: kinds of products with their attributes, options and prices. Data only.

Values of one option, and attributes of one kind, are far enough apart that the reward's fuzzy matching tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BRANDS", "UNSEEN", "WARES", "Ware"]


@dataclass(frozen=True, slots=True)
class Ware:
    """A kind of product. An attribute that begins with "+" is said as "with ...", any other as "that is ..."."""

    category: str
    path: str
    name: str
    said: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: tuple[int, int]
    """Lowest and highest, dollars."""
    uses: tuple[str, ...]
    """What it is for, as titles say."""

    @property
    def attributes(self) -> tuple[str, ...]:
        return tuple(attribute.removeprefix("+") for attribute in self.said)


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


BRANDS = _list(
    "Alvora, Bexley, Corwin, Dunmore, Elvane, Fenlow, Garrick, Holtby, Ivesta, Jorvik, Kelmar, Lunden, Marlow, Norvane, "
    "Oakden, Pellam, Quorra, Rivoli, Selwyn, Tarrow, Ulmont, Vexley, Wendal, Yarrow"
)

_COLORS = _list("black, white, blue, red, green, grey, pink, brown, purple, yellow, orange, navy")
_CLOTHES = {"color": _COLORS, "size": ("small", "medium", "large")}
_SHOES = {"color": _COLORS, "size": ("6", "7", "8", "9", "10", "11")}
_COLOR = {"color": _COLORS}
_LENGTHS = {"color": ("black", "white", "blue", "red"), "length": ("3ft", "6ft", "10ft", "15ft")}
_BEDS = {"color": _COLORS, "size": ("twin", "full", "queen", "king")}
_SCENTS = {"scent": ("lavender", "vanilla", "coconut", "rose", "mint", "citrus"), "size": ("4oz", "8oz", "16oz")}
_WEIGHTS = ("6oz", "12oz", "24oz")


def _ware(path: str, name: str, said: str, options: Mapping[str, tuple[str, ...]], low: int, high: int, uses: str) -> Ware:
    categories = {
        "Clothing": "fashion",
        "Beauty": "beauty",
        "Grocery": "grocery",
        "Electronics": "electronics",
        "Home": "garden",
    }
    path = path.replace(" > ", " › ")
    return Ware(categories[path.split()[0]], path, name, _list(said), options, (low, high), _list(uses))


def _flavors(values: str) -> dict[str, tuple[str, ...]]:
    return {"flavor": _list(values), "weight": _WEIGHTS}


WARES = (
    _ware(
        "Clothing > Tops > Hoodies",
        "hoodie",
        "+long sleeve, machine washable, slim fit, +drawstring closure, fleece lined, moisture wicking",
        _CLOTHES,
        18,
        60,
        "men, women",
    ),
    _ware(
        "Beauty > Skin Care > Body Lotions",
        "body lotion",
        "cruelty free, paraben free, +shea butter, dermatologist tested, non greasy, +natural ingredients",
        _SCENTS,
        6,
        30,
        "dry skin, sensitive skin",
    ),
    _ware(
        "Grocery > Snacks > Popcorn",
        "popcorn",
        "gluten free, non gmo, +low sodium, kettle cooked, +sea salt, individually wrapped",
        _flavors("cheddar, caramel, butter, jalapeno"),
        5,
        35,
        "parties, movie night",
    ),
    _ware(
        "Electronics > Accessories > USB Cables",
        "usb cable",
        "+fast charging, heavy duty, gold plated, +nylon braid, tangle resistant, high speed",
        _LENGTHS,
        5,
        28,
        "phones, tablets",
    ),
    _ware(
        "Home > Furniture > Ottomans",
        "ottoman",
        "easy assemble, +storage space, +faux leather, space saving, +solid wood, high density",
        _COLOR,
        35,
        180,
        "living room, bedroom",
    ),
    _ware(
        "Clothing > Shoes > Sneakers",
        "sneakers",
        "+rubber sole, +arch support, non slip, light weight, +memory foam, quick drying",
        _SHOES,
        25,
        95,
        "men, women",
    ),
    _ware(
        "Beauty > Makeup > Lipsticks",
        "lipstick",
        "long lasting, cruelty free, highly pigmented, +vitamin e, water resistant, fragrance free",
        {"color": ("red", "pink", "coral", "nude", "plum", "brown")},
        6,
        32,
        "women, weddings",
    ),
    _ware(
        "Grocery > Beverages > Teas",
        "tea",
        "caffeine free, certified organic, non gmo, sugar free, hand crafted, +loose leaf",
        _flavors("peach, ginger, lemon, chamomile"),
        6,
        40,
        "gifts, iced drinks",
    ),
    _ware(
        "Electronics > Audio > Speakers",
        "bluetooth speaker",
        "water resistant, +stereo sound, easy carry, +long battery life, dust proof, hands free",
        _COLOR,
        18,
        120,
        "outdoors, home",
    ),
    _ware(
        "Home > Bedding > Duvet Covers",
        "duvet cover",
        "machine washable, super soft, wrinkle resistant, +zipper closure, double brushed, fade resistant",
        _BEDS,
        22,
        90,
        "bedroom, guest room",
    ),
    _ware(
        "Clothing > Bottoms > Jeans",
        "jeans",
        "relaxed fit, +button closure, straight leg, +high waist, machine washable, butt lifting",
        _CLOTHES,
        20,
        80,
        "men, women",
    ),
    _ware(
        "Beauty > Hair Care > Shampoos",
        "shampoo",
        "sulfate free, paraben free, +argan oil, color safe, +tea tree, plant based",
        _SCENTS,
        7,
        35,
        "dry hair, damaged hair",
    ),
    _ware(
        "Grocery > Snacks > Granola Bars",
        "granola bar",
        "gluten free, dairy free, +high protein, low carb, nut free, certified organic",
        _flavors("chocolate, almond, blueberry, peanut"),
        6,
        38,
        "school lunch, hiking",
    ),
    _ware(
        "Electronics > Accessories > Phone Cases",
        "phone case",
        "shock proof, +wireless charging, +tempered glass, slim fit, easy install, non slip",
        _COLOR,
        8,
        40,
        "iphone, galaxy",
    ),
    _ware(
        "Home > Lighting > Table Lamps",
        "table lamp",
        "+glass shade, energy efficient, +usb port, easy install, +metal base, eye caring",
        _COLOR,
        20,
        110,
        "bedroom, office",
    ),
    _ware(
        "Clothing > Outerwear > Jackets",
        "jacket",
        "water proof, +zipper pockets, fleece lined, light weight, wind resistant, hand wash",
        _CLOTHES,
        30,
        140,
        "men, women",
    ),
    _ware(
        "Beauty > Oral Care > Toothbrushes",
        "toothbrush",
        "bpa free, +soft bristles, eco friendly, easy use, +travel case, battery powered",
        _COLOR,
        5,
        45,
        "sensitive teeth, travel",
    ),
    _ware(
        "Home > Decor > Rugs",
        "area rug",
        "non slip, easy clean, stain resistant, +low pile, hand woven, pet friendly",
        {"color": _COLORS, "shape": ("square", "round", "runner")},
        25,
        160,
        "living room, dining room",
    ),
)
"""Kinds that training shows."""

UNSEEN = (
    _ware(
        "Clothing > Tops > Cardigans",
        "cardigan",
        "+long sleeve, open front, hand wash, loose fit, +button closure, ribbed knit",
        _CLOTHES,
        20,
        70,
        "women, teens",
    ),
    _ware(
        "Beauty > Fragrance > Candles",
        "scented candle",
        "lead free, +soy wax, long lasting, smoke free, hand poured, +glass jar",
        _SCENTS,
        8,
        45,
        "gifts, home",
    ),
    _ware(
        "Grocery > Pantry > Coffee",
        "coffee",
        "fair trade, low acid, certified organic, +whole bean, shade grown, kosher certified",
        _flavors("hazelnut, mocha, cinnamon, maple"),
        8,
        45,
        "cold brew, espresso",
    ),
    _ware(
        "Electronics > Audio > Headphones",
        "headphones",
        "noise cancelling, +fast charging, water resistant, hands free, +stereo sound, light weight",
        _COLOR,
        18,
        150,
        "sports, travel",
    ),
    _ware(
        "Home > Furniture > Bar Stools",
        "bar stool",
        "height adjustable, +metal frame, easy assemble, +faux leather, heavy duty, +back support",
        _COLOR,
        40,
        200,
        "kitchen, patio",
    ),
    _ware(
        "Home > Bath > Shower Curtains",
        "shower curtain",
        "water proof, machine washable, quick drying, mildew resistant, +metal grommets, eco friendly",
        {"color": _COLORS, "pattern": ("striped", "floral", "plaid", "dotted")},
        10,
        50,
        "bathroom, dorm",
    ),
)
"""Kinds that only the split "unseen" asks for."""

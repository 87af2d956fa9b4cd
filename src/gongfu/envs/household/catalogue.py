"""What ALFRED's rooms hold: receptacles, objects, what fits where, and which kinds of tasks exist in which room.

Facts of ALFRED (Shridhar et al., CVPR 2020) as found in the games of ALFWorld (MIT); the wordings of the goals are ALFWorld's.
"""

from __future__ import annotations

from collections.abc import Mapping

from gongfu.envs.household.problem import KINDS

__all__ = [
    "ALWAYS_ONE",
    "ANY_NUMBER",
    "FURNITURE",
    "INSIDE",
    "KIND_RULES",
    "LAMP",
    "LAMP_PLACES",
    "LAMP_ROOMS",
    "OBJECTS",
    "OPENABLE",
    "ROOMS",
]

ROOMS = ("kitchen", "bedroom", "bathroom", "livingroom")

# Types that every home of the room has, and those that a family may have.
FURNITURE: Mapping[str, tuple[str, str]] = {
    "kitchen": (
        "countertop fridge microwave sinkbasin",
        "cabinet coffeemachine diningtable drawer garbagecan shelf sidetable stoveburner toaster",
    ),
    "bedroom": ("bed desk", "armchair cabinet diningtable drawer dresser garbagecan laundryhamper safe shelf sidetable"),
    "bathroom": (
        "countertop sinkbasin toilet",
        "bathtubbasin cabinet cart drawer garbagecan handtowelholder shelf sidetable toiletpaperhanger towelholder",
    ),
    "livingroom": (
        "coffeetable sofa",
        "armchair cabinet diningtable drawer dresser garbagecan ottoman safe shelf sidetable tvstand",
    ),
}
OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
INSIDE = OPENABLE | {"sinkbasin", "bathtubbasin", "garbagecan", "laundryhamper"}
ALWAYS_ONE = frozenset({"fridge", "microwave", "toaster", "coffeemachine", "toilet", "safe", "garbagecan", "laundryhamper"}) | {
    "bathtubbasin",
    "cart",
    "toiletpaperhanger",
    "tvstand",
}
ANY_NUMBER = ("cabinet", "drawer", "shelf")  # every family has one of them, so a home can be as large as asked

_TOP = "countertop diningtable sidetable"
_SEATS = "armchair ottoman sofa"
_TABLES = "coffeetable desk diningtable dresser sidetable"
# Type of object: (receptacle types it fits in, what can be done with it, rooms it is found in).
OBJECTS: Mapping[str, tuple[str, str, str]] = {
    "alarmclock": (f"countertop {_TABLES} shelf", "", "bedroom"),
    "apple": (f"{_TOP} fridge garbagecan microwave sinkbasin", "cleanable heatable coolable sliceable", "kitchen"),
    "book": (f"bed cabinet countertop drawer shelf {_TABLES} {_SEATS}", "", "bedroom livingroom"),
    "bowl": (
        f"cabinet countertop fridge microwave shelf sinkbasin {_TABLES}",
        "cleanable coolable receptacle",
        "kitchen bedroom",
    ),
    "box": (f"cabinet shelf {_TABLES} {_SEATS}", "receptacle", "livingroom"),
    "bread": (f"{_TOP} fridge garbagecan microwave", "heatable coolable sliceable", "kitchen"),
    "butterknife": (f"{_TOP} drawer sinkbasin", "cleanable", "kitchen"),
    "candle": (f"{_TOP} cabinet cart coffeetable drawer dresser shelf toilet", "", "bathroom"),
    "cd": (f"cabinet desk dresser drawer garbagecan safe shelf {_TOP}", "", "bedroom"),
    "cellphone": (f"bed countertop drawer safe shelf {_TABLES} {_SEATS}", "", "bedroom livingroom"),
    "cloth": (f"{_TOP} bathtubbasin cabinet cart drawer garbagecan shelf sinkbasin toilet", "cleanable", "bathroom"),
    "creditcard": (f"countertop drawer safe shelf {_TABLES} {_SEATS}", "", "bedroom livingroom"),
    "cup": (f"{_TOP} cabinet fridge microwave shelf sinkbasin", "cleanable heatable coolable receptacle", "kitchen"),
    "dishsponge": (
        f"{_TOP} bathtubbasin cabinet cart drawer garbagecan shelf sinkbasin toilet",
        "cleanable",
        "kitchen bathroom",
    ),
    "egg": (f"{_TOP} fridge garbagecan microwave sinkbasin", "cleanable heatable coolable sliceable", "kitchen"),
    "fork": (f"{_TOP} drawer sinkbasin", "cleanable", "kitchen"),
    "handtowel": (
        "bathtubbasin cabinet cart countertop drawer garbagecan handtowelholder shelf sidetable toilet",
        "",
        "bathroom",
    ),
    "kettle": (f"{_TOP} cabinet shelf sinkbasin stoveburner", "cleanable", "kitchen"),
    "keychain": (f"countertop drawer safe shelf {_TABLES} {_SEATS}", "", "bedroom livingroom"),
    "knife": (f"{_TOP} drawer sinkbasin", "cleanable", "kitchen"),
    "laptop": (f"bed countertop {_TABLES} {_SEATS}", "", "bedroom livingroom"),
    "lettuce": (f"{_TOP} fridge garbagecan sinkbasin", "cleanable coolable sliceable", "kitchen"),
    "mug": (
        f"cabinet coffeemachine desk dresser fridge microwave shelf sinkbasin {_TOP}",
        "cleanable heatable coolable receptacle",
        "kitchen bedroom",
    ),
    "newspaper": (f"cabinet drawer garbagecan shelf {_TABLES} {_SEATS}", "", "livingroom"),
    "pan": (f"{_TOP} cabinet fridge sinkbasin stoveburner", "cleanable coolable receptacle", "kitchen"),
    "pen": (f"countertop drawer garbagecan shelf {_TABLES}", "", "bedroom livingroom"),
    "pencil": (f"countertop drawer garbagecan shelf {_TABLES}", "", "bedroom livingroom"),
    "peppershaker": (f"{_TOP} cabinet drawer shelf", "", "kitchen"),
    "pillow": (f"bed {_SEATS}", "", "bedroom livingroom"),
    "plate": (f"{_TOP} cabinet fridge microwave shelf sinkbasin", "cleanable heatable coolable receptacle", "kitchen"),
    "pot": (f"{_TOP} cabinet fridge shelf sinkbasin stoveburner", "cleanable coolable receptacle", "kitchen"),
    "potato": (f"{_TOP} fridge garbagecan microwave sinkbasin", "cleanable heatable coolable sliceable", "kitchen"),
    "remotecontrol": (f"countertop drawer shelf {_TABLES} {_SEATS}", "", "livingroom"),
    "saltshaker": (f"{_TOP} cabinet drawer shelf", "", "kitchen"),
    "soapbar": (
        "bathtubbasin cabinet cart countertop drawer garbagecan shelf sidetable sinkbasin toilet",
        "cleanable",
        "bathroom",
    ),
    "soapbottle": (f"{_TOP} cabinet cart drawer garbagecan shelf toilet", "", "kitchen bathroom"),
    "spatula": (f"{_TOP} drawer sinkbasin", "cleanable", "kitchen"),
    "spoon": (f"{_TOP} drawer sinkbasin", "cleanable", "kitchen"),
    "spraybottle": (f"{_TOP} cabinet cart drawer dresser garbagecan shelf toilet", "", "bathroom"),
    "statue": (f"countertop safe shelf {_TABLES}", "", "livingroom"),
    "tissuebox": (f"cabinet cart countertop drawer garbagecan shelf toilet tvstand {_TABLES}", "", "bathroom livingroom"),
    "toiletpaper": ("cabinet cart countertop drawer garbagecan shelf sidetable toilet toiletpaperhanger", "", "bathroom"),
    "tomato": (f"{_TOP} fridge garbagecan microwave sinkbasin", "cleanable heatable coolable sliceable", "kitchen"),
    "towel": ("towelholder", "", "bathroom"),
    "vase": (f"cabinet countertop safe shelf {_TABLES}", "", "livingroom"),
    "watch": (f"drawer safe shelf {_TABLES}", "", "livingroom"),
    "winebottle": (f"{_TOP} cabinet fridge garbagecan shelf", "coolable", "kitchen"),
}
LAMP = "desklamp"
LAMP_PLACES = f"shelf {_TABLES}".split()
LAMP_ROOMS = ("bedroom", "livingroom")

# Kind: (rooms, what the object must allow, a goal receptacle that would be odd, two wordings of the goal as ALFWorld has them).
KIND_RULES: Mapping[str, tuple[tuple[str, ...], str, str, tuple[str, str]]] = {
    KINDS[0]: (ROOMS, "", "", ("put a {o} in {r}", "put some {o} on {r}")),
    KINDS[1]: (LAMP_ROOMS, "", "", ("look at {o} under the desklamp", "examine the {o} with the desklamp")),
    KINDS[2]: (
        ("kitchen", "bathroom"),
        "cleanable",
        "sinkbasin",
        ("put a clean {o} in {r}", "clean some {o} and put it in {r}"),
    ),
    KINDS[3]: (("kitchen",), "heatable", "microwave", ("put a hot {o} in {r}", "heat some {o} and put it in {r}")),
    KINDS[4]: (("kitchen",), "coolable", "fridge", ("put a cool {o} in {r}", "cool some {o} and put it in {r}")),
    KINDS[5]: (ROOMS, "", "", ("put two {o} in {r}", "find two {o} and put them in {r}")),
}

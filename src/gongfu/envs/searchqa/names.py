"""Names of the generated worlds: invented or common, so that no model knows an answer; few words, for small vocabularies."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    """
    Ada Alma Anton Bela Boris Carla Clara Dora Edgar Elena Emil Erik Felix Flora Greta Hanna Hugo Ida Igor Ines Ivan
    Jonas Julia Karl Lars Laura Leo Lina Marek Maria Nadia Nils Olga Oscar Paula Petra Rosa Simon Tessa Viktor
    """
)
LAST_NAMES = _words(
    """
    Abel Bauer Berg Brandt Castro Cole Dahl Decker Egan Falk Fischer Gallo Garner Haas Holm Ibsen Jansen Keller Kovac
    Lang Lindt Marsh Moreau Nagy Novak Olsen Pavel Quist Ramos Ritter Sato Silva Stein Tanner Toth Unger Vogel Weber
    Wolf Zeman
    """
)
CITIES = _words(
    """
    Alden Arvik Balmar Belden Brask Calder Corvin Dalen Delmar Dorst Elmar Esper Fenwick Galen Garth Halden Harmon
    Ilver Jarrow Kelso Kirin Lanmar Lorne Malden Marlow Mirel Nessa Norwick Odra Orlen Parl Pelham Quill Ravel Rosk
    Salen Selby Soren Talmar Tarn Ulver Varn Velden Vesper Wendel Wick Yarrow Zelm
    """
)
COUNTRIES = _words(
    """
    Aldria Astoria Belmara Cordonia Draskia Eldovia Farlandia Grelia Hastia Ilmoria Jorvia Kestria Lomaria Merovia
    Norland Ostania Pelonia Quistan Ravonia Sarkia Tolmia Urvania Velmora Zandia
    """
)
LANGUAGES = _words(
    """
    Aldric Astric Belmic Cordic Draskan Eldish Farlan Grelic Hastan Ilmic Jorvan Kestic Lomaric Merish Norlandic Ostan
    Pelonic Quistic Ravish Sarkan Tolmic Urvan Velmoric Zandic
    """
)
TITLE_FIRST = _words(
    """
    Bitter Black Blue Broken Burning Cold Crystal Distant Empty Fallen Frozen Golden Green Hidden Hollow Iron Last
    Lonely Lost Pale Quiet Red Secret Silent Silver Stolen Sunken White
    """
)
TITLE_LAST = _words(
    """
    Bridge Castle Crown Desert Dream Field Forest Garden Gate Harbor Hill House Island Journey Lake Mirror Moon
    Mountain Night Ocean Orchard River Road Shadow Storm Summer Tower Winter
    """
)
COMPANY_FIRST = _words(
    """
    Apex Boreal Cobalt Delta Ember Fulcrum Granite Helix Indigo Juniper Kappa Lumen Meridian Nova Orbit Prism
    """
)
COMPANY_LAST = _words(
    """
    Foods Labs Motors Press Systems Textiles Tools Works
    """
)

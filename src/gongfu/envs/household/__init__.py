"""Household tasks in text: ALFWorld's game on a fast engine of our own, and on the official one."""

from gongfu.envs.household.expert import HouseholdExpert
from gongfu.envs.household.homes import Family, habit_sentence
from gongfu.envs.household.suite import HouseholdSuite
from gongfu.envs.household.world import HouseholdEnv

__all__ = ["Family", "HouseholdEnv", "HouseholdExpert", "HouseholdSuite", "habit_sentence"]

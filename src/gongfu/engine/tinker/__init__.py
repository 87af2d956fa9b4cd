"""The tinker engine: a client of the Tinker API, for a SkyRL server of one's own or the hosted service."""

from gongfu.engine.tinker.engine import TinkerEngine as TinkerEngine

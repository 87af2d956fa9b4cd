"""Shopping in text: WebShop's site, search and reward, on official files or on a generated shop."""

from gongfu.envs.webshop.expert import WebShopExpert
from gongfu.envs.webshop.shop import WebShopEnv
from gongfu.envs.webshop.suite import WebShopSuite

__all__ = ["WebShopEnv", "WebShopExpert", "WebShopSuite"]

"""gongfu (功夫, skill earned by practice): train a language-model agent together with the bank of skills it writes."""

__version__ = "0.1.0"

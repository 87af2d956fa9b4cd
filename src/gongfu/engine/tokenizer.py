"""The tokenizer of a model folder. Imports neither torch nor transformers, so it starts in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from gongfu.core.errors import ModelError, TokenError


class HFTokenizer:
    """`tokenizer.json`, the chat template and the end tokens of a Hugging Face folder; see `protocol.Tokenizer`.

    `encode` adds no special tokens (a rendered conversation carries its own) and recognises those written in the text;
    `decode` keeps them visible. Raises ModelError when a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{path} is missing; give a model folder with a fast tokenizer")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as e:  # tokenizers raises bare Exception
            raise ModelError(f"{path} is damaged: {e}") from e
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._settings = self._json("tokenizer_config.json")
        self.stop_ids: tuple[int, ...] = self._find_stop_ids()
        self.vocab_size: int = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def render(self, messages: Sequence[Mapping[str, str]], *, generation: bool) -> str:
        """The text of a conversation; `generation` opens the assistant's next message.

        Raises TokenError when the template refuses the messages (for example roles out of turn).
        """
        from jinja2 import TemplateError

        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        special = {name: token for name in names if (token := self._special(name)) is not None}
        try:
            return self._template.render(
                messages=[dict(m) for m in messages],
                add_generation_prompt=generation,
                tools=None,
                documents=None,
                **special,
            )
        except TemplateError as e:
            raise TokenError(f"the chat template of {self.folder} refuses these messages: {e}") from e

    @cached_property
    def _template(self) -> Any:
        from jinja2 import TemplateError
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> NoReturn:
            raise TemplateError(message)

        def tojson(value: Any, indent: int | None = None) -> str:
            return json.dumps(value, ensure_ascii=False, indent=indent)  # jinja's own escapes for HTML

        class GenerationTag(Extension):
            """Some templates mark the assistant's words with {% generation %}; the mark prints nothing."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        # The environment that chat templates are written for (transformers' documentation, "Chat templates").
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
        )
        environment.filters["tojson"] = tojson
        environment.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
        try:
            return environment.from_string(self._template_text())
        except TemplateError as e:
            raise ModelError(f"the chat template of {self.folder} does not compile: {e}") from e

    def _template_text(self) -> str:
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        template = self._settings.get("chat_template")
        if isinstance(template, list):  # several named templates
            template = next((t["template"] for t in template if t["name"] == "default"), None)
        if not template:
            raise ModelError(f"{self.folder} has no chat template; use an instruction-tuned model or add chat_template.jinja")
        return template

    def _find_stop_ids(self) -> tuple[int, ...]:
        """End tokens of the generation settings and of the tokenizer, else of the model's configuration."""
        found: list[int] = []
        for source in (self._json("generation_config.json"), self._json("config.json")):
            ends = source.get("eos_token_id")
            found += [] if ends is None else ends if isinstance(ends, list) else [ends]
            end = self._special("eos_token")
            if end is not None and (index := self._tokenizer.token_to_id(end)) is not None:
                found.append(index)
            if found:
                return tuple(dict.fromkeys(found))
        raise ModelError(f"{self.folder} names no end token (eos_token); add it to tokenizer_config.json")

    def _special(self, name: str) -> str | None:
        token = self._settings.get(name)
        return token["content"] if isinstance(token, dict) else token

    def _json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as e:
            raise ModelError(f"{path} is damaged: {e}") from e

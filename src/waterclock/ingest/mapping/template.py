"""Templates that extract a source and a stream from an MQTT topic, level by level."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError

_FIELD = re.compile(r"\{([a-z_]+)(\.\.\.)?\}")
_FIELDS = ("source", "stream", "_")
_EXAMPLE = "plant/{_}/{source}/{stream...}"


@dataclass(frozen=True)
class Template:
    """A pattern for topics such as ``collectd/{source}/{stream...}``.

    ``{source}`` and ``{stream}`` take one level each, ``{_}`` an ignored level. One field may take several levels:
    ``{stream...}`` takes as many as remain, at least one, with their slashes.
    """

    text: str  # the template as it was written
    _pattern: re.Pattern[str] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a template.

        Raises `InvalidArgumentError` if a level is neither a literal nor a field, a field occurs twice, or two fields
        take several levels.
        """
        seen: list[str] = []
        wide = 0
        parts: list[str] = []
        for level in text.split("/"):
            found = _FIELD.fullmatch(level)
            if found is None:
                if set(level) & set("{}+#"):
                    raise InvalidArgumentError(
                        f"template: the level {quoted(level)} must be a literal or one of"
                        f" {{source}}, {{stream}} and {{_}}, for example {_EXAMPLE}"
                    )
                parts.append(re.escape(level))
                continue
            name, is_wide = found[1], found[2] is not None
            if name not in _FIELDS:
                raise InvalidArgumentError(f"template: no field named {quoted(name)}; use {', '.join(_FIELDS)}")
            if name != "_" and name in seen:
                raise InvalidArgumentError(f"template must contain {{{name}}} at most once, got {quoted(text)}")
            wide += is_wide
            seen.append(name)
            pattern = ".*" if is_wide else "[^/]*"
            parts.append(pattern if name == "_" else f"(?P<{name}>{pattern})")
        if wide > 1:
            raise InvalidArgumentError(
                f"template must have at most one field that matches several levels, got {quoted(text)}"
            )
        return cls(text, re.compile("/".join(parts), re.DOTALL))

    @property
    def fields(self) -> frozenset[str]:
        """Which of source and stream it takes."""
        return frozenset(self._pattern.groupindex)

    def match(self, topic: str) -> dict[str, str]:
        """Extract the fields from a topic.

        Raises `InvalidArgumentError` if the topic has another form, or a field would be empty.
        """
        found = self._pattern.fullmatch(topic)
        if found is None:
            raise InvalidArgumentError(f"topic must match the template {quoted(self.text)}, got {quoted(topic)}")
        fields = found.groupdict()
        for name, value in fields.items():
            if not value:
                raise InvalidArgumentError(f"the level {{{name}}} of the topic must not be empty, got {quoted(topic)}")
        return fields

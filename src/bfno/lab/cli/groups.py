"""Groups of commands whose help is complete and in the order of use."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

__all__ = ["Group"]

# In the order in which somebody new needs them; a group has some of these commands.
_ORDER = (
    *("demo", "train", "resume", "eval", "predict", "reconstruct", "sample"),
    *("compare", "report", "figures", "table", "results"),
    *("models", "config", "data", "list", "get", "check", "import-released", "bench"),
)
_WHOLE = 1000  # letters of a summary: long ones are wrapped, never cut


def _place(command: str) -> int:
    return _ORDER.index(command) if command in _ORDER else len(_ORDER)


class Group(TyperGroup):
    """Commands that are listed in the order of use; without any word it prints its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take no word at all for a question."""
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, in the order of use."""
        return sorted(super().list_commands(ctx), key=_place)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write every command with its whole summary."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_WHOLE)) for name, one in commands])

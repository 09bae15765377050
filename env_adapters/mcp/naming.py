"""Functions of the model: the chosen tools of the servers, under names that tell them apart."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from env_adapters.mcp.places import ServerSpec
from verl_agent.envs.tools import Tool
from verl_agent.errors import ConfigError, did_you_mean


class NamedTool(NamedTuple):
    """Tool of a server, under the name for the model."""

    tool: Tool
    server: int
    """Index of its server."""
    name: str
    """Name that its server knows."""


def name_tools(
    specs: Mapping[str, ServerSpec],
    found: Sequence[tuple[int, Mapping[str, Any]]],
    chosen: Sequence[str] | None,
    own: Tool,
) -> list[NamedTool]:
    """Return the tools that the model may call.

    Args:
        found: descriptions of the servers' tools, each with the index of its server.
        chosen: names of the tools that may be called; None for all.
        own: function of the environment itself.

    Raises:
        ConfigError: a server has no such tool, one has a name or schema that is not allowed, or two have one name.
    """
    if missing := set(chosen or ()) - {one["name"] for _, one in found}:
        hint = did_you_mean(min(missing), [one["name"] for _, one in found])
        raise ConfigError(f"env.options.tools: the servers have no {min(missing)!r}. {hint}")
    servers, named, by_name = list(specs), list[NamedTool](), dict[str, NamedTool]()
    for server, one in found:
        if chosen is not None and one["name"] not in chosen:
            continue
        key = f"env.options.servers.{servers[server]}"
        try:
            tool = Tool.from_schema({**one, "name": specs[servers[server]].prefix + one["name"]})
        except ConfigError as error:
            remedy = "Correct it in the server, or name the other tools in env.options.tools."
            raise ConfigError(f"{key}: {error} {remedy}") from error
        made, lower = NamedTool(tool, server, one["name"]), tool.name.lower()
        if lower == own.name.lower():
            raise ConfigError(
                f"{key}: its tool {tool.name!r} has the name of the environment's own function {own.name!r}. "
                f"Set {key}.prefix, or name the other tools in env.options.tools."
            )
        if (other := by_name.get(lower)) is not None:
            raise ConfigError(_same_name(servers, other, made))
        named.append(made)
        by_name[lower] = made
    return named


def _same_name(servers: Sequence[str], first: NamedTool, second: NamedTool) -> str:
    """Return the message for two tools whose names are the same, or differ only in case."""
    others = "name the other tools in env.options.tools."
    if first.server != second.server:
        return (
            f"env.options.servers: {first.tool.name!r} of {servers[first.server]!r} and {second.tool.name!r} of "
            f"{servers[second.server]!r} have the same name, or differ only in case. Set "
            f"env.options.servers.{servers[second.server]}.prefix, or {others}"
        )
    key = f"env.options.servers.{servers[first.server]}"
    if first.name == second.name:
        return f"{key}: the server lists its tool {first.name!r} twice. Correct the server, or {others}"
    return f"{key}: its tools {first.name!r} and {second.name!r} differ only in case. Rename one of them, or {others}"

"""Proxies: the one decision of which connections go through a proxy, for our clients and for child processes.

Connections within this machine never do: its loopback addresses, the wildcard of a server, and its own names and
addresses. All others follow `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` in either spelling, as curl reads
them: https://everything.curl.dev/usingcurl/proxies/env.html. Lower case wins, also
an empty value, and both lists of exceptions count.
"""

import os
import socket
from collections.abc import Iterable, Mapping, MutableMapping
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from verl_agent.errors import ConfigError

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""Names of the variables in upper case; each is read and passed on in lower case too."""
NAMES = (
    "localhost",
    "localhost.localdomain",
    "localhost4",
    "localhost4.localdomain4",
    "localhost6",
    "localhost6.localdomain6",
    "ip6-localhost",
    "ip6-loopback",
)
"""Names of the loopback addresses in /etc/hosts of the usual distributions."""
LOOPBACK = (*NAMES, "127.0.0.1", "127.0.1.1", "127.0.0.0/8", "::1", "0.0.0.0")
"""Exceptions for child processes. Most libraries compare texts, so the usual addresses stand beside their network."""
_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
"""Scheme of the variable that decides, by scheme of the URL."""


def proxy_of(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL of the proxy for a connection to `url`; None for a direct one.

    Raises:
        ConfigError: the proxy speaks another protocol than HTTP, such as SOCKS, or the URL has an impossible port.
    """
    parts = urlsplit(url)
    host, scheme = (parts.hostname or "").rstrip("."), _SCHEMES.get(parts.scheme, "")
    if not host or is_this_machine(host) or _excepted(host, _port(url), _value("NO_PROXY", environment)):
        return None
    name = f"{scheme.upper()}_PROXY" if _value(f"{scheme.upper()}_PROXY", environment) else "ALL_PROXY"
    proxy = _value(name, environment)
    if not scheme or not proxy:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.lower().startswith(("http://", "https://")):
        shown = proxy.partition("://")[0]
        raise ConfigError(
            f"{name} names a proxy of the protocol {shown!r}, which no client here speaks, for {host}. Allowed: http, "
            f"https. Set {scheme.upper()}_PROXY to an HTTP proxy, or add {host} to NO_PROXY for a direct connection."
        )
    return proxy


def is_this_machine(host: str) -> bool:
    """Return True for loopback names and addresses, the wildcard, and the names and addresses of this machine."""
    host = host.strip("[]").partition("%")[0].rstrip(".").lower()
    if host in NAMES or host.endswith(".localhost") or host in own_names():
        return True
    address = _address(host)
    if address is None:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_unspecified or str(address) in own_names()


@cache
def own_names() -> frozenset[str]:
    """Return the host name and the addresses of this machine, in lower case."""
    names = {socket.gethostname().lower()}
    try:
        import psutil
    except ModuleNotFoundError:  # the environment of the embedded sites has few packages
        return frozenset(names)
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                names.add(one.address.partition("%")[0].lower())
    return frozenset(names)


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables in which every library makes the decisions of `proxy_of`.

    Without a proxy nothing changes. With one, both spellings have the same value, and the exceptions contain this
    machine.
    """
    changed = dict(variables)
    found = {name: _value(name, variables) for name in VARIABLES}
    changed |= {name: "" for name, value in found.items() if not value and variables.get(name)}
    if not any(found[name] for name in VARIABLES if name != "NO_PROXY"):
        return changed
    # httpx 0.28 raises InvalidURL for an IPv6 address in brackets.
    excepted = [_split_port(entry)[0] if entry.startswith("[") else entry for entry in _entries(found["NO_PROXY"])]
    found["NO_PROXY"] = "*" if "*" in excepted else ",".join(_unique([*excepted, *LOOPBACK, *sorted(own_names())]))
    for name, value in found.items():
        if value:
            changed |= {name: value, name.lower(): value}
    return changed


def settle_proxies(variables: MutableMapping[str, str] = os.environ) -> None:
    """Change the variables of this process to those of `child_environment`.

    For processes in which libraries open connections of their own, such as a trainer with verl, vLLM and Ray.
    """
    variables.update(child_environment(variables))


def is_proxy_variable(name: str) -> bool:
    """Return True for the name of a variable about proxies, in either spelling."""
    return name.upper() in VARIABLES


def _value(name: str, environment: Mapping[str, str]) -> str:
    """Return the value of a variable: of its lower-case spelling if it is set; for exceptions, of both together."""
    values = [environment.get(name.lower(), "").strip(), environment.get(name, "").strip()]
    if name == "NO_PROXY":
        return ",".join(filter(None, values))
    return values[name.lower() not in environment]


def _entries(text: str) -> list[str]:
    return _unique(text.replace(",", " ").split())


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _port(url: str) -> int:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        shown = parts.netloc.rpartition("@")[2]  # without a password
        raise ConfigError(f"the port of {shown!r} is not allowed. Allowed: 1 to 65535. Correct the URL.") from error
    return port or (443 if _SCHEMES.get(parts.scheme) == "https" else 80)


def _excepted(host: str, port: int, exceptions: str) -> bool:
    address = _address(host)
    for entry in map(str.lower, _entries(exceptions)):
        if entry == "*":
            return True
        name, own_port = _split_port(entry)
        if own_port is not None and own_port != port:
            continue
        if address is not None and _contains(name, address):
            return True
        name = name.removeprefix("*").strip(".")
        if name and (host.lower() == name or host.lower().endswith(f".{name}")):
            return True
    return False


def _contains(network: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ip_network(network, strict=False)
    except ValueError:  # a name
        return False


def _split_port(entry: str) -> tuple[str, int | None]:
    """Return address or name of an exception, and its port if it has one."""
    if entry.startswith("["):
        name, _, port = entry[1:].partition("]")
        port = port.removeprefix(":")
    elif entry.count(":") == 1:
        name, _, port = entry.partition(":")
    else:
        return entry, None
    return name, int(port) if port.isdigit() else None


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Return a host as an address, also in a short form such as `127.1`; None for a name."""
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        try:
            return IPv4Address(socket.inet_aton(host)) if host[:1].isdigit() else None
        except OSError:
            return None

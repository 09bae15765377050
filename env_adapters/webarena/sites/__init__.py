"""Real web applications on this machine, with a made-up world in them, and a copy of their state for each session."""

from env_adapters.webarena.sites.siteset import URLS, Copy, SiteSet

__all__ = ["URLS", "Copy", "SiteSet"]

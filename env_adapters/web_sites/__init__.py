"""Real web applications on this machine, filled with generated data; each session has a copy of their state."""

from env_adapters.web_sites.siteset import URLS, Copy, SiteSet

__all__ = ["URLS", "Copy", "SiteSet"]

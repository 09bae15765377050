"""Tasks of the embedded sites in WebArena's format, with scripts that solve them and scripts that must not."""

from env_adapters.web_sites.tasks.build import site_tasks

__all__ = ["site_tasks"]

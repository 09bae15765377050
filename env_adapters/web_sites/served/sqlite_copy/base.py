"""Django's SQLite backend, connected to the file of the current request's copy."""

from pathlib import Path
from typing import Any

from django.db.backends.sqlite3 import base

from env_adapters.web_sites.served.copies import current


class DatabaseWrapper(base.DatabaseWrapper):
    """Connection to `NAME` of the settings, or to the file of that name in the current copy.

    Connections are closed at the end of each request (`CONN_MAX_AGE = 0`), so no connection outlives its copy.
    """

    def get_connection_params(self) -> dict[str, Any]:
        params: dict[str, Any] = super().get_connection_params()
        if (copy := current.get()) is not None:
            params["database"] = str(copy / Path(self.settings_dict["NAME"]).name)
        return params

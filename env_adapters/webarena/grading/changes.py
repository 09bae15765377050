"""Changes of the state of sites that a task may require."""

from collections.abc import Mapping
from dataclasses import dataclass

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
ADDRESS = ("title", "first_name", "last_name", "line1", "line2", "line3", "line4", "state", "postcode")
Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """Difference of one record between two states of a site.

    Attributes:
        change: `added`, `removed` or `changed`.
        record: kind of the record, for example `order`; on the code host with its project, `papermill ticket`.
        key: key of the record in its database.
        values: all values of an added or removed record, the new values of a changed one.
    """

    change: str
    record: str
    key: str
    values: Values

"""Thumbnailer that returns the original product pictures, without computing or writing files."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings


@dataclass(frozen=True, slots=True)
class Picture:
    """Attributes of a thumbnail that Oscar's templates use."""

    url: str
    width: int = 200
    height: int = 200


class Original:
    """Implementation of Oscar's interface of thumbnailers that returns the picture itself."""

    def generate_thumbnail(self, source: Any, **options: Any) -> Picture:
        """Return the picture; `source` is a file or its name."""
        return Picture(f"{settings.MEDIA_URL}{getattr(source, 'name', source)}")

    def delete_thumbnails(self, source: Any) -> None:
        """Do nothing, because no thumbnails are stored."""

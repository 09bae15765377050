"""Product pictures as they are: nothing is computed and nothing is written."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings


@dataclass(frozen=True, slots=True)
class Picture:
    """What Oscar's templates ask of a thumbnail."""

    url: str
    width: int = 200
    height: int = 200


class Original:
    """Oscar's interface of thumbnailers, answered with the picture itself."""

    def generate_thumbnail(self, source: Any, **options: Any) -> Picture:
        """The picture; `source` is a file or the name of one."""
        return Picture(f"{settings.MEDIA_URL}{getattr(source, 'name', source)}")

    def delete_thumbnails(self, source: Any) -> None:
        """There are none."""

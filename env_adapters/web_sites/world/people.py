"""People of the made-up world: names, and addresses that no mail reaches."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from env_adapters.web_sites.world.words import split

FIRST = split(
    "Ada, Alice, Amir, Anna, Arthur, Bella, Boris, Carla, Cedric, Chloe, Clara, Daniel, David, Diana, "
    "Edgar, Elena, Elias, Ella, Emil, Erik, Esther, Felix, Fiona, Frank, Freya, George, Grace, Hanna, "
    "Harold, Hugo, Ida, Igor, Irene, Isaac, Ivan, Jack, Jana, Jonas, Judith, Julia, Karim, Kate, Klara, "
    "Laura, Leo, Lena, Lucas, Lydia, Magnus, Maria, Martin, Maya, Mila, Nadia, Nina, Noah, Nora, Olga, "
    "Oliver, Oscar, Otto, Paula, Peter, Petra, Quinn, Rachel, Ralph, Rita, Robert, Rosa, Ruth, Samuel, "
    "Sara, Simon, Sofia, Stella, Sven, Tara, Theo, Thomas, Tilda, Ursula, Vera, Victor, Viola, Walter, "
    "Wanda, Yasmin, Yusuf, Zoe"
)
LAST = split(
    "Abbott, Adler, Archer, Barnes, Becker, Berg, Bishop, Blake, Brandt, Brook, Carter, Castle, Chapman, "
    "Clarke, Cooper, Cross, Dale, Decker, Dixon, Draper, Ellis, Falk, Farmer, Fields, Fisher, Forster, "
    "Garner, Glover, Graham, Hale, Harper, Hayes, Holm, Hunter, Ingram, Jansen, Keller, Kendall, Knight, "
    "Lang, Larsen, Lambert, Marsh, Mason, Mercer, Miller, Moore, Nash, Norris, Novak, Palmer, Parker, "
    "Pearce, Porter, Quill, Ramsey, Reed, Rhodes, Roth, Sawyer, Sharp, Shepherd, Sloan, Steiner, Stone, "
    "Tanner, Thorne, Turner, Vance, Vogel, Wagner, Walsh, Ward, Weber, Wells, Winter, Wolf, Wood, York"
)
STREETS = split("Mill Lane, Church Road, Station Street, Park Avenue, Orchard Way, River Walk, High Street, Elm Close")
CITIES = split(
    "Ashford, Bramley, Carlow, Denton, Easton, Fairview, Glenmore, Hartley, Kingsport, Linden, Marlow, Norwood"
)


@dataclass(frozen=True, slots=True)
class Resident:
    """Somebody with a name and an address in the world.

    Attributes:
        last: last name; the pair is unique in its list.
        line1: house number and street.
        postcode: five digits, which Oscar accepts for the United States.
    """

    first: str
    last: str
    line1: str
    city: str
    postcode: str

    @property
    def name(self) -> str:
        return f"{self.first} {self.last}"

    @property
    def email(self) -> str:
        """An address in a domain that is reserved for examples (RFC 2606)."""
        return f"{self.first}.{self.last}@example.com".lower()


def people(random: Random, count: int, taken: Sequence[Resident] = ()) -> list[Resident]:
    """`count` people whose names differ from each other's and from those of `taken`."""
    names = {(person.first, person.last) for person in taken}
    found: list[Resident] = []
    while len(found) < count:
        first, last = random.choice(FIRST), random.choice(LAST)
        if (first, last) in names:
            continue
        names.add((first, last))
        found.append(someone(random, first, last))
    return found


def someone(random: Random, first: str, last: str) -> Resident:
    """A person of that name at some address."""
    line1 = f"{random.randint(1, 180)} {random.choice(STREETS)}"
    return Resident(first, last, line1, random.choice(CITIES), f"{random.randint(10000, 98999)}")

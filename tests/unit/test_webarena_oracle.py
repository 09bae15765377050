"""A script by name finds its elements on the page as it is seen."""

import pytest

from env_adapters.webarena.sites_tasks import site_tasks
from env_adapters.webarena.tasks.embedded import EmbeddedTasks, MiniWobTasks
from env_adapters.webarena.tasks.miniwob_oracle import SOLVED, page_oracle
from env_adapters.webarena.tasks.miniwob_pages import PAGES
from env_adapters.webarena.tasks.oracle import MAX_SCROLLS, Oracle, OracleError, find
from verl_agent.types import TaskItem

PAGE = """Tab 0 (current): Shop

[1] RootWebArea 'Shop' focused: True
\t[2] link '\uf007 Account' url: http://shop.test/accounts/
\t[3] textbox 'Search' required: False
\t[4] heading 'Claw Hammer'
\t\t[5] button 'Add to cart'
\t[6] heading "Baker's Mallet"
\t\t[7] button 'Add to cart'
\t[8] link 'like (3)'
\t[9] link 'like (5)'
URL: http://shop.test/"""


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ('click [link "Account"]', "click [2]"),
        ('click [button "Add to cart"]', "click [5]"),
        ('click [button "Add to cart" #2]', "click [7]"),
        ('click [button "Add to cart" after "Mallet"]', "click [7]"),
        ('click [link "like*"]', "click [8]"),
        ('click [link "like*" #2]', "click [9]"),
        ('type [textbox "Search"] [red [small] hat] [1]', "type [3] [red [small] hat] [1]"),
        ("goto [__SHOPPING__/basket/]", "goto [http://shop.test/basket/]"),
        ("goto [__SHOPPING_ADMIN__]", "goto [http://admin.test/dashboard]"),
        ("stop [$12.50]", "stop [$12.50]"),
    ],
)
def test_a_line_becomes_an_action(line, action):
    urls = {"shopping": "http://shop.test", "shopping_admin": "http://admin.test/dashboard"}
    oracle = Oracle([line], urls)
    assert oracle.act(PAGE) == action
    assert oracle.done


def test_what_is_out_of_view_is_scrolled_to():
    oracle = Oracle(['click [link "Logout"]'], {})
    assert oracle.act(PAGE) == "scroll [down]"
    assert oracle.act("[40] link 'Logout'") == "click [40]"


def test_what_is_not_there_is_an_error_that_names_the_line():
    oracle = Oracle(['click [link "Logout"]'], {})
    for _ in range(MAX_SCROLLS):
        oracle.act(PAGE)
    with pytest.raises(OracleError, match=r"line 1 .*Logout"):
        oracle.act(PAGE)


def test_a_script_that_is_over_says_so():
    oracle = Oracle(["stop []"], {})
    oracle.act(PAGE)
    with pytest.raises(OracleError, match="at its end"):
        oracle.act(PAGE)


def test_a_role_has_to_fit():
    assert find(PAGE, "link", "Add to cart") is None


LOGIN = """[1] RootWebArea 'Login'
\t[2] StaticText 'Enter the '
\t[3] StaticText 'username'
\t[4] StaticText ' "keli" and the '
\t[5] StaticText 'password'
\t[6] StaticText ' "3hI" into the text fields and press login.'
\t[7] textbox '' required: False
\t[8] textbox '' required: False
\t[9] button 'Login'"""


def test_a_page_of_miniwob_is_played_by_what_it_says():
    act = page_oracle()
    actions = ["type [7] [keli] [0]", "type [8] [3hI] [0]", "click [9]", "stop []"]
    assert [act(LOGIN) for _ in actions] == actions


def test_a_page_that_says_something_else_is_an_error_that_tells_what():
    with pytest.raises(OracleError, match="Drag all circles"):
        page_oracle()("[2] StaticText 'Drag all circles into the black box.'")


def test_which_tasks_have_an_oracle():
    assert set(PAGES) > SOLVED
    easy, hard = (TaskItem("webarena", f"miniwob:{page}:0") for page in ("click-test", "book-flight"))
    assert MiniWobTasks().oracle(easy) is not None
    assert MiniWobTasks().oracle(hard) is None
    assert all(EmbeddedTasks().oracle(item) for item in EmbeddedTasks().items("test_all"))
    assert all(task["oracle"] for task in site_tasks())

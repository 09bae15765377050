"""Tests of the oracles, whose scripts find elements by role and name in an observation."""

import pytest

from env_adapters.web_sites.source import EmbeddedTasks
from env_adapters.web_sites.tasks import site_tasks
from env_adapters.webarena.tasks.miniwob import SOLVED, MiniWobTasks, page_oracle
from env_adapters.webarena.tasks.miniwob_pages import PAGES
from env_adapters.webarena.tasks.oracle import MAX_SCROLLS, OracleError, ScriptOracle, find_node
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
def test_line_of_a_script_becomes_an_action(line, action):
    urls = {"shopping": "http://shop.test", "shopping_admin": "http://admin.test/dashboard"}
    oracle = ScriptOracle([line], urls)
    assert oracle.act(PAGE) == action
    assert oracle.done


def test_element_out_of_view_is_scrolled_to():
    oracle = ScriptOracle(['click [link "Logout"]'], {})
    assert oracle.act(PAGE) == "scroll [down]"
    assert oracle.act("[40] link 'Logout'") == "click [40]"


def test_missing_element_raises_oracle_error_naming_the_line():
    oracle = ScriptOracle(['click [link "Logout"]'], {})
    for _ in range(MAX_SCROLLS):
        oracle.act(PAGE)
    with pytest.raises(OracleError, match=r"line 1 .*Logout"):
        oracle.act(PAGE)


def test_finished_script_raises_oracle_error():
    oracle = ScriptOracle(["stop []"], {})
    oracle.act(PAGE)
    with pytest.raises(OracleError, match="has ended before the task"):
        oracle.act(PAGE)


def test_truncated_line_is_no_node_and_hides_no_other():
    page = "[7] StaticText 'It costs $1.00, $2.00 ...\n[8] textbox 'Comment'\n[9] link 'Save'"
    assert find_node(page, "textbox", "Comment") == "8"
    assert find_node(page, "link", "Save") == "9"


def test_find_node_compares_the_role():
    assert find_node(PAGE, "link", "Add to cart") is None


LOGIN = """[1] RootWebArea 'Login'
\t[2] StaticText 'Enter the '
\t[3] StaticText 'username'
\t[4] StaticText ' "keli" and the '
\t[5] StaticText 'password'
\t[6] StaticText ' "3hI" into the text fields and press login.'
\t[7] textbox '' required: False
\t[8] textbox '' required: False
\t[9] button 'Login'"""


def test_page_oracle_follows_the_instruction_on_the_page():
    act = page_oracle()
    actions = ["type [7] [keli] [0]", "type [8] [3hI] [0]", "click [9]", "stop []"]
    assert [act(LOGIN) for _ in actions] == actions


def test_unknown_instruction_raises_oracle_error_quoting_it():
    with pytest.raises(OracleError, match="Drag all circles"):
        page_oracle()("[2] StaticText 'Drag all circles into the black box.'")


def test_embedded_tasks_and_easy_pages_have_an_oracle():
    assert set(PAGES) > SOLVED
    easy, hard = (TaskItem("webarena", f"miniwob:{page}:0") for page in ("click-test", "book-flight"))
    assert MiniWobTasks().oracle(easy) is not None
    assert MiniWobTasks().oracle(hard) is None
    assert all(EmbeddedTasks().oracle(item) for item in EmbeddedTasks().items("test_all"))
    assert all(task["oracle"] for task in site_tasks())

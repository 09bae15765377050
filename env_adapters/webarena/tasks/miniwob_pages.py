"""Pages of MiniWoB++ by category, the pages that cannot be played by actions on elements, and missing checks."""

from collections.abc import Mapping

CATEGORIES: Mapping[str, str] = {
    "click": (
        "click-button click-button-sequence click-checkboxes click-checkboxes-large "
        "click-checkboxes-soft click-checkboxes-transfer click-dialog click-dialog-2 click-link click-option "
        "click-test click-test-2 click-test-transfer click-widget sign-agreement unicode-test"
    ),
    "open": (
        "click-collapsible click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay click-menu "
        "click-menu-2 click-tab click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium navigate-tree"
    ),
    "type": (
        "enter-password enter-text enter-text-2 enter-text-dynamic focus-text focus-text-2 form-sequence-2 "
        "login-user login-user-popup search-engine text-transform"
    ),
    "choose": (
        "choose-date choose-date-easy choose-date-medium choose-date-nodelay choose-list click-scroll-list "
        "multi-layouts multi-orderings use-autocomplete use-autocomplete-nodelay"
    ),
    "read": "find-word odd-or-even phone-book read-table read-table-2 simple-algebra simple-arithmetic",
    "mail and media": (
        "email-inbox email-inbox-delete email-inbox-forward email-inbox-forward-nl email-inbox-forward-nl-turk "
        "email-inbox-important email-inbox-nl-turk email-inbox-noscroll email-inbox-reply "
        "email-inbox-star-reply social-media social-media-all social-media-some"
    ),
    "errands": "book-flight book-flight-nodelay buy-ticket guess-number order-food tic-tac-toe",
}
PAGES: Mapping[str, str] = {page: category for category, pages in CATEGORIES.items() for page in pages.split()}
"""Category of each page that has tasks."""

_TEST = (
    "book-flight-nodelay choose-date-medium click-checkboxes-transfer click-collapsible-2-nodelay "
    "click-dialog-2 click-menu-2 click-option click-tab-2-medium email-inbox-important "
    "email-inbox-star-reply enter-text-2 find-word focus-text-2 login-user-popup multi-layouts odd-or-even "
    "read-table-2 search-engine social-media-some use-autocomplete-nodelay"
)
TEST_PAGES = frozenset(_TEST.split())

_CLICK_ALL = (
    "click-button-sequence click-collapsible click-collapsible-2 click-collapsible-nodelay click-dialog click-test "
    "click-test-2 click-test-transfer"
)
CLICK_ALL_PAGES = frozenset(_CLICK_ALL.split())
"""Pages that pay a policy that clicks on every element in turn, so that they teach no reading. They are in no split of
training tasks, but in the split `click_all`."""

EXCLUDED: Mapping[str, str] = {
    "they need dragging or drawing with the mouse": (
        "drag-box drag-circle drag-cube drag-items drag-items-grid drag-shapes drag-shapes-2 drag-single-shape "
        "drag-sort-numbers draw-circle draw-line highlight-text highlight-text-2 resize-textarea use-slider "
        "use-slider-2"
    ),
    "they depend on positions, shapes or colours": (
        "ascending-numbers bisect-angle circle-center click-color click-pie click-pie-nodelay click-shades "
        "click-shape count-shape count-sides find-midpoint grid-coordinate hot-cold hover-shape identify-shape "
        "number-checkboxes right-angle use-colorwheel use-colorwheel-2 visual-addition"
    ),
    "they run in real time": "button-delay chase-circle generate-number moving-items simon-says stock-market",
    "they need the clipboard, which is off": "copy-paste copy-paste-2",
    "they have fields or parts without an element": (
        "daily-calendar enter-date enter-time find-greatest form-sequence form-sequence-3 scroll-text "
        "scroll-text-2 terminal text-editor use-spinner"
    ),
}
"""Pages without tasks, by the reason."""

CHECKS: Mapping[str, str] = {
    "form-sequence-2": (
        "document.getElementById('query').textContent.indexOf('Check the ' + ['', '1st', '2nd', '3rd']"
        "[document.querySelector('input[type=radio]:checked').value] + ' radio button') === 0"
    ),
    "use-autocomplete": "ITEMS.indexOf(document.getElementById('tags').value) >= 0",
    "use-autocomplete-nodelay": "ITEMS.indexOf(document.getElementById('tags').value) >= 0",
}
"""Condition in JavaScript for a positive reward of a page that does not check all that it asks for: any radio button
would do, or a text that is in no list."""

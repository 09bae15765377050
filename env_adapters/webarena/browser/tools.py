"""WebArena's actions as functions, for agents that use function calling."""

from verl_agent.envs.action_format import Parameter, Tool

ID = Parameter("id", "integer", "The number of the element.")
TOOLS = (
    Tool("click", "Click an element; clicking an option of a list chooses it.", "click [{id}]", (ID,)),
    Tool(
        "type",
        "Click a field and type a text at its end; in a list, choose the option of that name.",
        "type [{id}] [{text}] [{enter}]",
        (ID, Parameter("text"), Parameter("enter", "integer", "1 to press Enter afterwards, else 0.")),
    ),
    Tool("hover", "Move the mouse over an element.", "hover [{id}]", (ID,)),
    Tool("press", "Press a key or a combination.", "press [{keys}]", (Parameter("keys", "string", "As Control+a."),)),
    Tool("scroll", "Scroll by the height of the window.", "scroll [{direction}]", (Parameter("direction"),)),
    Tool("new_tab", "Open a tab.", "new_tab"),
    Tool("tab_focus", "Go to a tab.", "tab_focus [{number}]", (Parameter("number", "integer", "From 0."),)),
    Tool("close_tab", "Close the current tab.", "close_tab"),
    Tool("goto", "Go to a URL of the task's sites.", "goto [{url}]", (Parameter("url"),)),
    Tool("go_back", "Go back to the previous page.", "go_back"),
    Tool("go_forward", "Undo go_back.", "go_forward"),
    Tool("stop", "End the task with an answer, or without one.", "stop [{answer}]", (Parameter("answer"),)),
)

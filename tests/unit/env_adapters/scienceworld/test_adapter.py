"""Test the scores, endings, texts and isolated sessions of ScienceWorld, and its gold paths."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from env_adapters.scienceworld.adapter import ScienceWorld, choice, solution, with_looks
from env_adapters.scienceworld.simulator import SimulatorSession
from verl_agent.errors import ConfigError, EnvError
from verl_agent.types import Episode, Message, Reply, StepResult, TaskItem, Turn

ITEMS = {item.id: item for part in ("train", "dev", "test") for item in ScienceWorld().tasks(part)}

SAMPLE = (
    "freeze:0",
    "use-thermometer:405",
    "power-component:15",
    "test-conductivity:675",
    "find-plant:0",
    "chemistry-mix-paint-secondary-color:27",
    "lifespan-longest-lived:93",
    "identify-life-stages-2:6",
)
"""One item of each category, with a short solution."""

LIFESPAN = ITEMS["lifespan-longest-lived:93"]
CIRCUIT = ITEMS["test-conductivity:675"]


def start(item: TaskItem, prompt: str = "full", jvms: int = 1) -> tuple[ScienceWorld, list[Message]]:
    env = ScienceWorld(prompt, jvms)
    return env, asyncio.run(env.reset(item))


def play_commands(env: ScienceWorld, *commands: str) -> list[StepResult]:
    return [asyncio.run(env.step(command)) for command in commands]


def play(item: TaskItem, commands: Sequence[str], jvms: int = 1) -> list[StepResult]:
    env, _ = start(item, jvms=jvms)
    try:
        return play_commands(env, *commands)
    finally:
        asyncio.run(env.close())


def commands_of(item: TaskItem) -> list[str]:
    return list(solution(item.data["task"], item.data["variation"]))


@pytest.mark.parametrize("name", SAMPLE)
def test_the_gold_path_reaches_a_score_of_one(name):
    steps = play(ITEMS[name], commands_of(ITEMS[name]))
    ended = next(turn for turn, step in enumerate(steps) if step.terminated)
    assert sum(step.reward for step in steps) == pytest.approx(1.0)
    assert sum(step.reward for step in steps) >= ScienceWorld.success_reward
    assert all(step.reward == 0 for step in steps[ended + 1 :])


@pytest.mark.parametrize("name", SAMPLE[:4])
def test_the_rewards_so_far_add_up_to_the_score_of_the_simulator(name):
    """AgentGym's server added up whole scores (its pull request 15)."""
    env, _ = start(ITEMS[name])
    earned, scores = 0.0, set()
    try:
        for command in commands_of(ITEMS[name]):
            earned += play_commands(env, command, "look around")[0].reward
            if env.world is not None:
                score = env.world.simulator.run(env.world._interface.getScore)
                assert earned == pytest.approx(score, abs=0.006)
                scores.add(score)
    finally:
        asyncio.run(env.close())
    assert len(scores) > 1


def test_sessions_in_threads_equal_sessions_alone():
    names = [name for name in SAMPLE if len(commands_of(ITEMS[name])) < 10]
    scripts = {name: commands_of(ITEMS[name]) for name in names}
    assert len(names) == 3
    alone = {name: play(ITEMS[name], script) for name, script in scripts.items()}
    together: dict[str, list[StepResult]] = {}
    threads = [
        threading.Thread(target=lambda name=name: together.update({name: play(ITEMS[name], scripts[name], jvms=2)}))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_interleaved_sessions_get_the_same_animals_and_choices():
    script = ["open door to outside", "go to outside", *["wait1", "look around"] * 3, "look at door", "1"]
    alone = play(LIFESPAN, script)
    env, neighbour = start(LIFESPAN)[0], start(LIFESPAN)[0]
    mixed = []
    for command in script:
        mixed += play_commands(env, command)
        play_commands(neighbour, "wait1")
        if command == "go to outside":
            SimulatorSession("boil", 3).close()  # loading a task seeds the generator that all sessions share
    assert mixed == alone


def test_a_wrong_focus_terminates_and_cancels_the_score():
    steps = play(LIFESPAN, ["open door to outside", "go to outside", "focus on ground", "look around"])
    assert [step.reward for step in steps] == [0.0, 0.5, -0.5, 0.0]
    assert [step.terminated for step in steps] == [False, False, True, True]
    assert steps[2].info == {"wrong_focus": 1.0}
    assert steps[2].observation == (
        "You focus on the ground.\nThat was the wrong thing to focus on. The task has failed."
    )


def test_a_wrong_answer_box_terminates_and_cancels_the_score():
    *script, last = [command for command in commands_of(CIRCUIT) if not command.startswith("wait")]
    right, wrong = ("red", "green") if "red box" in last else ("green", "red")
    steps = play(CIRCUIT, [*script, last.replace(f"{right} box", f"{wrong} box")])
    assert steps[-1].terminated
    assert steps[-1].info == {"wrong_answer": 1.0}
    assert sum(step.reward for step in steps) == pytest.approx(0.0)


def test_lost_progress_is_subtracted_from_the_reward():
    steps = play(LIFESPAN, ["open door to outside", "go to outside", "reset task"])
    assert [step.reward for step in steps] == [0.0, 0.5, 0.0]  # the place counts again at once


def test_the_prompt_shows_the_task_and_the_room():
    messages = start(LIFESPAN)[1]
    assert [message["role"] for message in messages] == ["system", "user"]
    assert messages[1]["content"].startswith("Your task is to find the animal with the longest life span.")
    assert "\n\nThis room is called" in messages[1]["content"]


def test_a_number_resolves_an_ambiguous_request():
    kitchen = ITEMS["boil:0"]
    steps = play(
        kitchen, ["open door to kitchen", "go to kitchen", "look at door", "1: look at that one", "look at door"]
    )
    assert steps[2].observation.startswith("Ambiguous request: Please enter the number")
    assert steps[2].info == {"ambiguous_action": 1.0}
    assert steps[3].observation.startswith("A door to")
    assert steps[3].info == {}


@pytest.mark.parametrize("action", ["99", "go to hallway", "", "I do not know.", "9" * 5_000])
def test_any_other_action_cancels_an_ambiguous_request(action):
    env, _ = start(LIFESPAN)
    play_commands(env, "open door to outside", "go to outside")
    assert play_commands(env, "look at door")[0].info == {"ambiguous_action": 1.0}
    answer = asyncio.run(env.step(action))
    assert answer.observation.startswith("The action was cancelled")
    assert answer.info == {"invalid_action": 1.0}
    assert play_commands(env, "look around")[0].info == {}
    asyncio.run(env.close())


@pytest.mark.parametrize(
    ("command", "number"), [("2", "2"), ("2: focus", "2"), (" 0.", "0"), ("12345", ""), ("two", ""), ("", "")]
)
def test_the_number_of_a_choice_is_parsed_from_any_notation(command, number):
    assert choice(command) == number


@pytest.mark.parametrize("command", ["LOOK  AROUND.", " look\naround "])
def test_spaces_and_case_of_a_command_are_ignored(command):
    assert play(LIFESPAN, [command])[0].observation.startswith("This room is called")


@pytest.mark.parametrize("command", ["dance", "9", "look at nothing at all", "", " \n "])
def test_invalid_actions_are_reported_and_counted(command):
    assert play(LIFESPAN, [command]) == [
        StepResult("No known action matches that input.", info={"invalid_action": 1.0})
    ]


def test_a_simulator_failure_raises_env_error_instead_of_wrong_focus():
    env, _ = start(LIFESPAN)
    assert env.world is not None
    world = env.world
    world.simulator.run(lambda: world._interface.agentInterface().get().setErrorState("out of steam"))
    with pytest.raises(EnvError, match="the simulator failed: out of steam"):
        play_commands(env, "look around")


def test_an_unknown_item_raises_env_error():
    for data in ({"task": "fly", "variation": 0}, {"task": "boil", "variation": 999}):
        with pytest.raises(EnvError, match=data["task"]):
            start(TaskItem("scienceworld", "x", data))


def test_demonstrations_look_around_before_acting_in_a_place():
    path = [
        "go to hallway",
        "open door to kitchen",
        "go to kitchen",
        "pick up apple",
        "go to outside",
        "look around",
        "wait",
    ]
    assert list(with_looks(path)) == [*path[:3], "look around", *path[3:]]


def test_demonstrations_explain_their_actions():
    first = ScienceWorld().demonstration(LIFESPAN)[0]
    assert (first.action, first.thought != "") == ("open door to outside", True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "cot"}, "env.options.prompt='cot' is not allowed. Allowed: full, short."),
        ({"jvms": 0}, "env.options.jvms=0 is not allowed. Allowed: a whole number >= 1."),
        ({"jvms": True}, "env.options.jvms=True is not allowed. Allowed: a whole number >= 1."),
    ],
)
def test_invalid_options_raise_config_error_naming_the_key(options, message):
    with pytest.raises(ConfigError) as error:
        ScienceWorld(**options)
    assert str(error.value) == message


def test_the_sub_goals_of_a_recorded_episode_are_those_that_the_simulator_scores():
    item = ITEMS["chemistry-mix-paint-secondary-color:27"]
    *most, focus, _ = commands_of(item)
    assert focus.startswith("focus on")
    episode = Episode(item, max_turns=30)
    for command in (*most, "x" * 300):  # too long for the simulator, so it was not executed
        episode.turns.append(Turn(Reply(command), command, StepResult(""), 0.0, 0.0))
    goals = ScienceWorld().sub_goals(episode)
    assert goals[0].text.startswith("focus on the mixing result") and not goals[0].reached
    assert len(goals) > 4 and all(goal.reached for goal in goals if goal.kind == "GoalInRoomWithObject")

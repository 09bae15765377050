"""Test the texts, actions, rewards and refusals of the adapter of Gymnasium."""

import asyncio
from decimal import Decimal
from enum import IntEnum

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'verl-agent[gymnasium]'")
numpy = pytest.importorskip("numpy", reason="numpy is not installed: pip install 'verl-agent[gymnasium]'")

from env_adapters.gymnasium.adapter import Gymnasium  # noqa: E402
from env_adapters.gymnasium.lakes import draw_map  # noqa: E402
from env_adapters.gymnasium.texts import described, observation_text, read, refusal_of_action, refusal_of_observation  # noqa: E402
from env_adapters.seeded import FIRST_TEST_SEED  # noqa: E402
from verl_agent.envs.testing.check import check_adapter  # noqa: E402
from verl_agent.errors import ConfigError  # noqa: E402

spaces = gymnasium.spaces


class Pier(gymnasium.Env):
    """Somebody's own environment: it shows what it was given, and raises an exception at the last action."""

    reward, opening = 1.0, ("pier 3", {})

    def __init__(self):
        self.action_space, self.observation_space = spaces.Discrete(len(Moves), start=1), spaces.Text(100)
        self.actions = Moves

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.opening

    def step(self, action):
        if action == Moves.JUMP:
            raise ValueError("illegal move")
        return f"{Moves(action).name}", self.reward, action == Moves.LEFT, False, {}


class Moves(IntEnum):
    """Actions in another order than that of their values."""

    LEFT = 3
    RIGHT = 1
    UP = 2
    JUMP = 4


class Ranks(IntEnum):
    """Values that are no actions of the space."""

    LOW, MIDDLE, HIGH, HIGHEST = 10, 20, 30, 40


DOORS = "MiniGrid-DoorKey-5x5-v0"


def registered(name, **attributes):
    """Register a class of `Pier` with other attributes, and return its id."""
    gymnasium.register(name, entry_point=type("Pier", (Pier,), attributes))
    return name


def play(names, *actions, seed=0, **options):
    """Return the first messages and the results of actions."""
    env = Gymnasium(names, train=seed + 1, **options)

    async def episode():
        messages = await env.reset(env.tasks("train")[seed])
        results = [await env.step(action) for action in actions]
        await env.close()
        return [message["content"] for message in messages], results

    return asyncio.run(episode())


def test_frozen_lake_is_solved_by_names_and_numbers():
    prompt, steps = play(
        "FrozenLake-v1", "Down", "1", "right.", "2", "`down`", "right", "right", kwargs={"is_slippery": False}
    )
    assert prompt[1].splitlines()[0] == "[S]FFF"
    assert "left (0), down (1), right (2), up (3)" in prompt[0]
    assert steps[0].observation.splitlines()[1:3] == ["SFFF", "[F]HFH"]
    assert [(step.reward, step.terminated) for step in steps[-2:]] == [(1.0, True), (0.0, True)]


def test_taxi_says_where_taxi_passenger_and_destination_are():
    prompt, (step,) = play("Taxi-v4", "north")
    assert "Passenger: " in prompt[1] and "Taxi: row " in step.observation
    assert step.reward == -1.0


def test_a_text_that_names_no_action_earns_no_more_than_a_step():
    _, (step,) = play("Taxi-v4", "fly")
    assert (step.reward, step.info) == (-1.0, {"invalid_action": 1.0})
    assert "pickup (4)" in step.observation
    assert play("Taxi-v4", "fly", invalid_reward=-3)[1][0].reward == -3.0


@pytest.mark.parametrize("names", ["CliffWalking-v1", "MountainCar-v0", "Acrobot-v1"])
def test_doing_nothing_solves_no_task(names):
    assert Gymnasium(names).success_reward > 0


def test_blackjack_names_the_numbers_of_its_tuple():
    prompt, _ = play("Blackjack-v1")
    assert [line.partition(":")[0] for line in prompt[1].splitlines()] == [
        "your sum",
        "the dealer shows",
        "your usable aces",
    ]


def test_a_game_of_blackjack_that_is_not_finished_is_worth_no_more_than_a_loss():
    """Gymnasium pays -1, 0 and 1, so never acting was better than every way to play."""
    returns = {}
    for seed in range(40):
        _, steps = play("Blackjack-v1", "stick", "stick", seed=seed)
        assert steps[0].terminated and steps[1].reward == 0.0
        returns[steps[0].reward] = returns.get(steps[0].reward, 0) + 1
    assert returns.keys() == {0.0, 1.0, 2.0} and Gymnasium("Blackjack-v1").success_reward == 2.0
    assert play("Blackjack-v1", *["nothing"] * 9)[1][-1].reward == 0.0


def test_each_seed_draws_a_map_of_frozen_lake():
    env = Gymnasium("seeded/FrozenLake-v1", train=40, test=40)

    async def prompt(item):
        session = env.new_session()
        texts = [(await session.reset(item))[-1]["content"] for _ in range(2)]
        await session.close()
        assert texts[0] == texts[1]
        return texts[0]

    maps = {split: [asyncio.run(prompt(item)) for item in env.tasks(split)] for split in env.splits}
    assert len(set(maps["train"])) > 25 and len(set(maps["test"])) > 25
    drawn = {
        seed: "".join(draw_map(4, seed)) for seed in (*range(1000), *range(FIRST_TEST_SEED, FIRST_TEST_SEED + 100))
    }
    held_out = {drawn[seed] for seed in drawn if seed >= FIRST_TEST_SEED}
    assert len(held_out) > 50 and not held_out & {drawn[seed] for seed in range(1000)}
    assert env.deterministic and {len(one.splitlines()) for one in maps["train"]} == {4}


def test_minigrid_describes_its_view_in_words():
    pytest.importorskip("minigrid")
    prompt, steps = play(DOORS, "left", "toggle")
    assert prompt[1].startswith("Mission: use the key to open the door")
    assert "You see: yellow key 1 right." in prompt[1]
    assert steps[0].observation != prompt[1]


def test_minigrid_in_a_wrapper_is_described_only_where_its_image_is_the_agents_view():
    wrappers = pytest.importorskip("minigrid.wrappers")

    def wrapped(name, wrapper):
        gymnasium.register(name, entry_point=lambda **options: wrapper(gymnasium.make(DOORS, **options)))
        return name

    smaller = wrapped("port/Smaller-v0", lambda env: wrappers.ViewSizeWrapper(env, 5))
    assert "You see: yellow key 1 right." in play(smaller)[0][1]
    for kind in ("FullyObsWrapper", "RGBImgPartialObsWrapper", "OneHotPartialObsWrapper"):
        other = wrapped(f"port/{kind}-v0", getattr(wrappers, kind))
        with pytest.raises(ConfigError, match=rf"names='{other}' is not for text: observation\['image'\] is an array"):
            Gymnasium(other)


def test_an_id_with_a_namespace_has_no_rules_names_and_rewards_of_the_classic():
    name = registered("port/Blackjack-v1")
    prompt, (step,) = play(name, "left")
    assert prompt[0].startswith(f"You play {name}.") and "stick" not in prompt[0]
    assert (step.reward, Gymnasium(name).success_reward) == (1.0, 1.0)


def test_actions_are_named_by_their_values_in_an_enum():
    prompt, steps = play(registered("port/Values-v0"), "right", "up", "3")
    assert "right (1), up (2), left (3), jump (4)" in prompt[0]
    assert [step.observation for step in steps] == ["RIGHT", "UP", "LEFT"]


def test_an_enum_whose_values_are_no_actions_names_none():
    name = registered("port/Ranks-v0", actions=property(lambda self: Ranks, lambda self, value: None))
    assert "a number from 1 to 4" in play(name)[0][0]


@pytest.mark.parametrize("opening", ["pier 3", numpy.array([0.25, -0.5]), ("pier 3",)])
def test_a_reset_without_info_raises_config_error(opening):
    name = registered("port/Reset-v0", opening=opening)
    with pytest.raises(ConfigError, match=r"reset\(\) returned .* a tuple of observation and info"):
        play(name)


@pytest.mark.parametrize("reward", [numpy.array(1), Decimal(1), numpy.int8(1)])
def test_rewards_of_any_kind_of_number_reach_the_check(reward):
    assert play(registered("port/Reward-v0", reward=reward), "left")[1][0].reward == 1


def test_an_environment_that_raises_at_an_illegal_move_can_be_compared():
    assert Gymnasium(registered("port/Illegal-v0")).deterministic


def test_a_time_limit_of_gymnasium_ends_the_episode():
    _, steps = play("FrozenLake-v1", "up", "up", kwargs={"max_episode_steps": 2, "is_slippery": False})
    assert [(step.terminated, dict(step.info)) for step in steps] == [(False, {}), (True, {"time_limit": 1.0})]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("FrozenLake-v11", r"names='FrozenLake-v11'.*(FrozenLake-v1|not an environment)"),
        ("NoSuchEnvironment-v0", r"names='NoSuchEnvironment-v0' is not an environment of Gymnasium"),
        ("Pendulum-v1", r"names='Pendulum-v1' is not for text: actions are continuous"),
        ("MountainCarContinuous-v0", "actions are continuous"),
        (["Taxi-v4", "FrozenLake-v1"], r"count as solved at different returns.*success_reward"),
    ],
)
def test_environments_that_are_not_for_text_are_refused_with_the_reason(names, message):
    with pytest.raises(ConfigError, match=message):
        Gymnasium(names)


def test_a_map_that_hides_from_the_seed_is_found():
    """FrozenLake draws a random map when it is made, before it gets a seed."""
    hidden = {"map_name": None, "desc": None}
    assert not Gymnasium("FrozenLake-v1", hidden).seeded
    assert not Gymnasium("FrozenLake-v1", hidden).deterministic
    assert Gymnasium("FrozenLake-v1", hidden, allow_unseeded=True).seeded
    assert Gymnasium("FrozenLake-v1").seeded


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (spaces.Box(0, 255, (84, 84, 3)), "such as an image"),
        (spaces.Dict({"view": spaces.Box(0, 1, (9, 9))}), r"observation['view'] is an array"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Graph(spaces.Discrete(2), None)]), "is of the space Graph"),
        (spaces.Text(9), ""),
        (spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(3)])}), ""),
    ],
)
def test_observations_that_no_text_holds_have_a_reason(space, reason):
    assert (reason in refusal_of_observation(space)) and bool(reason) == bool(refusal_of_observation(space))


@pytest.mark.parametrize(
    ("space", "text", "action"),
    [
        (spaces.Discrete(3, start=5), "7", 7),
        (spaces.Discrete(3, start=5), "2", None),
        (spaces.Discrete(2), "1 0", None),
        (spaces.Discrete(2), "-1", None),
        *((spaces.Discrete(4), text, None) for text in ("- 3", "0 1-2", "2, -", "3 99999999999", "3 \u0664", "1-", "")),
        (spaces.Discrete(4), "[3]", 3),
        (spaces.MultiDiscrete([2, 3]), "1 - 2", None),
        (spaces.MultiDiscrete([2, 3]), "1,2,", [1, 2]),
        (spaces.MultiDiscrete([2, 3]), "(1, 2)", [1, 2]),
        (spaces.MultiDiscrete([2, 3]), "1, 3", None),
        (spaces.MultiBinary(2), "1 1", [1, 1]),
        (spaces.MultiBinary(2), "257 1", None),
        (spaces.MultiDiscrete([2, 3], dtype="uint8"), "-1 0", None),
        (spaces.Tuple([spaces.Discrete(2), spaces.Discrete(4)]), "0 3", [0, 3]),
        (spaces.Text(5), "hello", "hello"),
        (spaces.Text(5), "too long", None),
    ],
)
def test_texts_are_read_by_the_action_space(space, text, action):
    assert refusal_of_action(space) == "" and described(space, ())
    chosen = read(space, (), text)
    assert (list(chosen) if isinstance(action, list) else chosen) == action


def test_numbers_are_written_with_three_decimals_and_parts_by_name():
    sample = {"place": (1, 2), "speed": spaces.Box(0, 1, (2,)).low + 0.25}
    assert observation_text(sample) == "place: 1, 2\nspeed: 0.250, 0.250"
    assert observation_text((1, 0.5), ("x", "y")) == "x: 1\ny: 0.500"


@pytest.mark.parametrize("name", ["Taxi-v4", "Blackjack-v1", DOORS])
def test_environments_keep_the_contract(name):
    if name.startswith("MiniGrid"):
        pytest.importorskip("minigrid")
    report = check_adapter(Gymnasium, {"names": name, "train": 20, "test": 5}, 2, name="gymnasium", budget_s=2)
    assert not report.violations, str(report)


def test_numbers_that_do_not_start_at_0_are_described():
    assert described(spaces.MultiDiscrete([2, 3], start=[1, 5]), ()).endswith("from 1, 5 to 2, 7")
    assert described(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(4)]), ()).endswith("from 0 to 1, 3")


def test_a_table_of_bits_is_no_action_for_text():
    assert "MultiBinary" in refusal_of_action(spaces.MultiBinary((3, 2)))

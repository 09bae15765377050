"""Answer to one question: start the policy and the environment, draw the samples, and return the turn's results."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from verl_agent.agents.base import Agent
from verl_agent.envs.base import EnvAdapter
from verl_agent.errors import ConfigError
from verl_agent.evaluation.api_policy import check_api
from verl_agent.evaluation.job import playable_policy
from verl_agent.evaluation.policies import is_model, start_policies, start_sessions
from verl_agent.evaluation.settings import EvaluationConfig
from verl_agent.evaluation.what_if.branch import Sampling, play_on, reply_with
from verl_agent.evaluation.what_if.recorded import TurnQuestion
from verl_agent.evaluation.what_if.results import Result, check_writable, read_results, results_file
from verl_agent.evaluation.what_if.samples import draw_continuations, draw_replies
from verl_agent.evaluation.what_if.settings import Settings
from verl_agent.evaluation.what_if.summary import comparable, of_turn
from verl_agent.oversight.approval import Approval
from verl_agent.oversight.rules import asks_person
from verl_agent.platform.worker_environment import worker_environment
from verl_agent.rollout.oracle import ORACLE, OraclePolicy, demonstration_actions
from verl_agent.rollout.player import Player
from verl_agent.rollout.policy import Policy
from verl_agent.rollout.seeds import EpisodeSeed
from verl_agent.runs.processes import run_ending_all_children
from verl_agent.types import DemoAction, TaskItem

REPLIES = "what_if_replies"
"""Folder beside the records with the replies of an API, so that those of the evaluation stay as they are."""


def answer_question(question: TurnQuestion, settings: Settings, report: Callable[[str], None]) -> list[Result]:
    """Answer a question, store the samples, and return all results of the turn.

    Raises:
        ConfigError: a setting is not allowed, a replay differs from the record, or the results cannot be written.
    """
    report(f"checking {settings.config.model} and the question ...")
    model = check(question, settings)
    os.environ |= worker_environment(question.recorded.file.parent)
    run_ending_all_children(draw_samples(question, settings, model, report))
    stored = read_results(results_file(question.recorded.file))
    return of_turn(stored, question.recorded.fingerprint, question.turn)


def check(question: TurnQuestion, settings: Settings) -> str:
    """Check what would fail later, and return the model or policy that is asked, as the engine loads it.

    Raises:
        ConfigError: the policy is the oracle or does not load, all samples would be equal, or the results cannot be
            written.
    """
    check_writable(results_file(question.recorded.file))
    config, path = settings.config, settings.config.model
    if config.evaluation.temperature == 0 and question.samples > 1:
        raise ConfigError(
            f"evaluation.temperature=0 takes the most likely token, so all of --samples {question.samples} would be "
            "equal. Set evaluation.temperature=1.0, or --samples 1."
        )
    if asks_person(settings.rules) and (question.oracle or question.action is not None):
        raise ConfigError(
            "the episode was played under an approval policy that asks a person, whom this command does not ask. Draw "
            "replies only: leave out --action and --oracle."
        )
    if config.api is not None:
        if question.plays_on or question.without_thought:
            raise ConfigError(
                f"model.api.kind={config.api.kind!r}: a server does not continue given replies. Draw replies only "
                "(leave out --action, --oracle and --without-thought), or name a model with model.path=MODEL."
            )
        check_api(config.api, config.evaluation.temperature, config.evaluation.max_usd)
        return config.model
    if path == ORACLE:
        raise ConfigError(
            "model.path='oracle': an oracle has one reply at each turn. Name the policy to ask: model.path=MODEL."
        )
    return playable_policy(path, config, [question.recorded.episode.item])


async def draw_samples(question: TurnQuestion, settings: Settings, model: str, report: Callable[[str], None]) -> None:
    """Draw the samples of a question and store them; see `answer_question`."""
    config, run, item = settings.config, settings.config.run, question.recorded.episode.item
    action, replies = question.action, results_file(question.recorded.file).parent / REPLIES
    approval = Approval(settings.rules, run.live.describe_action) if settings.rules else None
    async with start_sessions(model, config) as new_session:
        no_policy = partial(_plan_policy, run.new_agent(), ())  # until the model has started
        player: Player[Any] = Player(run.new_agent, new_session, no_policy, run.limits(), approval)
        sampling = Sampling(player, model, config.evaluation, settings.checksum())
        if question.oracle:
            action = await oracle_action(question, run.live, sampling)
            report(f"the oracle takes: {action}")
        report(estimate_effort(question, sampling.max_turns, config.evaluation.concurrency))
        report(f"starting {model}")
        async with start_policies(model, config, [item], replies, _policy_class(config, model)) as new_policy:
            sampling = replace(sampling, player=replace(player, new_policy=new_policy))
            if action is None:
                await draw_replies(question, sampling, report)
            else:
                await draw_continuations(question, sampling, action, report)


def _plan_policy(agent: Agent, actions: Sequence[DemoAction], item: TaskItem, seed: EpisodeSeed) -> Policy:
    return OraclePolicy(agent, actions)


def _policy_class(config: EvaluationConfig, model: str) -> Any:
    if config.api is not None or not is_model(model):
        return None
    from verl_agent.evaluation.what_if.given_replies import ContinuingPolicy

    return ContinuingPolicy


def estimate_effort(question: TurnQuestion, max_turns: int, concurrency: int) -> str:
    """Return the most replies that a question needs, and about how many seconds and dollars they take as recorded."""
    turns = question.recorded.record["turns"]
    seconds = sum(turn["generate_s"] + turn["env_s"] for turn in turns) / len(turns)
    sides = 2 if question.plays_on or question.without_thought else 1
    rounds = max_turns - question.turn if question.plays_on else 1
    replies = sides * question.samples * max(rounds, 0)
    waves = -(-question.samples // concurrency)
    about = f"at {seconds:.1f} s a turn as recorded, about {sides * waves * max(rounds, 0) * seconds:.0f} s"
    costs = [usage["cost_usd"] for turn in turns if (usage := turn.get("usage")) and usage["cost_usd"] is not None]
    usd = f" and {replies * sum(costs) / len(costs):.2g} USD" if costs else ""
    return f"up to {replies} replies; {about}{usd} after the start of the model"


async def oracle_action(question: TurnQuestion, env: EnvAdapter, sampling: Sampling) -> str:
    """Return the action that the oracle takes at a turn.

    An oracle that follows observations reads those of the episode. A demonstration is a fixed list of actions from
    the start of the task; the shortest end of it that solves the task from this turn is searched by playing, and its
    first action is returned.

    Args:
        sampling: player of the recorded run; its policy plays nothing.

    Raises:
        ConfigError: the environment has no oracle or fails, no end of its demonstration solves the task in the turns
            left, or the action is the recorded one.
    """
    episode, agent, turn = question.recorded.episode, sampling.player.new_agent(), question.turn
    if follow := env.oracle(episode.item):
        before = range(episode.prompt_length - 1, episode.prompt_length + 2 * turn - 2, 2)
        texts = [agent.without_turns_left(episode.messages[index]["content"]) for index in before]
        action = str([follow(text) for text in texts][-1].action)
    else:
        action = await _start_of_solution(question, demonstration_actions(env, episode.item), sampling)
    if comparable(action) == comparable(question.recorded_action):
        raise ConfigError(f"the oracle takes the recorded action {action!r}, so there is nothing to compare.")
    return action


async def _start_of_solution(question: TurnQuestion, actions: Sequence[DemoAction], sampling: Sampling) -> str:
    """Return the first action of the shortest end of a demonstration that solves the task from the turn of a question.

    Raises:
        ConfigError: see `oracle_action`.
    """
    recorded, turn, agent = question.recorded, question.turn, sampling.player.new_agent()
    left = sampling.max_turns - turn + 1
    for start in range(len(actions) - 1, max(len(actions) - left, 0) - 1, -1):
        action, new_policy = actions[start], partial(_plan_policy, agent, actions[start + 1 :])
        player = replace(sampling.player, new_policy=new_policy)
        reply = reply_with(recorded, turn, agent, str(action.action))
        (played,) = await play_on(recorded, turn, reply, replace(sampling, player=player), [0])
        if not played.valid:
            raise ConfigError(f"the environment failed while the oracle's action was searched: {played.error}")
        if played.success:
            return str(action.action)
    raise ConfigError(
        f"no end of the oracle's {len(actions)} actions solves {recorded.episode.item.id!r} from turn {turn} in the "
        f"{left} turns left: the earlier turns left the oracle's path. Name an action with --action, or choose an "
        "earlier turn."
    )

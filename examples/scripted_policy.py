"""Evaluate a scripted policy over a split: python examples/scripted_policy.py."""

import re

import verl_agent as va


def bisect(messages: list[va.Message]) -> str:
    """Guess the middle of the numbers that the answers so far allow."""
    low, high = 1, int(re.findall(r"\d+", messages[0]["content"])[1])
    for guess, answer in zip(messages[2::2], messages[3::2], strict=False):
        number = int(guess["content"].removeprefix("Action: "))
        low, high = (number + 1, high) if answer["content"] == "Higher." else (low, number - 1)
    return f"Action: {(low + high) // 2}"


def main() -> None:
    """Play every task of the split and print the success rate."""
    env = va.make_env("guess_number")
    episodes = [va.play_sync(task, env, policy=bisect, agent="act", max_turns=10) for task in env.tasks("small_test")]
    print(f"success: {sum(episode.success for episode in episodes)} of {len(episodes)}")
    print(f"turns: {sum(len(episode.turns) for episode in episodes) / len(episodes):.1f} on average")


if __name__ == "__main__":
    main()

"""Play one task by hand: python examples/play_by_hand.py [environment]."""

import sys

import verl_agent as va


def main(name: str = "guess_number") -> None:
    """Show each prompt and read the replies from the keyboard."""
    env, shown = va.make_env(name), 0

    def ask(messages: list[va.Message]) -> str:
        nonlocal shown
        for message in messages[shown:]:
            print(f"\n{message['content']}")
        shown = len(messages) + 1  # the next message is the reply
        return f"Action: {input('your action> ')}"

    episode = va.play_sync(env.tasks("test")[0], env, policy=ask, max_turns=10)
    print(f"\nThe episode ended: {episode.stop}. Reward {episode.reward:g}, success: {episode.success}.")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: python examples/play_by_hand.py [ENVIRONMENT]")
    try:
        main(*sys.argv[1:])
    except va.AgentError as error:
        sys.exit(f"error: {error}")

"""An agent loop on the plain OpenAI client: it plays GuessNumber by itself and prints its reward.

It knows nothing of verl-agent. `examples/program/grpo_cpu.yaml` trains the model that it talks to.
"""

import json
import os
import re

from openai import OpenAI

task = json.loads(os.environ["VERL_AGENT_TASK"])
client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
messages = [
    {"role": "system", "content": f"Guess a whole number from 1 to {task['high']}."},
    {"role": "user", "content": "Your first guess?"},
]
reward = 0.0
for _ in range(task["guesses"]):
    reply = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content
    guess = re.search("[0-9]+", reply or "")
    if guess and int(guess[0]) == task["target"]:
        reward = 1.0
        break
    hint = "That is no whole number." if not guess else "Higher." if int(guess[0]) < task["target"] else "Lower."
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": hint}]
print(json.dumps({"reward": reward}))

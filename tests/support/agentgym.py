"""Fakes of AgentGym's clients and servers, which behave over HTTP as AgentGym's own do.

Written after the sources of github.com/WooooDyy/AgentGym: `agentenv/agentenv/envs/{textcraft,babyai,sciworld,searchqa,
webarena}.py` for the clients, `agentenv-*/**/{server,env_wrapper,environment}.py` for the servers. The fields are
AgentGym's; the code is not copied.
"""

import re
from typing import Any

import requests
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TIMEOUT_S = 250


class Client:
    """Base of the clients. Those of textcraft, babyai and sciworld use the field `id` and send only the action."""

    name = "id"

    def __init__(self, base: str) -> None:
        self.base = base
        answer = requests.post(f"{base}/create", timeout=TIMEOUT_S, **self.creation())
        assert answer.status_code == 200, answer.text
        self.session = self.created(answer.json())

    def creation(self) -> dict[str, Any]:
        return {}

    def created(self, answer: Any) -> Any:
        return answer["id"]

    def post(self, path: str, data: dict[str, Any]) -> Any:
        data[self.name] = self.session
        answer = requests.post(f"{self.base}/{path}", json=data, timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def observe(self) -> Any:
        answer = requests.get(f"{self.base}/observation?{self.name}={self.session}", timeout=TIMEOUT_S)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def close(self) -> Any:
        return self.post("close", {})


class TextCraftClient(Client):
    def creation(self) -> dict[str, Any]:
        return {"json": {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None}}

    def created(self, answer: Any) -> Any:
        self.observation = answer["observation"]
        return answer["id"]

    def reset(self, idx: int) -> str:
        return self.post("reset", {"data_idx": idx})["observation"]

    def step(self, reply: str) -> tuple[str, float, bool]:
        found = re.findall(r"Action:\s*(.*?)(?=\n|$)", reply, re.DOTALL)
        action = " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", found[-1] if found else "").split())
        answer = self.post("step", {"action": action})
        return answer["observation"], answer["reward"], answer["done"]


class BabyAIClient(Client):
    def reset(self, idx: int) -> str:
        answer = self.post("reset", {"data_idx": idx})
        assert (answer["reward"], answer["score"], answer["done"]) == (0, 0, False)
        return answer["observation"]

    def step(self, reply: str) -> tuple[str, float, bool]:
        answer = self.post("step", {"action": reply.split("Action:")[-1].strip()})
        assert "reward" in answer
        return answer["observation"], answer["score"], answer["done"]


class SciworldClient(BabyAIClient):
    def reset(self, idx: int) -> str:
        answer = self.post("reset", {"data_idx": idx})
        return answer["task_description"] + "\n" + answer["observation"]


class SearchQAClient(Client):
    name = "env_idx"

    def creation(self) -> dict[str, Any]:
        return {"json": {"id": 0}}

    def created(self, answer: Any) -> Any:
        return answer

    def reset(self, idx: int) -> str:
        self.post("reset", {"id": idx})
        return self.observe()

    def step(self, reply: str) -> tuple[str, float, bool]:
        answer = self.post("step", {"action": reply})
        return answer["observation"], answer["reward"], answer["done"]


class WebarenaClient(Client):
    name = "env_idx"

    def created(self, answer: Any) -> Any:
        return answer["env_idx"]

    def reset(self, idx: int) -> str:
        assert self.post("reset", {"seed": 0, "idx": idx})["observation"] != "TimeoutError"
        return self.observe()

    def step(self, reply: str) -> tuple[str, float, bool]:
        answer = self.post("step", {"action": reply})
        return answer["observation"], answer["reward"] if answer["terminated"] else 0, answer["terminated"]


CLIENTS = {
    "textcraft": TextCraftClient,
    "babyai": BabyAIClient,
    "sciworld": SciworldClient,
    "searchqa": SearchQAClient,
    "webarena": WebarenaClient,
}


class Server:
    """Server of AgentGym for one environment, with scripted answers."""

    def __init__(self, env: str, script: list[tuple[str, float, bool]]) -> None:
        self.env, self.script = env, script
        self.requests: list[tuple[str, Any]] = []
        self.steps, self.score, self.item = 0, 0.0, -1
        routes = [Route(f"/{name}", getattr(self, name), methods=["POST"]) for name in ("create", "reset", "step")]
        self.app = Starlette(routes=[*routes, Route("/observation", self.observation)])

    async def create(self, request: Request) -> Response:
        self.requests.append(("create", await request.body()))
        bare: Any = 7
        if self.env == "searchqa":
            return JSONResponse(bare)
        return JSONResponse({"env_idx": 7} if self.env == "webarena" else {"id": 7})

    async def reset(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(("reset", body))
        self.steps, self.score = 0, 0.0
        key = {"searchqa": "id", "webarena": "idx"}.get(self.env, "data_idx")
        self.item = body[key]
        if self.item == 404:
            return JSONResponse({"error": "list index out of range"})
        if self.env == "searchqa":
            return JSONResponse(f"Question {self.item}")
        if self.env == "webarena":
            return JSONResponse({"observation": "TimeoutError" if self.item == 408 else "a tree"})
        if self.env == "sciworld":
            described = {"task_description": f"Task {self.item}", "observation": "A room.", "task_name": "boil"}
            return JSONResponse({**described, "var_num": 0, "reward": 0, "score": 0, "done": False})
        return JSONResponse({"id": 7, "observation": f"Task {self.item}", "reward": 0, "score": 0, "done": False})

    async def observation(self, request: Request) -> Response:
        assert request.query_params["env_idx"] == "7"
        return JSONResponse(f"Question {self.item}")

    async def step(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(("step", body))
        observation, reward, done = self.script[min(self.steps, len(self.script) - 1)]
        self.steps += 1
        self.score += reward
        if self.env == "webarena":
            end = {"terminated": done, "truncated": False, "info": None}
            return JSONResponse({"observation": observation, "reward": reward, **end})
        answer = {"observation": observation, "reward": reward, "done": done}
        return JSONResponse(answer if self.env in ("textcraft", "searchqa") else {**answer, "score": self.score})

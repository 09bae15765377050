"""Config keys that verl's code reads, found in its source.

Each read is an expression such as `self.config.trainer.save_freq` or `actor_config.get("entropy_coeff")`. Local
names are followed to the expression that they were assigned, and `ROOTS` and `TYPES` say which section an object of a
module holds. Declarations of dataclasses and their validation are not reads: they accept a key and do nothing with it.

Limits: a key that is read and then ignored counts as read. A section that is passed on as a whole, such as
`engine_kwargs`, is the receiver's. Reads through names that are computed at run time are not seen.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ACTOR, REF, ROLLOUT, MODEL, CRITIC = (
    *(f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model")),
    "critic",
)
ENGINES = (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", f"{CRITIC}.fsdp")
MODELS, OPTIMIZERS, CHECKPOINTS = (
    (MODEL, f"{CRITIC}.model"),
    (f"{ACTOR}.optim", f"{CRITIC}.optim"),
    (f"{ACTOR}.checkpoint", f"{CRITIC}.checkpoint"),
)
TYPES = {
    "ActorConfig": (ACTOR,),
    "CriticConfig": (CRITIC,),
    "AlgoConfig": ("algorithm",),
    "RolloutCorrectionConfig": ("algorithm.rollout_correction",),
    "RolloutConfig": (ROLLOUT,),
    "HFModelConfig": MODELS,
    "FSDPEngineConfig": ENGINES,
    "FSDPOptimizerConfig": OPTIMIZERS,
    "CheckpointConfig": CHECKPOINTS,
    "CheckpointEngineConfig": (f"{ROLLOUT}.checkpoint_engine",),
}
"""Sections that an argument of a type holds."""
TRAINING = {
    "self.engine_config": ENGINES,
    "self.model_config": MODELS,
    "self.optimizer_config": OPTIMIZERS,
    "self.checkpoint_config": CHECKPOINTS,
}
SERVER = {"self.config": (ROLLOUT,), "self.model_config": (MODEL,), "config": (ROLLOUT,), "model_config": (MODEL,)}
WHOLE = {"self.config": ("",), "config": ("",), "trainer_config": ("",)}
LOOP = {**WHOLE, "self.rollout_config": (ROLLOUT,), "self.model_config": (MODEL,), "self.data_config": ("data",)}
ROOTS: dict[str, dict[str, tuple[str, ...]]] = {
    "verl/trainer/main_ppo.py": WHOLE,
    "verl/trainer/ppo/utils.py": {**WHOLE, "data_config": ("data",)},
    "verl/trainer/ppo/core_algos.py": {"config": ("algorithm",), "kl_ctrl": ("algorithm.kl_ctrl",)},
    "verl/trainer/ppo/rollout_corr_helper.py": {"rollout_corr_config": ("algorithm.rollout_correction",)},
    "verl/trainer/ppo/checkpoint_callback.py": WHOLE,
    "verl/trainer/ppo/v1/trainer_base.py": WHOLE,
    "verl/trainer/ppo/v1/trainer_sync.py": WHOLE,
    "verl/trainer/ppo/v1/trainer_colocate_async.py": WHOLE,
    "verl/trainer/ppo/v1/trainer_separate_async.py": WHOLE,
    "verl/trainer/ppo/v1/agent_loop_tq.py": LOOP,
    "verl/trainer/ppo/v1/replay_buffer.py": {},
    "verl/experimental/agent_loop/agent_loop.py": LOOP,
    "verl/experimental/reward_loop/reward_loop.py": WHOLE,
    "verl/workers/engine_workers.py": {
        **TRAINING,
        "self.config": ("actor_rollout_ref",),
        "config": ("actor_rollout_ref",),
    },
    "verl/workers/engine/fsdp/transformer_impl.py": TRAINING,
    "verl/workers/engine/fsdp/utils.py": {},
    "verl/workers/engine/utils.py": {},
    "verl/workers/utils/losses.py": {},
    "verl/workers/config/model.py": {"self": MODELS},
    "verl/workers/config/optimizer.py": {"config": OPTIMIZERS},
    "verl/workers/rollout/llm_server.py": {
        **WHOLE,
        "self.rollout_config": (ROLLOUT,),
        "rollout_config": (ROLLOUT,),
        "model_config": (MODEL,),
    },
    "verl/workers/rollout/replica.py": SERVER,
    "verl/workers/rollout/base.py": SERVER,
    "verl/workers/rollout/vllm_rollout/vllm_async_server.py": SERVER,
    "verl/workers/rollout/vllm_rollout/vllm_rollout.py": SERVER,
    "verl/workers/rollout/vllm_rollout/utils.py": SERVER,
    "verl/workers/rollout/sglang_rollout/async_sglang_server.py": SERVER,
    "verl/workers/rollout/sglang_rollout/sglang_rollout.py": SERVER,
    "verl/checkpoint_engine/base.py": {},
    "verl/utils/checkpoint/checkpoint_manager.py": {
        "checkpoint_config": CHECKPOINTS,
        "self.checkpoint_config": CHECKPOINTS,
    },
    "verl/utils/checkpoint/fsdp_checkpoint_manager.py": {
        "checkpoint_config": CHECKPOINTS,
        "self.checkpoint_config": CHECKPOINTS,
    },
}
"""Sections that the objects of a module hold, for the modules of verl's V1 trainer with FSDP, vLLM and SGLang."""
OFFLINE_TRAINING = {
    "self.engine_config": ("engine",),
    "self.model_config": ("model",),
    "self.optimizer_config": ("optim",),
    "self.checkpoint_config": ("checkpoint",),
}
OFFLINE_ROOTS: dict[str, dict[str, tuple[str, ...]]] = {
    "verl/trainer/sft_trainer.py": {"self.config": ("",), "config": ("",)} | OFFLINE_TRAINING,
    "verl/utils/checkpoint/checkpoint_handler.py": {},
    "verl/workers/engine_workers.py": OFFLINE_TRAINING,
    "verl/workers/engine/fsdp/transformer_impl.py": OFFLINE_TRAINING,
    "verl/workers/config/model.py": {"self": ("model",)},
    "verl/workers/config/optimizer.py": {"config": ("optim",)},
    "verl/utils/checkpoint/checkpoint_manager.py": {"self.checkpoint_config": ("checkpoint",)},
}
"""The same for verl's SFT trainer, which also trains by preferences."""
OFFLINE_TYPES = {
    "HFModelConfig": ("model",),
    "FSDPEngineConfig": ("engine",),
    "FSDPOptimizerConfig": ("optim",),
    "CheckpointConfig": ("checkpoint",),
}
SAME = ("omega_conf_to_dataclass", "deepcopy", "to_container")
"""Functions that return a copy of their argument."""


class _Reads(ast.NodeVisitor):
    """Collects the dotted expressions that a module reads, with the first line of each."""

    def __init__(self, roots: Mapping[str, Sequence[str]], types: Mapping[str, Sequence[str]]) -> None:
        self.found: dict[str, int] = {}
        self._roots, self._types = roots, types
        self._scopes: list[dict[str, str]] = [{}]

    def config_keys(self) -> Iterator[tuple[str, int]]:
        """Yield the config keys of the expressions."""
        for expression, line in self.found.items():
            root = max((r for r in self._roots if f"{expression}.".startswith(f"{r}.")), key=len, default=None)
            if root is not None:
                rest = expression[len(root) :].lstrip(".")
                for section in self._roots[root]:
                    yield f"{section}.{rest}".strip("."), line
            elif expression.startswith("<"):
                kind, _, rest = expression[1:].partition(">.")
                for section in self._types[kind]:
                    yield f"{section}.{rest}", line

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        names = {}
        for argument in [*node.args.args, *node.args.kwonlyargs]:
            kinds = (
                [] if argument.annotation is None else [n for n in self._types if n in ast.unparse(argument.annotation)]
            )
            if kinds:
                names[argument.arg] = f"<{max(kinds, key=len)}>"
        self._scopes.append(names)
        self.generic_visit(node)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for name, value in zip(target.elts, node.value.elts, strict=False):
                    self._bind(name, value)
            else:
                self._bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._bind(node.target, node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._note(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._note(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self._note(node)
        self.generic_visit(node)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            expression = self._expression(value)
            if expression is None or expression == target.id:
                self._scopes[-1].pop(target.id, None)
            else:
                self._scopes[-1][target.id] = expression

    def _note(self, node: ast.expr) -> None:
        expression = self._expression(node)
        if expression and "." in expression and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            self.found.setdefault(expression, node.lineno)

    def _expression(self, node: ast.expr) -> str | None:
        """Return the dotted expression of a node, with local names replaced by what they were assigned."""
        if isinstance(node, ast.Name):
            return next((scope[node.id] for scope in reversed(self._scopes) if node.id in scope), node.id)
        if isinstance(node, ast.Attribute):
            return self._below(node.value, node.attr)
        if isinstance(node, ast.Subscript):
            return self._below(node.value, _text(node.slice))
        if isinstance(node, ast.BoolOp):
            return self._expression(node.values[0])
        if isinstance(node, ast.IfExp):
            return self._expression(node.body)
        if isinstance(node, ast.Call):
            function, first = node.func, node.args[0] if node.args else None
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if isinstance(function, ast.Attribute) and name in ("get", "pop") and first is not None:
                return self._below(function.value, _text(first))
            if name in ("getattr", "select", "hasattr") and len(node.args) > 1 and first is not None:
                return self._below(first, _text(node.args[1]))
            if name in SAME and first is not None:
                return self._expression(first)
        return None

    def _below(self, node: ast.expr, name: str | None) -> str | None:
        parent = self._expression(node)
        return None if parent is None or name is None else f"{parent}.{name}"


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@cache
def verl_reads(base: str) -> dict[str, str]:
    """Return the config keys that verl reads, each with the place of one read as `file:line`."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None
    folder, found = Path(spec.origin).parents[1], dict[str, str]()
    modules, types = (ROOTS, TYPES) if base == "agent_base" else (OFFLINE_ROOTS, OFFLINE_TYPES)
    for name, roots in modules.items():
        visitor = _Reads(roots, types)
        visitor.visit(ast.parse((folder / name).read_text(encoding="utf-8")))
        for key, line in visitor.config_keys():
            found.setdefault(key, f"{name}:{line}")
    return found


def references(key: str, value: object) -> set[str]:
    """Return the keys that an unresolved value refers to."""
    found = set()
    for name in re.findall(r"\$\{(?:oc\.select:\s*)?([\w.]+)", value) if isinstance(value, str) else ():
        dots = len(name) - len(name.lstrip("."))
        parent = key.split(".")[: -dots or None] if dots else []
        found.add(".".join([*parent, name.lstrip(".")]))
    return found

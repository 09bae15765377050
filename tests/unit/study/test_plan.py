"""Test the checks of the file of a study, and its runs."""

import json

import pytest
import yaml

from tests import ROOT
from tests.support.composing import STUDIES
from tests.support.packages import install_example, write_metadata
from verl_agent.errors import ConfigError
from verl_agent.study.execution import claim_study
from verl_agent.study.hashes import source_digest
from verl_agent.study.plan import make_plan
from verl_agent.study.runs import Run, measured, run_overrides, run_study, search_runs
from verl_agent.study.settings import read_study

RECIPE = str(ROOT / "recipes/studies/guess_number.yaml")
ONE_EACH = {path.parent.name: path for path in sorted(ROOT.glob("recipes/*/grpo*_cpu.yaml"))}
WITHOUT_ORACLE = {"gymnasium", "openenv", "openspiel", "textarena"}
ARMS = {"long": ["horizon.max_turns=[12]"], "short": ["horizon.max_turns=[4]"]}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes the file of a study."""

    def write(**changed):
        values = {"question": "Which?", "recipe": RECIPE, "arms": ARMS, "seeds": [1, 2], "budget_turns": 1000}
        file = tmp_path / "own.yaml"
        file.write_text(yaml.safe_dump(values | changed), encoding="utf-8")
        return file

    return write


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"measure": "areas"}, "area"),
        ({"search": {"values": [1e-3, 1e-4], "seeds": [2]}}, "a seed twice"),
        ({"seeds": [1, 1]}, "a seed twice"),
        ({"arms": {"one": []}}, "two or more"),
        ({"budget": 5}, "budget_turns"),
        ({"measure": "beyond"}, "tiny.beyond_turns"),
        ({"measure": "turns"}, r"study\.measure=turns is not allowed.*Choose final"),
        ({"tiny": {"widht": 1}}, "width"),
        ({"tiny": {"width": 60}}, r"tiny\.width=60 is not allowed.*multiples of 8"),
        ({"stop": {"block": 6}}, r"study\.stop\.block=6 has no effect.*stop\.rule='successive', not 'fixed'"),
        (
            {"stop": {"rule": "successive"}},
            r"stop\.block=5 can tell no arms apart with 2 seeds.*with these: none.*rule: fixed",
        ),
        ({"search": {"values": [1e-3, 1.0000001e-3], "seeds": [9]}}, r"has 0\.001 twice; six digits count"),
        ({"runner": "train", "points": 5}, r"study\.points=5 has no effect.*runner='tiny', not 'train'"),
        ({"runner": "train", "tiny": {"layers": 2}}, r"study\.tiny\.layers=2 has no effect.*not 'train'"),
        ({"search": {"values": [1, 2], "seeds": [9], "budget_turns": 2000}}, r"budget_turns=2000 is not allowed"),
        ({"reference": "longer"}, r"study\.reference='longer' is no arm.*long"),
        ({"stop": {"looks": [2]}}, r"study\.stop\.looks=\[2\] has no effect.*stop\.rule='looks', not 'fixed'"),
        *(
            (
                {"seeds": list(range(1, 13)), "stop": {"rule": "looks", "looks": looks}},
                r"two growing numbers, the first one from 7, .* last one 12, the number of seeds",
            )
            for looks in ([6, 12], [8, 7], [8, 8], [8, 11], [12])
        ),
        ({"stop": {"rule": "looks"}}, r"rule=looks needs 8 or more seeds with 2 arms, got 2: .*rule: fixed"),
        ({"reference": ""}, r"study\.reference='' is not allowed"),
    ],
)
def test_values_that_make_no_study_raise_config_error(written, changed, said):
    with pytest.raises(ConfigError, match=said):
        read_study(written(**changed))


def test_an_arm_that_stands_twice_raises_config_error(written):
    file = written()
    file.write_text(file.read_text(encoding="utf-8").replace("  short:", "  long:"), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"(?s){file.name} cannot be read.*duplicate key long"):
        read_study(file)


def test_each_value_of_a_search_is_checked(written):
    arms = {
        "by_turn": ["algorithm.adv_estimator=turn_gae"],
        "slow": ["algorithm.adv_estimator=turn_gae", "credit.turn_gamma=0.9"],
    }
    search = {"key": "credit.turn_lam", "values": [0.9, 1.5], "seeds": [9]}
    with pytest.raises(ConfigError, match=r"arm by_turn.*credit\.turn_lam=1\.5"):
        make_plan(written(arms=arms, search=search))


def test_a_mixture_raises_config_error(written):
    with pytest.raises(ConfigError, match=r"env\.mixture has several environments"):
        make_plan(written(recipe=str(ROOT / "recipes/textcraft/mixture.yaml"), runner="train"))


def test_a_search_without_effect_in_any_arm_raises_config_error(written):
    arms = {"by_turn": ["algorithm.adv_estimator=turn_gae"], "grpo": []}
    search = {"key": "credit.turn_lam", "values": [0.9, 0.95], "seeds": [9]}
    with pytest.raises(ConfigError, match=r"arm grpo.*credit\.turn_lam=0\.9 has no effect"):
        make_plan(written(arms=arms, search=search))


def test_a_fresh_optimizer_in_an_arm_with_one_stage_raises_config_error(written):
    arms = {"kept": ["horizon.max_turns=[12]"], "new": ["horizon.max_turns=[12]", "tiny.fresh_optimizer=true"]}
    with pytest.raises(ConfigError, match=r"arm new.*tiny\.fresh_optimizer=true has no effect.*is one stage"):
        make_plan(written(arms=arms))


@pytest.mark.parametrize(("horizon", "key"), [("deepen=true", "deepen"), ("per_task={rule:ladder}", "per_task")])
def test_a_fresh_optimizer_with_limits_by_task_or_group_raises_config_error(horizon, key, written):
    stages = ["horizon.max_turns=[4,12]", f"horizon.{horizon}"]
    arms = {"kept": stages, "new": [*stages, "tiny.fresh_optimizer=true"]}
    with pytest.raises(ConfigError, match=rf"arm new.*tiny\.fresh_optimizer=true is not allowed with horizon\.{key}: "):
        make_plan(written(arms=arms))


FILTERS = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=9"]


@pytest.mark.parametrize(
    ("runner", "own", "shared", "said"),
    [
        ("tiny", "horizon.deepen=true", ["actor_rollout_ref.rollout.n=1"], r"rollout\.n=1: a group of one episode"),
        ("tiny", "horizon.per_task={window:3}", [], r"per_task\.window=3 keeps fewer"),
        (
            "train",
            "horizon.per_task={rule:ladder}",
            [*FILTERS, "trainer.total_training_steps=99", "trainer.test_freq=1"],
            r"horizon\.per_task is not allowed with algorithm\.filter_groups",
        ),
    ],
)
def test_a_schedule_that_does_not_suit_the_groups_raises_config_error(runner, own, shared, said, written):
    arms = {"long": ["horizon.max_turns=[4,12]"], "own": ["horizon.max_turns=[4,12]", own]}
    with pytest.raises(ConfigError, match=f"arm own, stratum one: .*{said}"):
        make_plan(written(runner=runner, arms=arms, strata={"one": [*BATCH, *shared]}))


@pytest.mark.parametrize(
    ("own", "tiny", "said"),
    [
        ("tiny.fresh_optimizer=true", {"fresh_optimizer": True}, "optimizer=true, which holds for all arms"),
        ("tiny.width=64", {}, r"sets tiny\.width=64, .*Allowed of tiny: tiny\.fresh_optimizer=true and tiny\.later_ta"),
        ("tiny.later_tasks", {}, r"sets tiny\.later_tasks, which is not allowed"),
        ("+tiny.later_tasks=small_test", {}, r"sets \+tiny\.later_tasks=small_test, which is not allowed"),
        ("tiny.fresh_optimizer=often", {}, r"arm new: study\.tiny\.fresh_optimizer='often' is not allowed"),
        ("tiny.later_tasks=train", {}, r"arm new.*tiny\.later_tasks=train has no effect: env\.train_tasks is the same"),
    ],
)
def test_settings_of_the_small_model_that_an_arm_may_not_have_raise_config_error(written, own, tiny, said):
    stages = ["horizon.max_turns=[4,12]"]
    with pytest.raises(ConfigError, match=said):
        make_plan(written(arms={"kept": stages, "new": [*stages, own]}, tiny=tiny))


def test_an_arm_of_verl_may_not_set_the_small_model(written):
    arms = {"kept": [], "new": ["tiny.fresh_optimizer=true"]}
    with pytest.raises(ConfigError, match=r"arm new sets tiny\.fresh.* has no effect with study\.runner='train'"):
        make_plan(written(arms=arms, runner="train"))


def test_a_run_has_the_settings_of_the_small_model_that_its_arm_sets(written):
    stages = ["horizon.max_turns=[4,12]"]
    new = [*stages, "tiny.fresh_optimizer=true", "tiny.later_tasks=small_train"]
    plan = make_plan(written(arms={"kept": stages, "new": new}))
    kept, new = (run_study(plan.study, Run("all", arm, 1)).tiny for arm in plan.study.arms)
    assert (kept.fresh_optimizer, kept.later_tasks) == (False, None)
    assert (new.fresh_optimizer, new.later_tasks) == (True, "small_train")
    assert not any("tiny" in one for one in run_overrides(plan, Run("all", "new", 1), ROOT))
    assert plan.changes["all", "new"] == {"tiny.fresh_optimizer": True, "tiny.later_tasks": "small_train"}


def test_a_plan_names_what_the_small_runner_ignores_of_the_recipe(written, tmp_path):
    recipe = yaml.safe_load((ROOT / "recipes/studies/guess_number.yaml").read_text(encoding="utf-8"))
    recipe["actor_rollout_ref"]["rollout"] = {"temperature": 0.3, "max_num_seqs": 8}
    recipe["actor_rollout_ref"]["actor"] |= {"ppo_micro_batch_size_per_gpu": 1, "entropy_coeff": 0.1}
    recipe["actor_rollout_ref"]["actor"]["optim"]["lr_warmup_steps"] = 5
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    plan = make_plan(written(recipe="recipe.yaml"))
    keys = ["actor_rollout_ref.actor.optim.lr_warmup_steps=5", "actor_rollout_ref.rollout.temperature=0.3"]
    assert sorted(plan.ignored) == keys
    assert f"ignores of the recipe: {', '.join(plan.ignored)}" in "\n".join(plan.describe())


def test_an_arm_that_changes_more_than_it_says_raises_config_error(written):
    arms = {"grpo": [], "dapo": ["+overlay/algorithm=dapo"]}
    with pytest.raises(ConfigError, match="differs from the first arm in more than it says"):
        make_plan(written(arms=arms))


def test_an_estimator_that_does_not_exist_names_arm_and_key(written):
    with pytest.raises(ConfigError, match=r"arm other.*algorithm\.adv_estimator='rlo'"):
        make_plan(written(arms={**ARMS, "other": ["algorithm.adv_estimator=rlo"]}))


def test_two_arms_with_one_config_raise_config_error(written):
    with pytest.raises(ConfigError, match="arms default and long have the same config"):
        make_plan(written(arms={"long": [], "default": ["algorithm.adv_estimator=grpo"]}))


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ({"long": ["horizon.max_turns=[8]"], "short": []}, r"horizon\.eval_max_turns=8 and 4"),
        ({"own": ["env.eval_tasks=small_train"], "plain": []}, r"env\.eval_tasks=small_train and small_test"),
        ({"own": ["env.options.ranges=[40]"], "plain": []}, r"env\.options="),
        ({"own": ["env.dev_tasks=small_train"], "plain": []}, r"env\.dev_tasks=small_train and auto"),
        ({"own": ["env.train_tasks=train"], "plain": []}, r"env\.train_tasks=train and small_train.*dev_tasks"),
    ],
)
def test_arms_that_are_evaluated_differently_raise_config_error(written, arms, said):
    with pytest.raises(ConfigError, match=f"arms {' and '.join(arms)} are evaluated with {said}"):
        make_plan(written(recipe=str(ROOT / "recipes/guess_number/grpo_cpu.yaml"), arms=arms, runner="train"))


def test_an_environment_without_an_oracle_raises_config_error(written):
    recipe = str(ROOT / "recipes/textarena/grpo_cpu.yaml")
    with pytest.raises(ConfigError, match=r"env\.name=textarena has no oracle"):
        make_plan(written(recipe=recipe, strata={"all": ["horizon.eval_max_turns=12"]}))


@pytest.mark.parametrize("own", ["data.seed=3", "trainer.val_before_train=false"])
def test_an_arm_may_not_set_what_the_command_sets(written, own):
    with pytest.raises(ConfigError, match=f"arm other sets {own.partition('=')[0]}, which the command sets"):
        make_plan(written(arms={**ARMS, "other": [own]}))


def test_an_override_that_does_not_exist_names_arm_and_key(written):
    with pytest.raises(ConfigError, match=r"arm other.*horizon\.max_turn"):
        make_plan(written(arms={**ARMS, "other": ["horizon.max_turn=[3]"]}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"arms": {**ARMS, "warm": ["actor_rollout_ref.actor.optim.lr_warmup_steps=5"]}},
            "arm warm sets .*=5, .*ignores",
        ),
        (
            {"arms": {"warm": ["actor_rollout_ref.actor.optim.lr_warmup_steps=5"], **ARMS}},
            "arm warm sets .*=5, .*ignores",
        ),
        ({"arms": {**ARMS, "brief": ["trainer.total_training_steps=1"]}}, "arm brief sets .*=1, .*ignores"),
        ({"strata": {"hot": ["actor_rollout_ref.rollout.temperature=2"]}}, "stratum hot sets .*=2, .*ignores"),
        ({"strata": {"corrected": ["+overlay/correction=token_is"]}}, "stratum corrected changes .*ignores"),
        ({"search": {"key": "actor_rollout_ref.actor.optim.lrs", "values": [1, 2], "seeds": [9]}}, "optim.lr"),
        ({"search": {"key": "actor_rollout_ref.rollout.top_p", "values": [0.5, 0.9], "seeds": [9]}}, "search sets"),
        ({"search": {"key": "horizon.max_turns", "values": [2, 3], "seeds": [9]}}, "sets horizon.max_turns"),
    ],
)
def test_keys_that_the_small_runner_ignores_raise_config_error(written, changed, said):
    with pytest.raises(ConfigError, match=said):
        make_plan(written(**changed))


def test_the_hash_of_the_code_covers_modules_beside_the_package_of_an_adapter(tmp_path, monkeypatch):
    package = tmp_path / "own_adapters" / "game"
    package.mkdir(parents=True)
    for file in (package / "__init__.py", package / "adapter.py", package.parent / "__init__.py"):
        file.touch()
    shared = package.parent / "shared.py"
    shared.write_text("LIMIT = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before = source_digest(["own_adapters.game.adapter"])
    shared.write_text("LIMIT = 2\n", encoding="utf-8")
    assert source_digest(["own_adapters.game.adapter"]) != before


def test_the_hash_of_the_code_covers_an_estimator_of_another_package(tmp_path, monkeypatch):
    for folder in install_example("own_algorithms", tmp_path):
        monkeypatch.syspath_prepend(folder)
    own = make_plan(ROOT / "examples/own_algorithms/recipes/shuffled_guess_number.yaml")
    assert own.changes["ranges_7_and_10", "shuffled"] == {"algorithm.adv_estimator": "shuffled_grpo"}
    same_environment = make_plan(ROOT / "recipes/studies/transfer_guess_number.yaml")
    assert own.facts["code"] != same_environment.facts["code"]


OWN_SCHEDULE = """
from verl_agent import Schedule

class Own(Schedule):
    def limit(self, step, item):
        return self.stages[0]
"""


def test_the_hash_of_the_code_covers_a_schedule_of_another_package(written, tmp_path, monkeypatch):
    write_metadata(tmp_path, "limits", {"verl_agent.schedules": {"own": "study_limits:Own"}})
    module = tmp_path / "study_limits.py"
    module.write_text(OWN_SCHEDULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    stages = "horizon.max_turns=[4,12]"
    file = written(arms={"long": ["horizon.max_turns=[12]"], "own": [stages, "horizon.schedule=own"]})
    before = make_plan(file).facts
    module.write_text(OWN_SCHEDULE.replace("[0]", "[1]"), encoding="utf-8")
    (out := tmp_path / "out").mkdir()
    claim_study(out, before, False)
    with pytest.raises(ConfigError, match="another version of this study: code"):
        claim_study(out, make_plan(file).facts, False)


def test_an_edit_of_replayed_episodes_is_noticed_at_a_resume(written, tmp_path):
    records = tmp_path / "records"
    records.mkdir()
    (records / "teacher.jsonl").write_text("{}\n", encoding="utf-8")
    arms = {"long": [], "replayed": [f"horizon.replay={{records:[{records}]}}"]}
    file = written(arms=arms)
    before = make_plan(file).facts
    (records / "teacher.jsonl").write_text("{}\n{}\n", encoding="utf-8")
    (out := tmp_path / "out").mkdir()
    claim_study(out, before, False)
    with pytest.raises(ConfigError, match="another version of this study: configs"):
        claim_study(out, make_plan(file).facts, False)


def test_a_plan_tells_the_reference_and_the_looks(written):
    stop = {"rule": "looks", "looks": [7, 9]}
    plan = make_plan(written(seeds=list(range(9)), stop=stop, reference="short"))
    lines = [*plan.describe()]
    assert "arm long: horizon.max_turns=[12]" in lines
    assert "arm short: horizon.max_turns=[4]; the others are compared with it" in lines
    assert (
        "looks after 7 and 9 seeds: the study ends where each other arm is better or worse than short, else with its "
        "last seed; p values are multiplied by 2"
    ) in lines


def test_a_plan_lists_what_arms_change_and_its_hash_changes_with_the_file(written):
    plan = make_plan(written())
    assert plan.changes["all", "short"] == {"horizon.max_turns": [4]}
    lines = "\n".join(plan.describe())
    assert "2 arms x 2 seeds" in lines and "no arm can be better or worse with fewer than 6 seeds" in lines
    assert "training tasks" not in lines
    assert "arm long: horizon.max_turns=[12]; the others are compared with it" in lines
    seen = make_plan(written(strata={"seen": ["env.train_tasks=small_train", "env.eval_tasks=small_train"]}))
    assert any("evaluated on its training tasks" in line for line in seen.describe())
    assert make_plan(written(margin=0.1)).facts["file"] != plan.facts["file"]


BATCH = ["data.train_batch_size=4", "actor_rollout_ref.rollout.n=4"]
RATE = "actor_rollout_ref.actor.optim.lr"
SAME = ["horizon.max_turns=[11]"]


@pytest.mark.parametrize(
    ("changed", "steps", "rate"),
    [
        ({"strata": {"one": [*BATCH, f"{RATE}=1e-3"]}}, "6 (long) to 16 (short)", "0.001"),  # 1000 / (4 4 12 or 4)
        ({"strata": {"one": [*BATCH, f"{RATE}=1e-3"]}, "budget_turns": 50}, "1", "0.001"),
        (
            {"strata": {"one": [*BATCH, f"{RATE}=1e-3"], "two": [*BATCH, f"{RATE}=1e-4"]}},
            "6 (long) to 16 (short)",
            "0.0001 and 0.001",
        ),
        (
            {
                "arms": {
                    "grown": ["horizon.max_turns=[4]", "horizon.grow_by=8", "horizon.up_to=12"],
                    "short": ARMS["short"],
                }
            },
            "6 (grown) to 16 (short)",
            "0.0001",
        ),
        (
            {"strata": {"one": BATCH}, "search": {"values": [1e-3, 2e-3], "seeds": [9]}},
            "6 (long) to 16 (short)",
            "by the search",
        ),
    ],
    ids=["arms", "less than a step", "strata", "growing limit", "search"],
)
def test_a_plan_tells_the_least_steps_and_the_rates(changed, steps, rate, written):
    values = {"strata": {"one": [*BATCH, f"{RATE}=1e-4"]}} | changed
    line, *_ = make_plan(written(**values)).describe_training()
    assert line.startswith(f"at least {steps} training steps a run, ") and line.endswith(f"learning rate {rate}")


@pytest.mark.parametrize(
    ("strata", "budget", "warnings"),
    [
        ([f"{RATE}=1e-4"], 2000, []),
        ([f"{RATE}=2e-5"], 2000, ["a learning rate of 2e-05 is low"]),
        ([f"{RATE}=1e-4"], 1000, ["6 steps may be too few"]),
    ],
)
def test_a_plan_warns_of_few_steps_and_of_a_low_rate(strata, budget, warnings, written):
    plan = make_plan(written(strata={"one": [*BATCH, *strata]}, budget_turns=budget))
    _, *said = plan.describe_training()
    assert [line.startswith(warning) for line, warning in zip(said, warnings, strict=True)] == [True] * len(warnings)
    assert {*said} < {*plan.describe()}


@pytest.mark.parametrize("override", ["data.train_batch_size=0", "actor_rollout_ref.rollout.n=0"])
def test_a_step_without_episodes_raises_config_error(override, written):
    with pytest.raises(ConfigError, match=rf"stratum one: {override} is not allowed"):
        make_plan(written(strata={"one": [override]}))


def test_an_arm_of_verl_whose_steps_cannot_spend_the_budget_raises_config_error(written):
    own = ["trainer.total_training_steps=6", "trainer.test_freq=2"]
    arms = {name: [*of_arm, *own] for name, of_arm in ARMS.items()}
    with pytest.raises(ConfigError, match=r"arm short.*=6 cannot spend study\.budget_turns=1000.*16 or more"):
        make_plan(written(strata={"one": BATCH}, arms=arms, runner="train"))
    replaced = {"one": [*BATCH, "algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=9"]}
    assert make_plan(written(strata=replaced, arms=arms, runner="train")).steps["short"] == 16
    assert make_plan(written(strata={"one": BATCH}, arms=arms)).steps["short"] == 16  # played until the budget is spent


@pytest.mark.parametrize("frequency", [-1, 0])
def test_runs_of_verl_without_evaluations_raise_config_error(frequency, written):
    with pytest.raises(ConfigError, match=rf"trainer\.test_freq={frequency} evaluates no step of training"):
        make_plan(written(strata={"one": [*BATCH, f"trainer.test_freq={frequency}"]}, runner="train"))


def test_each_seat_of_an_arena_spends_the_budget(written):
    recipe = str(ROOT / "recipes/openspiel/rae_cpu.yaml")
    own = ["trainer.total_training_steps=1", "trainer.test_freq=1"]
    arms = {"one": own, "two": [*own, f"{RATE}=7e-5"]}
    assert make_plan(written(recipe=recipe, arms=arms, runner="train", budget_turns=100000)).steps["one"] > 1


def test_successive_stopping_can_tell_arms_apart_with_fewer_seeds(written):
    plan = make_plan(written(seeds=[1, 2, 3, 4, 5], stop={"rule": "successive"}, arms={**ARMS, "same": SAME}))
    assert not [*plan.describe_least_seeds()]


def test_a_plan_names_what_strata_set(written):
    lines = [*make_plan(written(strata={"all": [], "costly": ["credit.step_cost=0.1"]})).describe()]
    assert "stratum costly: credit.step_cost=0.1" in lines and not any(line.startswith("stratum all") for line in lines)


def test_a_plan_names_the_arms_that_are_evaluated_on_training_tasks(written, tmp_path):
    (tmp_path / "two.txt").write_text("5:1\n6:2\n", encoding="utf-8")
    (tmp_path / "one.txt").write_text("6:2  # held out\n", encoding="utf-8")
    (tmp_path / "other.txt").write_text("8:3\n", encoding="utf-8")
    (tmp_path / "later.txt").write_text("6:2\n8:4\n", encoding="utf-8")
    options = ["env.options.ranges=null", f"env.eval_tasks={tmp_path}/one.txt"]
    arms = {
        "other": [f"env.train_tasks={tmp_path}/other.txt"],
        "both": [f"env.train_tasks={tmp_path}/two.txt"],
        "later": [f"env.train_tasks={tmp_path}/other.txt", f"tiny.later_tasks={tmp_path}/later.txt"],
    }
    plan = make_plan(written(arms=arms, strata={"all": options}))
    assert "evaluated on training tasks, so no measure of generalization: both, later" in [*plan.describe()]
    (tmp_path / "later.txt").write_text("8:4\n", encoding="utf-8")
    changed = make_plan(plan.file)
    assert changed.seen == ["both"] and changed.facts["configs"] != plan.facts["configs"]
    (tmp_path / "one.txt").write_text("6:3\n", encoding="utf-8")
    again = make_plan(plan.file)
    assert not again.seen and again.facts["configs"] != changed.facts["configs"]


def test_a_first_arm_with_a_fresh_optimizer_differs_from_the_others_by_that(written):
    stages = ["horizon.max_turns=[4,12]"]
    plan = make_plan(written(arms={"fresh": [*stages, "tiny.fresh_optimizer=true"], "kept": stages}))
    assert plan.changes["all", "kept"] == {"tiny.fresh_optimizer": False}
    assert not plan.changes["all", "fresh"]


def test_area_is_the_mean_over_turns_up_to_the_budget():
    points = [{"turns": 0, "success": 0.0}, {"turns": 500, "success": 1.0}, {"turns": 1200, "success": 1.0}]
    assert measured(points, "area", 1000) == pytest.approx(0.75)
    assert measured(points, "final", 1000) == measured(points, "gain", 1000) == 1.0


def test_success_after_the_budget_is_not_the_best():
    points = [{"turns": 0, "success": 0.1}, {"turns": 1000, "success": 0.3}, {"turns": 2000, "success": 0.9}]
    assert measured(points, "best", 1500) == measured(points, "final", 1500) == pytest.approx(0.6)
    assert measured(points, "fall", 1500) == 0


def test_the_search_chooses_the_value_with_the_best_mean(written, tmp_path):
    plan = make_plan(written(search={"values": [1e-3, 1e-4], "seeds": [7]}))
    for run in search_runs(plan):
        folder = run.folder(tmp_path)
        folder.mkdir(parents=True)
        better = (run.value == 1e-4) == (run.arm == "long")
        point = {"turns": 1000, "success": 0.5 + 0.1 * better}
        (folder / "points.jsonl").write_text(json.dumps(point) + "\n", encoding="utf-8")
    key = "actor_rollout_ref.actor.optim.lr"
    assert f"{key}=0.0001" in run_overrides(plan, Run("all", "long", 1), tmp_path)
    assert f"{key}=0.001" in run_overrides(plan, Run("all", "short", 1), tmp_path)


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_the_studies_of_the_recipes_make_a_plan(file):
    make_plan(file)


@pytest.mark.parametrize("name", ONE_EACH)
def test_algorithms_can_be_compared_on_every_environment_with_an_oracle(name, tmp_path):
    study = yaml.safe_load((ROOT / "recipes/studies/algorithms.yaml").read_text(encoding="utf-8"))
    file = tmp_path / "own.yaml"
    arms = dict(list(study["arms"].items())[-2:])
    file.write_text(yaml.safe_dump(study | {"recipe": str(ONE_EACH[name]), "arms": arms}), encoding="utf-8")
    if name not in WITHOUT_ORACLE:
        assert make_plan(file).study.arms.keys() == arms.keys()
        return
    with pytest.raises(ConfigError, match=f"env.name={name} has no oracle"):
        make_plan(file)

"""Test for each family of models that packed rows and trees of rows give the log-probs and gradients of single rows.

A family is made small from its own config. Either the result is right, or the check before a run refuses it.
"""

import pytest
import torch
from transformers import CONFIG_MAPPING, LlamaConfig

from verl_agent.errors import ConfigError
from verl_agent.models.miniature import WINDOW, miniature, miniature_config
from verl_agent.platform.log_prob_head import LogProbHead, returns_output_of
from verl_agent.platform.packed_attention import NAME, use_packed_attention
from verl_agent.platform.token_tree import TokenTree
from verl_agent.platform.tree_attention import allows_trees, is_random, mask_of, use_float32_attention
from verl_agent.training.preflight.computation import check_computation, computed, differs, examine, rows_of_tokens

RIGHT = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 4096},
    "qwen3": {},
    "qwen3_moe": {},
    "mistral": {"sliding_window": 4096},
    "mixtral": {"sliding_window": 4096},
    "phi": {},
    "phi3": {"sliding_window": 2047},
    "starcoder2": {"sliding_window": 4096, "attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0},
    "gemma": {},
    "gemma3_text": {},
    "gpt_neox": {},
    "granite": {"logits_scaling": 8.0},
    "cohere": {},
    "cohere2": {},
    "olmo2": {},
    "stablelm": {},
    "glm4": {},
    "smollm3": {},
    "deepseek_v3": {},
}
"""Families whose packed rows are right with PyTorch's attention, and options that another computation could miss."""
LEAKING = ["opt", "bloom", "falcon", "mpt", "mamba", "qwen3_next", "llama4_text", "gpt_oss", "recurrent_gemma"]
"""Families whose packed rows change each other without kernels of a GPU."""
CAPPED, DROPPING = ["gemma2"], ["opt", "gpt2"]
WINDOWED = ["qwen2", "mistral", "mixtral", "phi3", "starcoder2", "gemma2", "gemma3_text", "cohere2"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def family(name, **options):
    return CONFIG_MAPPING[name](**options)


def singly(model):
    return computed(model, [[row] for row in rows_of_tokens()])


@pytest.mark.parametrize("name", RIGHT)
def test_packed_rows_have_the_log_probs_and_gradients_of_single_rows(name):
    config = family(name, **RIGHT[name])
    model = miniature(config, "sdpa")
    use_packed_attention(model)
    assert model.config._attn_implementation == NAME
    assert not differs(computed(model, [rows_of_tokens()]), singly(miniature(config, "eager")))


@pytest.mark.parametrize("name", WINDOWED)
def test_a_row_is_longer_than_the_window_of_a_small_model(name):
    config = miniature_config(family(name, **RIGHT.get(name, {})))
    assert config.sliding_window == WINDOW < max(map(len, rows_of_tokens()))


def test_a_mask_with_the_window_left_out_is_found():
    """The packed attention of a full model reads more than the window of the plain one."""
    plain = miniature(family("mistral", sliding_window=4096), "eager")
    wide = miniature(family("mistral", sliding_window=None), "sdpa")
    use_packed_attention(wide)
    assert differs(computed(wide, [rows_of_tokens()]), singly(plain))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", LEAKING)
def test_packed_rows_that_change_each_other_are_found(name, attention):
    config = family(name)
    try:
        model = miniature(config, attention)
        use_packed_attention(model)
        wrong = differs(computed(model, [rows_of_tokens()]), singly(miniature(config, "eager")))
    except (ValueError, TypeError):
        pytest.skip("transformers has no such attention for this family, or it refuses packed rows")
    assert bool(examine(config, attention, packed=True).packing) is wrong
    assert not examine(config, attention, packed=False).packing


@pytest.mark.parametrize("name", [*RIGHT, "gpt_oss"])
def test_packed_rows_of_kernels_are_not_refused_where_their_contract_suffices(name):
    found = examine(family(name, **RIGHT.get(name, {})), "flash_attention_2", packed=True)
    assert not found.packing and not found.attention


@pytest.mark.parametrize("name", ["qwen3_next", "mamba"])
def test_a_state_that_leaks_between_rows_is_refused_for_kernels_too(name):
    assert examine(family(name), "flash_attention_2", packed=True).packing


@pytest.mark.parametrize("name", CAPPED)
def test_soft_caps_that_pytorchs_attention_leaves_out_are_found(name):
    assert examine(family(name), "sdpa", packed=False).attention
    assert not examine(family(name), "eager", packed=False).attention


@pytest.mark.parametrize("name", [*RIGHT, *CAPPED, *DROPPING, "falcon"])
def test_trees_of_rows_are_right_or_not_used(name):
    model = miniature(family(name, **RIGHT.get(name, {})), "sdpa")
    use_float32_attention(model)
    rows = rows_of_tokens()
    rows.append(torch.cat([rows[0][:9], rows[2][:8]]))  # shares a beginning
    tree = TokenTree.of(rows)
    inputs = {"input_ids": tree.ids_U[None], "position_ids": tree.depths_U[None], "attention_mask": mask_of(tree)}
    if not allows_trees(model):
        return
    assert name not in (*WINDOWED, *DROPPING)
    single = computed(model, [[row] for row in rows])
    model.zero_grad()
    log_probs = model(**inputs, use_cache=False).logits[0, tree.places_T].log_softmax(-1)
    log_probs.gather(-1, torch.cat([row.roll(1) for row in rows])[:, None]).sum().backward()
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    assert not differs([log_probs.detach(), torch.cat([one.flatten() for one in gradients])], single)


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_as_a_function_is_found(name):
    model = miniature(family(name), "eager")
    assert is_random(model, rows_of_tokens()[0]) and not model.training
    assert not allows_trees(model)


@pytest.mark.parametrize(
    ("name", "options", "same"),
    [
        ("llama", {}, True),
        ("llama", {"tie_word_embeddings": True}, True),
        ("granite", {"logits_scaling": 8.0}, False),
        ("granite", {"logits_scaling": 1.0}, True),
        ("cohere", {"logit_scale": 0.99}, False),
        ("gemma2", {"final_logit_softcapping": 30.0}, False),
        ("gemma2", {"final_logit_softcapping": None}, True),
    ],
)
@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_logits_that_change_after_the_output_layer_are_found_for_small_logits_too(name, options, same, spread):
    model = miniature(family(name, **options), "eager")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(spread)
    head = LogProbHead.take_place(model)
    assert returns_output_of(model, head) is same


class TestRefusals:
    """Messages before a run."""

    @pytest.fixture
    def section(self, tmp_path):
        def write(name, attention="sdpa", packed=True, override=None, **options):
            miniature_config(family(name, **options)).save_pretrained(tmp_path)
            settings = {"attn_implementation": attention, **(override or {})}
            return {"path": str(tmp_path), "use_remove_padding": packed, "override_config": settings}

        return write

    def check(self, section, longest=100, may_be_random=False):
        check_computation("model", section, longest, may_be_random=may_be_random)

    def test_packed_rows(self, section):
        with pytest.raises(ConfigError, match=r"model\.use_remove_padding=true is not allowed .*Allowed: false"):
            self.check(section("falcon"))
        self.check(section("falcon", packed=False))

    def test_attention(self, section):
        with pytest.raises(ConfigError, match=r"attn_implementation='sdpa' is not allowed .*'eager'"):
            self.check(section("gemma2"))
        self.check(section("gemma2", "eager"))

    def test_dropout(self, section):
        with pytest.raises(ConfigError, match=r"dropout=0\.1.*Set model\.override_config\.dropout=0\.0"):
            self.check(section("opt", packed=False))
        self.check(section("opt", packed=False), may_be_random=True)
        self.check(section("opt", packed=False, override={"dropout": 0.0}))
        with pytest.raises(ConfigError, match=r"attention_dropout=0\.1"):
            self.check(section("llama", attention_dropout=0.1))

    def test_the_config_of_another_folder_is_the_one_that_is_checked(self, section, tmp_path):
        other = tmp_path / "other"
        miniature_config(family("llama", attention_dropout=0.1)).save_pretrained(other)
        with pytest.raises(ConfigError, match=r"attention_dropout=0\.1"):
            self.check(section("llama") | {"hf_config_path": str(other)})

    @pytest.mark.parametrize("kind", ["dynamic", "longrope"])
    def test_positions_that_depend_on_other_rows(self, section, kind):
        rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 64}
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8} if kind == "longrope" else {}
        given = section("llama", packed=False)
        LlamaConfig(**{**miniature_config(LlamaConfig()).to_dict(), "rope_parameters": rope}).save_pretrained(
            given["path"]
        )
        with pytest.raises(ConfigError, match=rf"rows of 65 tokens, .*'{kind}': above 64 tokens"):
            self.check(given, longest=65)
        self.check(given, longest=64)

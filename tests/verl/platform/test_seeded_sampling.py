"""Test that requests with a seed draw from vLLM's probabilities, by seed and position alone."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from verl_agent.errors import ConfigError
from verl_agent.platform.seeded_sampling import check_vllm, choose_tokens, seed_vllm, uniform
from verl_agent.platform.sglang import seeded_sampling as sglang

VOCABULARY = 300
"""Not a multiple of the blocks of `choose_tokens`."""
DRAWS = 5000
LOGITS = 2 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0))


def request(seed: int | None, prompt: int = 5, output: int = 0, **sampling: Any) -> CachedRequestState:
    """Return vLLM's state of a request, made as its runner makes it."""
    seed_vllm()
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return CachedRequestState(
        req_id=f"{seed}-{prompt}",
        prompt_token_ids=[1] * prompt,
        mm_features=[],
        sampling_params=SamplingParams(seed=seed, **sampling),
        generator=generator,
        block_ids=([0],),
        num_computed_tokens=0,
        output_token_ids=[2] * output,
    )


def sampled(requests: list[CachedRequestState], logits: Tensor = LOGITS, logprobs_mode: str = "raw_logprobs") -> Any:
    """Return the output of vLLM's sampler for a batch of requests with the same logits."""
    params = [one.sampling_params for one in requests]
    greedy = [one.temperature == 0 for one in params]
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=len(requests)))
    min_p = MinPLogitsProcessor(config, torch.device("cpu"), False)
    min_p.min_p_cpu[: len(params)] = [one.min_p for one in params]
    min_p.min_p_count = sum(one.min_p > 0 for one in params)
    min_p.min_p = min_p.min_p_cpu_tensor[: len(params), None]
    top_p = torch.tensor([one.top_p for one in params])
    top_k = torch.tensor([one.top_k or VOCABULARY for one in params])
    metadata = SamplingMetadata(
        temperature=None if all(greedy) else torch.tensor([one.temperature for one in params]),
        all_greedy=all(greedy),
        all_random=not any(greedy),
        top_p=top_p if top_p.min() < 1 else None,
        top_k=top_k if top_k.min() < VOCABULARY else None,
        generators={row: one.generator for row, one in enumerate(requests) if one.generator is not None},
        max_num_logprobs=0,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(len(params)),
        presence_penalties=torch.zeros(len(params)),
        repetition_penalties=torch.ones(len(params)),
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors([min_p]),
    )
    return Sampler(logprobs_mode)(logits.expand(len(requests), -1).clone(), metadata)


def tokens(requests: list[CachedRequestState], logits: Tensor = LOGITS) -> list[int]:
    return sampled(requests, logits).sampled_token_ids[:, 0].tolist()


def chi_square(found: Tensor, expected: Tensor) -> float:
    """Return the statistic's distance from its mean in standard deviations; tokens expected < 10 times count as one."""
    rare = expected < 10
    pairs = [*zip(found[~rare], expected[~rare], strict=True), (found[rare].sum(), expected[rare].sum())]
    terms = [float((one - other) ** 2 / other) for one, other in pairs if other > 0]
    return (sum(terms) - len(terms) + 1) / (2 * len(terms) - 2) ** 0.5


def check_distribution(drawn: list[int], top_k: int = VOCABULARY, top_p: float = 1, min_p: float = 0) -> None:
    """Check that tokens follow the probabilities within the limits, and that no other token was drawn."""
    ranked, order = LOGITS.double().softmax(0).sort(descending=True)
    ranked = ranked * (torch.arange(VOCABULARY) < top_k)
    ranked = ranked * (ranked >= min_p * ranked[0]) / ranked.sum()
    ranked = ranked * (ranked.cumsum(0) - ranked < top_p)
    expected = torch.zeros(VOCABULARY).double().scatter(0, order, ranked / ranked.sum())
    found = torch.bincount(torch.tensor(drawn), minlength=VOCABULARY)
    assert found[expected == 0].sum() == 0
    assert abs(chi_square(found[expected > 0], len(drawn) * expected[expected > 0])) < 4


LIMITS = [{}, {"top_k": 30}, {"top_p": 0.7}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.9}]


@pytest.mark.parametrize("across", ["seeds", "positions"])
@pytest.mark.parametrize("limits", LIMITS)
def test_tokens_follow_the_probabilities(across, limits):
    pairs = [(7, at) if across == "positions" else (at, 7) for at in range(1, DRAWS + 1)]
    check_distribution(tokens([request(seed, position, **limits) for seed, position in pairs]), **limits)


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("limits", LIMITS[:-1])  # SGLang's top-p counts the tokens that its top-k leaves out
def test_tokens_of_sglang_follow_the_probabilities(seeded, limits):
    info = SimpleNamespace(
        sampling_seed=torch.arange(DRAWS) if seeded else torch.full((DRAWS,), -1),
        top_ks=torch.full((DRAWS,), limits.get("top_k", 1 << 30)),
        top_ps=torch.full((DRAWS,), limits.get("top_p", 1.0)),
        min_ps=torch.full((DRAWS,), limits.get("min_p", 0.0)),
    )
    probs, positions = LOGITS.softmax(0).expand(DRAWS, -1), torch.full((DRAWS,), 7)
    check_distribution(sglang.sample_sglang(probs, info, positions, not limits).tolist(), **limits)


def test_numbers_of_neighboring_seeds_and_positions_are_independent():
    seeds, positions = torch.cartesian_prod(torch.arange(400), torch.arange(400)).unbind(1)
    numbers = uniform(seeds, positions).view(400, 400)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 4 / 12**0.5 / 400
    centered = numbers - 0.5
    for other in (centered.roll(1, 0), centered.roll(1, 1), centered.T, centered.roll((1, -1), (0, 1))):
        assert abs((centered * other).mean()) < 4 / 12 / 400
    assert len(numbers.unique()) == 160_000


def test_the_numbers_of_a_seed_do_not_change():
    """A run that resumes with a later version, or on another device, draws the same numbers."""
    numbers = uniform(torch.tensor([0, 7, 2**31 - 1, -3]), torch.tensor([0, 5, 40_000, 1]))
    assert numbers.tolist() == [0.28176129772258496, 0.34805850157913476, 0.7066570004389502, 0.490536849486921]


@pytest.mark.parametrize("number", [0.0, 2.0**-60, 0.5, 1 - 2.0**-53, 1.0])
def test_tokens_without_probability_are_never_chosen(number):
    """The first and last of them would be at the ends of the cumulative sum. A product may be rounded up to the sum."""
    weights = torch.rand(50, 5000, generator=torch.Generator().manual_seed(3))
    weights[weights < 0.9] = 0
    weights[:, :300] = weights[:, -300:] = 0
    chosen = choose_tokens(weights, torch.full((50,), number, dtype=torch.float64))
    assert (weights.gather(1, chosen[:, None]) > 0).all()
    if number in (0.0, 1 - 2.0**-53, 1.0):
        ends = weights.double().cumsum(1) > (0 if number == 0 else weights.double().sum(1, True) * (1 - 1e-12))
        assert chosen.tolist() == ends.int().argmax(1).tolist()


def test_a_token_does_not_depend_on_the_batch():
    """Neither on the rows around it, nor on their number, nor on other requests' seeds, limits and temperatures."""
    alone = [tokens([request(seed, 10 + seed)])[0] for seed in range(40)]
    together = [request(seed, 10 + seed) for seed in range(40)]
    assert tokens(together) == alone and len(set(alone)) > 10
    assert tokens(together[::-1]) == alone[::-1]
    others = [request(None), request(3, temperature=0), request(3, top_k=5), request(4, top_p=0.3), request(5, min_p=1)]
    mixed = tokens([row for one in together for row in (one, *others)])
    assert mixed[:: len(others) + 1] == alone


def test_requests_without_a_seed_draw_new_numbers():
    unseeded = [request(None) for _ in range(20)]
    assert tokens([*unseeded, request(1)]) != tokens([*unseeded, request(1)])
    assert tokens(unseeded) != tokens(unseeded)


def test_greedy_requests_take_the_most_likely_token():
    greedy = [request(seed, temperature=0) for seed in (None, 1)]
    assert tokens(greedy) == tokens([*greedy, request(1)])[:2] == [LOGITS.argmax()] * 2


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_log_probs_are_those_of_the_logits(mode):
    requests = [request(seed, temperature=0.5, top_k=40) for seed in range(30)]
    output = sampled(requests, logprobs_mode=mode)
    kept = LOGITS.sort().values[-40] <= LOGITS
    logits = LOGITS if mode == "raw_logprobs" else (LOGITS / 0.5).where(kept, -torch.inf)
    expected = logits.log_softmax(0)[output.sampled_token_ids[:, 0].long()]
    assert output.logprobs_tensors.logprobs[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_continued_request_draws_the_numbers_of_a_longer_one():
    """Prompt and reply of an interrupted request are the prompt of the next one."""
    whole = [tokens([request(9, 5, output)])[0] for output in range(20)]
    assert [tokens([request(9, 5 + output)])[0] for output in range(20)] == whole
    assert len(set(whole)) > 10


def test_a_discarded_sample_leaves_the_next_one_as_it_is():
    """After each part of a prompt vLLM discards a sample, and moves the generator's offset back by 4."""
    one, other = request(11), request(11)
    tokens([one])
    one.generator.set_offset(one.generator.get_offset() - 4)
    assert tokens([one]) == tokens([other])


def test_the_generator_of_a_request_draws_as_one_of_its_seed():
    """Speculative decoding draws from it."""
    own = torch.Generator().manual_seed(12)
    assert torch.equal(torch.rand(3, generator=request(12).generator), torch.rand(3, generator=own))


@pytest.mark.parametrize("version", ["0.24.0", "0.28.0", "0.28.0+cpu"])
def test_tested_versions_are_accepted(version):
    check_vllm(version)


def test_untested_version_raises_config_error_naming_the_tested_ones():
    with pytest.raises(ConfigError, match=r"vllm 0\.29\.0.*0\.24\.0, 0\.28\.0.*make setup"):
        check_vllm("0.29.0+cpu")
    with pytest.raises(ConfigError, match=r"sglang 0\.6\.0.*0\.5\.12.*make setup-sglang"):
        sglang.check_sglang("0.6.0")

import asyncio
import dataclasses
import math
import random

import pytest
import torch

from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.engine.local import LocalEngine
from gongfu.engine.local.cache import common_prefix
from gongfu.engine.local.draw import draw, pick
from gongfu.engine.protocol import Engine, LoraSpec, OptimParams, SampleRequest

BOUND = 1e-4  # largest difference of a log-prob in float32
SPEC = LoraSpec(rank=4, alpha=8.0)


def make(folder, tmp_path, **options):
    engine = LocalEngine(folder, store=tmp_path, threads=1, **options)
    for name, targets in (("actor", SPEC.targets), ("proposer", ("q_proj", "v_proj", "down_proj"))):
        engine.create_adapter(name, LoraSpec(rank=4, alpha=8.0, targets=targets, seed=len(name)))
        disturb(engine, name)
    engine.sync()
    return engine


def disturb(engine, name, lr=0.05):
    """One big step, so that the adapter changes what the model says."""
    rows = [Row("d", tuple(range(5, 15)), (False, *(True,) * 9))]
    engine.forward_backward(rows, lambda rows, lps: (-lps[0].sum(), {}), adapter=name)
    engine.optim_step(OptimParams(lr=lr), adapter=name)


def prompt(seed, length):
    rng = random.Random(seed)
    return tuple(rng.randrange(5, 59) for _ in range(length))


def ask(engine, requests):
    answers = asyncio.run(engine.sample(requests))
    for answer in answers:
        if isinstance(answer, EngineError):
            raise answer
    return answers


def rescore(engine, request, sample):
    row = Row("x", request.prompt + sample.tokens, (False,) * len(request.prompt) + (True,) * len(sample.tokens))
    return engine.logprobs([row], adapter=request.adapter)[0].tolist()


@pytest.fixture(scope="module")
def engines(tiny_folder, tmp_path_factory):
    """The fast and the general engine with the same adapters."""
    return [make(tiny_folder, tmp_path_factory.mktemp("store"), fast=fast) for fast in (True, False)]


def test_it_is_an_engine_and_chooses_its_forward(engines):
    assert all(isinstance(engine, Engine) for engine in engines)
    assert [engine.fast for engine in engines] == [True, False]


@pytest.mark.parametrize("which", [0, 1], ids=["fast", "general"])
@pytest.mark.parametrize("adapter", [None, "actor", "proposer"])
def test_samples_carry_the_trainers_logprobs_with_and_without_the_prefix_cache(engines, which, adapter):
    engine = engines[which]
    engine.sync()
    requests = [SampleRequest(prompt(i, 10 + 7 * i), adapter, seed=i, max_tokens=12, session=f"s{i}") for i in range(5)]
    for _ in range(3):
        answers = ask(engine, requests)
        for request, (sample,) in zip(requests, answers, strict=True):
            assert sample.logprobs == pytest.approx(rescore(engine, request, sample), abs=BOUND)
        requests = [
            SampleRequest(r.prompt + s.tokens + prompt(9, 3 + i), adapter, seed=i, max_tokens=12, session=r.session)
            for i, (r, (s,)) in enumerate(zip(requests, answers, strict=True))
        ]


def test_the_fast_forward_equals_the_general_one(engines):
    requests = [
        SampleRequest(prompt(i, 5 + 11 * (i % 4)), (None, "actor", "proposer")[i % 3], seed=i, max_tokens=3 + i, n=1 + i % 2)
        for i in range(9)
    ]
    fast, general = (ask(engine, requests) for engine in engines)
    for a, b in zip(fast, general, strict=True):
        assert [s.tokens for s in a] == [s.tokens for s in b]
        for s, t in zip(a, b, strict=True):
            assert s.logprobs == pytest.approx(t.logprobs, abs=BOUND)


def test_adapters_change_what_is_said(engines):
    request = [
        SampleRequest(prompt(1, 9), adapter, seed=0, max_tokens=1, temperature=0) for adapter in (None, "actor", "proposer")
    ]
    logprobs = [a[0].logprobs[0] for a in ask(engines[0], request)]
    assert len({round(x, 3) for x in logprobs}) == 3


@pytest.mark.parametrize("fast", [True, False])
def test_the_sampler_serves_published_weights_only(tiny_folder, tmp_path, fast):
    engine = make(tiny_folder, tmp_path, fast=fast)
    request = SampleRequest(prompt(0, 12), "actor", seed=0, temperature=0, max_tokens=4, session="s")
    before = ask(engine, [request])[0][0]
    trained = rescore(engine, request, before)
    disturb(engine, "actor", lr=0.1)
    assert rescore(engine, request, before) != pytest.approx(trained, abs=0.01)
    again = ask(engine, [request])[0][0]
    assert again.logprobs == pytest.approx(before.logprobs, abs=BOUND) and again.version == before.version
    assert engine.sync() == before.version + 1
    after = ask(engine, [request])[0][0]
    assert after.version == before.version + 1
    assert after.logprobs == pytest.approx(rescore(engine, request, after), abs=BOUND)
    assert after.logprobs != pytest.approx(before.logprobs, abs=0.01)


@pytest.mark.parametrize("which", [0, 1], ids=["fast", "general"])
def test_sessions_and_forks_save_work_but_change_nothing(engines, which):
    engine = engines[which]
    engine.sync()
    first = [SampleRequest(prompt(0, 30), "actor", seed=i, max_tokens=6, stop=(999,), session=f"s{i}") for i in range(4)]
    before = engine.stats()
    answers = ask(engine, first)
    used = {key: value - before[key] for key, value in engine.stats().items()}
    assert used["prompt_tokens"] == 120 and used["reused_tokens"] == 90  # one prefill, three forks
    assert used["sample_processed_tokens"] == 30 + 4 * 5 and used["sampled_tokens"] == 24
    second = [
        SampleRequest(r.prompt + s.tokens + prompt(5, 4), "actor", seed=7, max_tokens=6, stop=(999,), session=r.session)
        for r, (s,) in zip(first, answers, strict=True)
    ]
    before = engine.stats()
    cached = ask(engine, second)
    used = {key: value - before[key] for key, value in engine.stats().items()}
    assert used["reused_tokens"] == 4 * 35  # all but the last sampled token was stored
    engine.sync()
    plain = ask(engine, [SampleRequest(r.prompt, "actor", seed=7, max_tokens=6, stop=(999,)) for r in second])
    for a, b in zip(cached, plain, strict=True):
        assert a[0].tokens == b[0].tokens
        assert a[0].logprobs == pytest.approx(b[0].logprobs, abs=BOUND)


def test_a_session_that_turns_elsewhere_keeps_only_the_common_part(engines):
    engine = engines[0]
    engine.sync()
    ask(engine, [SampleRequest(prompt(0, 30), None, seed=0, max_tokens=3, session="s")])
    turned = prompt(0, 20) + prompt(1, 15)
    before = engine.stats()["reused_tokens"]
    sample = ask(engine, [SampleRequest(turned, None, seed=0, max_tokens=5, session="s")])[0][0]
    assert engine.stats()["reused_tokens"] - before == common_prefix(prompt(0, 30), turned)
    assert sample.logprobs == pytest.approx(rescore(engine, SampleRequest(turned, None, 0), sample), abs=BOUND)


def test_one_session_under_two_adapters_never_shares_its_cache(engines):
    engine = engines[0]
    requests = [
        SampleRequest(prompt(3, 20), adapter, seed=1, max_tokens=5, session="s") for adapter in ("actor", None, "proposer")
    ]
    ask(engine, requests)
    for request, (sample,) in zip(requests, ask(engine, requests), strict=True):
        assert sample.logprobs == pytest.approx(rescore(engine, request, sample), abs=BOUND)


def test_requests_of_one_session_in_one_call_begin_with_a_copy_of_what_they_share_with_it(engines):
    """Answers from many places of a conversation: each prompt is an earlier one's beginning, and a little more."""
    one, two = engines
    told = prompt(0, 90)
    ask(one, [SampleRequest(told, "actor", seed=0, max_tokens=3, session="s")])
    requests = [SampleRequest((*told[:n], 7, 8), "actor", seed=n, max_tokens=6, session="s") for n in (80, 60, 40, 20)]
    before = one.stats()
    answers = ask(one, requests)
    assert one.stats()["reused_tokens"] - before["reused_tokens"] == 80 + 60 + 40 + 20
    assert one.stats()["sample_processed_tokens"] - before["sample_processed_tokens"] < 4 * (2 + 6) + 1
    alone = [ask(two, [SampleRequest(r.prompt, "actor", seed=r.seed, max_tokens=6)])[0] for r in requests]
    for (found,), (wanted,) in zip(answers, alone, strict=True):
        assert found.tokens == wanted.tokens and found.logprobs == pytest.approx(wanted.logprobs, abs=BOUND)


def test_the_same_session_twice_in_one_call(engines):
    requests = [SampleRequest(prompt(k, 20), None, seed=k, max_tokens=5, session="twice") for k in (0, 1, 0)]
    for request, (sample,) in zip(requests, ask(engines[0], requests), strict=True):
        assert sample.logprobs == pytest.approx(rescore(engines[0], request, sample), abs=BOUND)


def test_a_small_cache_evicts_and_splits_but_changes_nothing(tiny_folder, tmp_path, engines):
    small = make(tiny_folder, tmp_path, cache_tokens=256, score_batch_tokens=100)
    requests = [SampleRequest(prompt(i, 20 + 9 * i), "actor", seed=i, max_tokens=8, session=f"s{i}") for i in range(8)]
    engines[0].sync()
    for _ in range(2):
        for a, b in zip(ask(small, requests), ask(engines[0], requests), strict=True):
            assert a[0].tokens == b[0].tokens
            assert a[0].logprobs == pytest.approx(b[0].logprobs, abs=BOUND)
        requests = [SampleRequest((*r.prompt, 7, 8), "actor", seed=r.seed, max_tokens=8, session=r.session) for r in requests]
        assert small._cache.rows * small._cache.capacity <= 256
    assert small.stats()["reused_tokens"] < engines[0].stats()["reused_tokens"]


def test_the_cache_stays_within_its_limit_whatever_comes(tiny_folder, tmp_path):
    engine = make(tiny_folder, tmp_path, cache_tokens=1024)
    cache, rng = engine._cache, random.Random(0)
    for turn in range(12):
        n, length = rng.choice([(2, 300), (14, 30), (6, 90), (1, 480)])
        requests = [
            SampleRequest(prompt(i, length), "actor", seed=turn, max_tokens=5, session=f"s{rng.randrange(20)}")
            for i in range(n)
        ]
        for request, (sample,) in zip(requests, ask(engine, requests), strict=True):
            assert sample.logprobs == pytest.approx(rescore(engine, request, sample), abs=BOUND)
        assert cache.rows * cache.capacity <= 1024
    assert engine.stats()["reused_tokens"] > 0


def test_rows_that_finish_early_leave_gaps_and_the_others_go_on_undisturbed(engines):
    engine = engines[0]
    lengths = [1, 9, 2, 3, 9, 1, 4, 2, 9, 5]
    requests = [
        SampleRequest(prompt(i, 8 + i), "actor", seed=i, max_tokens=n, stop=(999,), session=f"g{i}")
        for i, n in enumerate(lengths)
    ]
    together = ask(engine, requests)
    assert [len(a[0].tokens) for a in together] == lengths
    for request, (sample,) in zip(requests, together, strict=True):
        assert sample.logprobs == pytest.approx(rescore(engine, request, sample), abs=BOUND)


@pytest.mark.parametrize("which", [0, 1], ids=["fast", "general"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_makes_answers_sooner_and_no_other(engines, which, temperature):
    engine = engines[which]
    engine.sync()
    plain = [
        SampleRequest(prompt(i, 9 + 5 * i), "actor", seed=i, max_tokens=6 + 5 * i, temperature=temperature, session=f"d{i}")
        for i in range(6)
    ]
    answers = [answer for (answer,) in ask(engine, plain)]
    said = [answer.tokens for answer in answers]
    near = [(*tokens[:3], 58, *tokens[4:]) for tokens in said]  # one token exchanged
    late = [prompt(90 + i, 4) + tokens[2:] for i, tokens in enumerate(said)]  # another beginning, and shifted
    wrong = [prompt(80 + i, 40) for i in range(6)]
    for drafts in (said, near, late, wrong, [said[0], near[1], (), wrong[3], late[4], said[5] + said[5]]):
        engine.sync()
        before = engine.stats()
        drafted = ask(engine, [dataclasses.replace(r, draft=tuple(d)) for r, d in zip(plain, drafts, strict=True)])
        used = {name: value - before[name] for name, value in engine.stats().items()}
        for (sample,), answer in zip(drafted, answers, strict=True):
            assert (sample.tokens, sample.stop) == (answer.tokens, answer.stop)
            assert sample.logprobs == pytest.approx(answer.logprobs, abs=BOUND)
        assert used["sampled_tokens"] == sum(map(len, said))
        if drafts is said:
            assert used["draft_hits"] == used["drafted_tokens"] > 0.6 * used["sampled_tokens"]
        elif drafts is near or drafts is late:
            assert 0 < used["draft_hits"] < used["drafted_tokens"]
        more = [dataclasses.replace(r, prompt=r.prompt + a.tokens + prompt(7, 3)) for r, a in zip(plain, answers, strict=True)]
        for request, (sample,) in zip(more, ask(engine, more), strict=True):  # the cache holds what was said, not the guesses
            assert sample.logprobs == pytest.approx(rescore(engine, request, sample), abs=BOUND)


@pytest.mark.parametrize("drafted", [False, True])
def test_a_response_ends_behind_the_last_tokens_that_are_read(engines, drafted):
    engine = engines[0]
    plain = [SampleRequest(prompt(i, 9), "actor", seed=i, max_tokens=12, stop=(999,), session=f"u{i}") for i in range(4)]
    said = [answer.tokens for (answer,) in ask(engine, plain)]
    asked = [dataclasses.replace(r, until=t[4:6], draft=t if drafted else ()) for r, t in zip(plain, said, strict=True)]
    for (sample,), tokens, request in zip(ask(engine, asked), said, asked, strict=True):
        end = next(i for i in range(2, 13) if tokens[i - 2 : i] == request.until)
        assert (sample.tokens, sample.stop) == (tokens[:end], "stop")
    lone = dataclasses.replace(plain[0], until=(said[0][3], 998))
    assert ask(engine, [lone])[0][0].tokens == said[0], "half of it is no end"


def test_stop_tokens_lengths_and_versions(engines):
    engine = engines[0]
    free = ask(engine, [SampleRequest(prompt(2, 10), "actor", seed=5, max_tokens=10, stop=(999,))])[0][0]
    assert (free.stop, len(free.tokens), free.version) == ("length", 10, engine.version)
    end = free.tokens[4]
    cut = ask(engine, [SampleRequest(prompt(2, 10), "actor", seed=5, max_tokens=10, stop=(end,))])[0][0]
    assert cut.stop == "stop" and cut.tokens == free.tokens[: free.tokens.index(end) + 1]


def test_the_tokenizers_end_token_stops_by_default(engines):
    engine = engines[0]
    (end,) = engine.tokenizer.stop_ids
    samples = ask(engine, [SampleRequest(prompt(2, 10), "actor", seed=1, max_tokens=60, n=20)])[0]
    stopped = [s for s in samples if s.stop == "stop"]
    assert stopped and all(s.tokens[-1] == end and end not in s.tokens[:-1] for s in stopped)


def test_greedy_takes_the_likeliest_token_and_reports_temperature_one(engines):
    engine = engines[0]
    request = SampleRequest(prompt(4, 10), "actor", seed=0, max_tokens=5, temperature=0, stop=(999,))
    (sample,) = ask(engine, [request])[0]
    assert sample.logprobs == pytest.approx(rescore(engine, request, sample), abs=BOUND)
    rows = [Row(str(t), (*request.prompt, t), (False,) * 10 + (True,)) for t in range(engine._base.vocab_size)]
    first = torch.cat(engine.logprobs(rows, adapter="actor"))
    assert int(first.argmax()) == sample.tokens[0]
    assert float(first.exp().sum()) == pytest.approx(1, abs=1e-4)


def test_temperature_heats_the_samples_and_their_logprobs(engines):
    engine = engines[0]
    request = SampleRequest(prompt(4, 10), "actor", seed=0, max_tokens=6, temperature=2.0, stop=(999,))
    (sample,) = ask(engine, [request])[0]
    row = Row("x", request.prompt + sample.tokens, (False,) * 10 + (True,) * 6, temperature=2.0)
    assert sample.logprobs == pytest.approx(engine.logprobs([row], adapter="actor")[0].tolist(), abs=BOUND)


def test_sample_frequencies_follow_the_model(engines):
    engine = engines[0]
    n = 3000
    samples = ask(engine, [SampleRequest(prompt(6, 10), "actor", seed=11, max_tokens=1, n=n)])[0]
    likeliest = max(samples, key=lambda s: s.logprobs)
    p = math.exp(likeliest.logprobs[0])
    seen = sum(s.tokens == likeliest.tokens for s in samples) / n
    assert abs(seen - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_bad_requests_get_their_own_error(engines):
    good = SampleRequest(prompt(0, 5), "actor", seed=0, max_tokens=2)
    bad = {
        "no adapter 'critic' .known: actor, proposer": SampleRequest((5, 6), "critic", seed=0),
        "empty": SampleRequest((), None, seed=0),
        "512 positions": SampleRequest(prompt(0, 500), None, seed=0, max_tokens=13),
        "outside the vocabulary": SampleRequest((5, 10**6), None, seed=0),
        "at least one token": SampleRequest((5,), None, seed=0, choices=((5,), ())),
        "max_tokens": SampleRequest((5,), None, seed=0, max_tokens=0),
    }
    answers = asyncio.run(engines[0].sample([*bad.values(), good]))
    for answer, message in zip(answers, bad, strict=False):
        with pytest.raises(EngineError, match=message):
            raise answer
    assert len(answers[-1][0].tokens) in (1, 2)


def test_callers_that_wait_together_share_a_batch(engines):
    engine = engines[0]
    requests = [SampleRequest(prompt(0, 30), "actor", seed=i, max_tokens=4) for i in range(6)]
    alone = [ask(engine, [r])[0] for r in requests]
    before = engine.stats()["sample_processed_tokens"]

    async def gather():
        return await asyncio.gather(*(engine.sample([r]) for r in requests))

    together = asyncio.run(gather())
    assert [a[0][0].tokens for a in together] == [a[0].tokens for a in alone]
    assert engine.stats()["sample_processed_tokens"] - before < 2 * 30  # one prefill for all


def test_draw_inverts_the_cumulative_distribution():
    logits = torch.log(torch.tensor([[0.0, 0.2, 0.0, 0.3, 0.5, 0.0]])).repeat(6, 1)
    tokens, logprobs = draw(logits, [1.0] * 6, [0.0, 0.19, 0.21, 0.49, 0.51, 1.0])
    assert tokens == [1, 1, 3, 3, 4, 4]  # never one of probability 0
    assert logprobs == pytest.approx([math.log(p) for p in (0.2, 0.2, 0.3, 0.3, 0.5, 0.5)], abs=1e-5)


def test_draw_mixes_temperatures_in_one_batch():
    logits = torch.tensor([[0.0, 1.0, 3.0]]).repeat(3, 1)
    tokens, logprobs = draw(logits.clone(), [0.0, 1.0, 4.0], [0.0, 0.0, 0.99])
    assert tokens == [2, 0, 2]
    expected = [float((logits[0] / t).log_softmax(-1)[k]) for t, k in ((1, 2), (1, 0), (4, 2))]
    assert logprobs == pytest.approx(expected, abs=1e-6)


def test_pick_draws_from_the_softmax_of_sums():
    sums = [math.log(0.1), math.log(0.4)]  # normalised: 0.2 and 0.8
    assert [pick(sums, 1.0, u) for u in (0.0, 0.19, 0.21, 0.999999)] == [0, 0, 1, 1]
    assert pick(sums, 0.0, 0.0) == 1
    assert [pick(sums, 0.5, u) for u in (0.05, 0.07)] == [0, 1]  # 1/17 and 16/17


def test_common_prefix():
    for a, b, n in (((), (1,), 0), ((1, 2, 3), (1, 2, 3, 4), 3), ((1, 2, 3), (1, 9, 3), 1), ((7,), (8,), 0)):
        assert common_prefix(a, b) == common_prefix(b, a) == n

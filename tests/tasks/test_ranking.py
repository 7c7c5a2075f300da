"""The ranking core against brute force, on scores made to break bucketing: ties, infinities, huge and tiny ranges."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer.tasks import logit_separation, single_logit

# Scores that break the buckets must meet the counts themselves: the public measures show only sums of them.
from lastlayer.tasks._ranking import count_at_least, narrow_blocks, pairs_won, rank_positives, true_positives_needed

from . import reference

finite = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, -1e-45, 3e38, -3e38, 1.0000001, 1e-3])
special = st.one_of(finite, st.floats(width=32, allow_nan=False), st.sampled_from([float("inf"), float("-inf")]))


@settings(deadline=None, max_examples=100)
@given(st.data(), st.sampled_from([torch.float32, torch.float64]))
def test_counts_equal_brute_force(data, dtype):
    num_rows, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 30))
    rows = torch.tensor(
        data.draw(st.lists(special, min_size=num_rows * length, max_size=num_rows * length)), dtype=dtype
    ).view(num_rows, length)
    queries, start = [], [0]
    for row in rows:
        some = data.draw(st.lists(st.one_of(st.sampled_from(row.tolist()), special), min_size=1, max_size=9))
        queries += sorted(some)
        start.append(len(queries))
    query = torch.tensor(queries, dtype=dtype)
    counts = count_at_least(rows, query, torch.tensor(start))
    expected = [int((rows[b] >= query[i]).sum()) for b in range(num_rows) for i in range(start[b], start[b + 1])]
    assert counts.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1e-30, 1.0, 1e30])
def test_counts_of_long_rows(dtype, spread):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(3, 5000, generator=generator, dtype=torch.float64).mul(spread).to(dtype)
    rows[1] = rows[1].sign()  # three values in all
    rows[2, 0] = 1e38  # an outlier that squeezes the others into one bucket
    queries, _ = rows[:, :400].sort(dim=1)
    counts = count_at_least(rows, queries.reshape(-1), torch.tensor([0, 400, 800, 1200]))
    expected = (rows[:, None, :] >= queries[:, :, None]).sum(-1)
    assert torch.equal(counts.view(3, 400), expected)


@pytest.mark.parametrize("queries", [[0.0, -0.0], [-0.0, 0.0], [0.0], [-0.0]])
def test_both_zeros_are_one_value(queries):
    rows = torch.tensor([[0.0, -0.0, 1.0, -1.0]])
    counts = count_at_least(rows, torch.tensor(queries), torch.tensor([0, len(queries)]))
    assert counts.tolist() == [3] * len(queries)


def test_ranks_share_ties_and_skip_absent_classes():
    logits, target = reference.problem(60, 5, levels=4)
    target[target == 2] = 3
    ranks = rank_positives(logits, target)
    assert 2 not in ranks.row.tolist()
    seen = []
    for k in (0, 1, 3, 4):
        scores, own = logits[:, k], logits[target == k, k].sort().values
        seen += [(k, int((own >= s).sum()), int((scores >= s).sum())) for s in own]
    assert seen == list(zip(ranks.row.tolist(), ranks.true.tolist(), ranks.all.tolist(), strict=True))


def test_class_blocks_do_not_change_the_answer():
    """More than 2^21 logits are ranked in several blocks of classes, which fit in the cache of a CPU."""
    logits, target = reference.problem(300, 7100, levels=8)
    assert [block.shape[1] for block in narrow_blocks(logits)] == [6990, 110]
    for measure in (single_logit, logit_separation):
        whole, narrow = measure(logits, target), measure(lambda: logits.split(2000, dim=1), target)
        for name, value in vars(whole).items():
            torch.testing.assert_close(getattr(narrow, name), value, rtol=0, atol=0, equal_nan=True, msg=name)


@given(st.integers(1, 3000), st.integers(1, 100))
def test_true_positives_needed_is_the_exact_ceiling(positives, percent):
    needed = true_positives_needed(torch.tensor([positives]), percent / 100)
    assert needed.item() == -(-percent * positives // 100)


@settings(deadline=None)
@given(st.lists(special, max_size=20), st.lists(special, max_size=20))
def test_pairs_won_equals_all_pairs(scores, others):
    won = pairs_won(torch.tensor(scores, dtype=torch.float32), torch.tensor(others, dtype=torch.float32))
    single = [torch.tensor(v, dtype=torch.float32).tolist() for v in (scores, others)]
    assert won == 2 * reference.pairs_won(*single)


def test_pairs_won_compares_dtypes_without_rounding():
    almost_one = 1 - 2**-40
    assert pairs_won(torch.tensor([1.0], dtype=torch.float16), torch.tensor([almost_one], dtype=torch.float64)) == 2

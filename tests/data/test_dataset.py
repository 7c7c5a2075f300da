"""Split and Dataset: what they accept, what they refuse, statistics."""

import pytest
import torch

from lastlayer.data import Dataset, Split, statistics


def split(*labels: int, size: int = 2) -> Split:
    return Split(torch.rand(len(labels), size), torch.tensor(labels))


def test_split_refuses_wrong_types_and_shapes() -> None:
    with pytest.raises(TypeError, match=r"target must be int64 .* not torch.int32"):
        Split(torch.rand(2, 3), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"not torch.float32 \(2, 3, 4\)"):
        Split(torch.rand(2, 3, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"features must be floating point, not torch.uint8"):
        Split(torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"images must be uint8"):
        Split(torch.zeros(2, 1, 3, 3, dtype=torch.int32), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"3 inputs but 2 labels"):
        Split(torch.rand(3, 1), torch.zeros(2, dtype=torch.int64))


def test_class_without_training_samples_is_named() -> None:
    with pytest.raises(ValueError, match=r"toy: no training samples for 1 of 3 classes: 1 \(cat\)"):
        Dataset("toy", split(0, 2), split(0), ("dog", "cat", "cow"))


@pytest.mark.parametrize("label", [-1, 2])
def test_labels_out_of_range_are_named(label: int) -> None:
    with pytest.raises(ValueError, match=f"toy: test label {label} at sample 1 is out of range.*0 to 1"):
        Dataset("toy", split(0, 1), split(0, label), ("a", "b"))


def test_shapes_of_the_splits_must_agree() -> None:
    with pytest.raises(ValueError, match=r"train inputs are \(2,\) but test inputs are \(3,\)"):
        Dataset("toy", split(0, 1), split(0, size=3), ("a", "b"))


def test_empty_split_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there are no test samples"):
        Dataset("toy", split(0, 1), split(0).select(torch.tensor([], dtype=torch.int64)), ("a", "b"))


def test_unknown_labels_are_not_checked() -> None:
    dataset = Dataset("toy", split(0, 1), split(1), ("a", "b"), unknown=split(7))
    assert dataset.to("cpu").unknown is not None
    assert dataset.num_classes == 2
    assert dataset.in_shape == (2,)
    assert dataset.train_counts.tolist() == [1, 1]


def test_notes_accumulate() -> None:
    dataset = Dataset("toy", split(0, 1), split(1), ("a", "b"))
    assert dataset.replace("one").replace(None).replace("two", name="other").notes == ("one", "two")


def test_statistics_of_bytes_match_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50, 3, 5, 4), generator=generator).to(torch.uint8)
    images[:, 1] = 7
    mean, std = statistics(images, 255.0)
    scaled = images.double() / 255
    torch.testing.assert_close(torch.tensor(mean).double(), scaled.mean((0, 2, 3)), rtol=1e-6, atol=0)
    reference = scaled.std((0, 2, 3), unbiased=False)
    assert std[1] == 1.0
    assert std[0] == pytest.approx(reference[0].item())
    assert std[2] == pytest.approx(reference[2].item())


def test_statistics_of_features_are_by_entry() -> None:
    x = torch.randn(20, 3)
    mean, std = statistics(x)
    assert mean == pytest.approx(x.double().mean(0).tolist())
    assert std == pytest.approx(x.double().std(0, unbiased=False).tolist())


def test_printed_form_is_short() -> None:
    dataset = Dataset("toy", split(0, 1), split(1), ("a", "b"))
    assert repr(dataset) == "Dataset(toy: 2 train, 1 test, 2 classes, inputs torch.float32 (2,))"
    assert repr(dataset.train) == "Split(2 samples, torch.float32 (2,))"

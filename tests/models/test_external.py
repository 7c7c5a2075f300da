"""Models from elsewhere: how features are found, and what the errors say."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from lastlayer import models
from lastlayer.models.external import Encoder
from lastlayer.training import ModelChoice, Trial


class TimmLike(nn.Module):
    """A model with the interface of those of timm."""

    def __init__(self, num_classes: int, in_chans: int, pretrained: bool = False) -> None:
        super().__init__()
        self.num_features = 6
        self.pretrained = pretrained
        self.stem = nn.Conv2d(in_chans, 6, 1)
        self.reset_classifier(num_classes)

    def reset_classifier(self, num_classes: int) -> None:
        self.fc = nn.Linear(6, num_classes) if num_classes else nn.Identity()

    def forward_features(self, x: Tensor) -> Tensor:
        return self.stem(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.forward_features(x).mean((2, 3)))


class Featured(nn.Module):
    def __init__(self, in_shape: tuple[int, ...], width: int = 4) -> None:
        super().__init__()
        self.num_features = width
        self.linear = nn.Linear(in_shape[0], width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def classifier(hidden: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(3, hidden), nn.Dropout(0.5), nn.Sequential(nn.ReLU(), nn.Linear(hidden, 10)))


class Several(Featured):
    def __init__(self) -> None:
        super().__init__((3,))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return x, x


class Unused(nn.Sequential):
    """A model that does not use its last nn.Linear."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 8), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self[0](x)


def timm_like() -> nn.Module:
    return TimmLike(10, 3)


def liar() -> nn.Module:
    model = classifier()
    model.num_features = 7
    return model


def not_a_model() -> int:
    return 3


def convolution() -> nn.Module:
    return nn.Conv2d(3, 4, 1)


def activated() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True))


def log_probabilities() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.LogSoftmax(1))


def other_inputs() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 2))


def test_last_linear_is_taken_off() -> None:
    model = models.create(f"{__name__}:classifier", (3,), hidden=7)
    assert model.num_features == 7
    assert model.training
    model.eval()
    x = torch.randn(4, 3)
    torch.testing.assert_close(model(x), model[0](x).clamp(min=0))
    assert model.taken_off == "2.1, 7 to 10"


def test_num_features_is_trusted_and_in_shape_is_passed() -> None:
    model = models.create(f"{__name__}:Featured", (9,), width=2)
    assert model.num_features == 2
    assert isinstance(model.linear, nn.Linear)
    assert model(torch.zeros(3, 9)).shape == (3, 2)


def test_timm_protocol_comes_first() -> None:
    model = models.create(f"{__name__}:timm_like", (3, 4, 4))
    assert isinstance(model.fc, nn.Identity)
    assert model(torch.zeros(2, 3, 4, 4)).shape == (2, 6)


@pytest.mark.parametrize(
    ("path", "in_shape", "message"),
    [
        (f"{__name__}:liar", (3,), r"returns \(2, 10\).*features \(2, 7\)"),
        (f"{__name__}:not_a_model", (3,), "returned int"),
        (f"{__name__}:convolution", (3, 2, 2), "neither `num_features` nor"),
        (f"{__name__}:Several", (3,), "returns tuple, not a tensor"),
        (f"{__name__}:activated", (3,), "last nn.Linear, 0, is no classifier.*number as `num_features`"),
        (f"{__name__}:log_probabilities", (3,), "last nn.Linear, 0, is no classifier"),
        (f"{__name__}:Unused", (3,), "last nn.Linear, 1, is no classifier"),
        (f"{__name__}:other_inputs", (3,), r"does not take inputs of shape \(3,\)"),
        (f"{__name__}:missing", (3,), "no callable 'missing'"),
        ("no_such_package.zoo:net", (3,), "'no_such_package' cannot be imported"),
    ],
)
def test_errors_say_what_is_wrong(path: str, in_shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.create(path, in_shape)


@pytest.mark.parametrize(("name", "package", "extra"), [("timm:x", "timm", "timm"), ("hf:x", "transformers", "hf")])
def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}.*lastlayer\[{extra}\]"):
        models.create(name, (3, 8, 8))


def test_timm_is_called_without_a_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, **options: object) -> nn.Module:
        assert name == "net"
        return TimmLike(**options)  # type: ignore[arg-type]

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    model = models.create("timm:net", (1, 8, 8), pretrained=True)
    assert model.pretrained is True
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 6)


class FakeEncoder(nn.Module):
    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=4)
        self.embedding = nn.Embedding(10, 4)
        self.pooled = pooled

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
    ) -> SimpleNamespace:
        hidden = pixel_values if input_ids is None else self.embedding(input_ids)
        assert hidden is not None
        return SimpleNamespace(last_hidden_state=hidden, pooler_output=hidden.mean(1) if self.pooled else None)


@pytest.mark.parametrize("pretrained", [True, False])
def test_transformers_features(monkeypatch: pytest.MonkeyPatch, pretrained: bool) -> None:
    def from_pretrained(name: str, **options: object) -> nn.Module:
        assert options == {"use_safetensors": True}
        return FakeEncoder(pooled=True)

    fake = SimpleNamespace(
        AutoModel=SimpleNamespace(
            from_pretrained=from_pretrained, from_config=lambda config: FakeEncoder(pooled=False)
        ),
        AutoConfig=SimpleNamespace(from_pretrained=lambda name: "config"),
    )
    monkeypatch.setitem(sys.modules, "transformers", fake)
    model = models.create("hf:some/encoder", (5,), pretrained=pretrained)
    assert model.num_features == 4
    tokens = torch.randint(0, 10, (2, 5))
    embedded = model.encoder.embedding(tokens)
    torch.testing.assert_close(model(tokens), embedded.mean(1) if pretrained else embedded[:, 0])
    assert model(torch.zeros(2, 5, 4)).shape == (2, 4)


def test_tokens_reach_the_encoder_with_mask_and_segments() -> None:
    class Recorder(FakeEncoder):
        def forward(self, **given: Tensor) -> SimpleNamespace:
            self.given = given
            return super().forward(given["input_ids"])

    recorder = Recorder(pooled=True)
    recorder.config.type_vocab_size = 2
    tokens = torch.tensor([[[7, 8, 9, 0], [0, 0, 1, -1]]], dtype=torch.int32)
    Encoder(recorder)(tokens)
    assert recorder.given["input_ids"].tolist() == [[7, 8, 9, 0]]
    assert recorder.given["attention_mask"].tolist() == [[1, 1, 1, 0]]
    assert recorder.given["token_type_ids"].tolist() == [[0, 0, 1, 0]]
    recorder.config.type_vocab_size = 1
    Encoder(recorder)(tokens)
    assert "token_type_ids" not in recorder.given


@pytest.mark.usefixtures("import_path")
def test_a_module_of_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_of_mine.py").write_text(
        "from torch import nn\n"
        "def net(width=3):\n    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))\n"
        "def broken():\n    raise KeyError('oops')\n"
    )
    (tmp_path / "model_of_theirs.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    assert models.create("model_of_mine:net", (4,), width=5).num_features == 5
    models.check_external("model_of_mine:net")
    for name, options, words in (
        ("model_of_mine:nett", {}, r"no callable 'nett' \(did you mean 'net'\?\)"),
        ("model_of_mine:broken", {}, "factory raised KeyError: 'oops'"),
        ("model_of_mine:net", {"widht": 3}, "factory raised TypeError: .*widht"),
        ("model_of_theirs:net", {}, "importing model_of_theirs raised ZeroDivisionError"),
        ("model_of_mine:", {}, "must have the form package.module:factory"),
    ):
        with pytest.raises(ValueError, match=words):
            models.create(name, (4,), **options)


def test_models_from_elsewhere_are_checked_before_anything_is_trained() -> None:
    with pytest.raises(ValueError, match="'no_such_package' cannot be imported"):
        Trial(model=ModelChoice("no_such_package:net")).resolved()
    with pytest.raises(ValueError, match="must name a model of timm"):
        Trial(model=ModelChoice("timm:")).resolved()

"""Models of torchvision, timm, transformers and torch.nn in small sizes, with random weights and data.

entry = ZOO["resnet18"]
module, columns, loss = entry.make()     # columns: one array per argument, then "labels"
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Columns = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Entry:
    name: str
    library: str
    build: Callable[[], nn.Module]
    data: Callable[[int], Columns]  # of a number of examples
    loss: nn.Module | Callable[..., torch.Tensor] | None = field(default_factory=nn.CrossEntropyLoss)
    examples: int = 4
    rate: float = 0.0002  # learning rate
    slow: bool = False  # left out of the tests; the table of the documentation has it


# One model of each family. CI trains these; with $ESPALIER_TEST_ALL set, the tests train all that are not slow.
FAMILIES = (
    "resnet basic",  # convolutions and batch normalization with a residual
    "mobilenet_v3_small",  # depthwise convolutions, squeeze and excitation
    "densenet",  # concatenations
    "swin",  # shifted windows
    "fcn",  # a loss per pixel, ignored pixels
    "timm vit_tiny_patch16_224",
    "timm convnext_atto",
    "bert",  # an encoder with masks
    "gpt2",
    "llama",  # rotary embedding, grouped heads, RMS normalization
    "qwen3",  # normalized queries and keys
    "t5",  # an encoder and a decoder, relative positions
    "lstm words",  # recurrent layers
)

ZOO: dict[str, Entry] = {}


def images(size: int, channels: int = 3, classes: int = 10) -> Callable[[int], Columns]:
    def data(count: int) -> Columns:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(count, channels, size, size, generator=generator)
        return {"x": x, "labels": torch.randint(0, classes, (count,), generator=generator)}

    return data


def tokens(vocabulary: int, length: int, labels: str = "class", classes: int = 3, padded: bool = False, **more: int):
    """Token ids, and labels of one kind: "class", "next" (the tokens themselves), "tokens" (others, some ignored)."""

    def data(count: int) -> Columns:
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(3, vocabulary, (count, length), generator=generator)
        columns = {"input_ids": ids}
        if padded:
            mask = torch.ones_like(ids)
            for row in range(count):
                mask[row, length - row % 3 :] = 0
            columns["input_ids"] = torch.where(mask.bool(), ids, 1)
            columns["attention_mask"] = mask
        if labels == "class":
            columns["labels"] = torch.randint(0, classes, (count,), generator=generator)
        elif labels == "next":
            columns["labels"] = ids
        else:
            shape = (count, more.get("target", length))
            columns["labels"] = torch.randint(3, vocabulary, shape, generator=generator)
            columns["labels"][:, -1] = -100
        return columns

    return data


def add(name: str, library: str, build: Callable[[], nn.Module], data: Callable[[int], Columns], **more: Any) -> None:
    ZOO[name] = Entry(name, library, build, data, **more)


def comparable(module: nn.Module) -> nn.Module:
    """A module whose results do not hang on random numbers or on rounding.

    Masks of dropout are other random numbers here than in PyTorch. Small images leave few values in the last layers, of
    a variance near zero: batch normalization would enlarge the rounding of either side. Around 0 rounding decides
    which values a ReLU lets pass: batch normalization moves them away from there.
    """
    for part in module.modules():
        if isinstance(part, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
        if type(part).__name__ == "StochasticDepth":
            part.p = 0.0
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eps = 0.1
            if part.affine:
                nn.init.constant_(part.bias, 2.5)
    return module


def _vision(name: str, size: int = 64, slow: bool = False, **arguments: Any) -> None:
    def build() -> nn.Module:
        import torchvision

        return comparable(getattr(torchvision.models, name)(weights=None, num_classes=10, **arguments))

    add(name, "torchvision", build, images(size), slow=slow)


def _from_class(name: str, module: str, cls: str, size: int, **arguments: Any) -> None:
    """A torchvision model by its class, with fewer layers than any named one."""

    def build() -> nn.Module:
        import importlib

        found = importlib.import_module(f"torchvision.models.{module}")
        return comparable(getattr(found, cls)(num_classes=10, **arguments))

    add(name, "torchvision", build, images(size))


def _resnet(name: str, block: str, layers: list[int], **arguments: Any) -> None:
    def build() -> nn.Module:
        from torchvision.models import resnet

        return comparable(resnet.ResNet(getattr(resnet, block), layers, num_classes=10, **arguments))

    add(name, "torchvision", build, images(64))


def _vgg(batch_norm: bool) -> nn.Module:
    from torchvision.models import vgg

    layers = [16, "M", 32, "M", 64, 64, "M", 64, 64, "M", 64, 64, "M"]
    model = vgg.VGG(vgg.make_layers(layers, batch_norm), num_classes=10)
    model.classifier[0], model.classifier[3] = nn.Linear(64 * 49, 64), nn.Linear(64, 64)
    model.classifier[6] = nn.Linear(64, 10)
    return comparable(model)


def _alexnet() -> nn.Module:
    from torchvision.models import AlexNet

    model = AlexNet(num_classes=10)
    model.classifier[1], model.classifier[4] = nn.Linear(256 * 36, 64), nn.Linear(64, 64)
    model.classifier[6] = nn.Linear(64, 10)
    return comparable(model)


def _torchvision() -> None:
    _vision("resnet18", 64, slow=True)
    _resnet("resnet basic", "BasicBlock", [1, 1, 1, 1])
    _resnet("resnet bottleneck", "Bottleneck", [1, 1, 1, 1])
    _resnet("resnext 32x4d", "Bottleneck", [1, 1, 1, 1], groups=32, width_per_group=4)
    for name, batch_norm in (("vgg", False), ("vgg bn", True)):
        add(name, "torchvision", functools.partial(_vgg, batch_norm), images(32))
    add("alexnet", "torchvision", _alexnet, images(64))
    _vision("squeezenet1_0", 64)
    _vision("squeezenet1_1", 64)
    _vision("mobilenet_v2", 64)
    _vision("mobilenet_v3_small", 64)
    _vision("mnasnet0_5", 64)
    _vision("shufflenet_v2_x0_5", 64)
    _vision("efficientnet_b0", 64, slow=True)
    _vision("regnet_y_400mf", 64, slow=True)
    _vision("regnet_x_400mf", 64, slow=True)
    _from_class("densenet", "densenet", "DenseNet", 32, growth_rate=8, block_config=(2, 2, 2, 2), num_init_features=16)
    _vision("googlenet", 64, True, aux_logits=False, init_weights=False)
    _vision("inception_v3", 75, True, aux_logits=False, init_weights=False)
    _from_class(
        "vit",
        "vision_transformer",
        "VisionTransformer",
        32,
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
    )
    for name, block in (("swin", "SwinTransformerBlock"), ("swin_v2", "SwinTransformerBlockV2")):

        def build(block: str = block) -> nn.Module:
            from torchvision.models import swin_transformer as s

            merging = s.PatchMergingV2 if block.endswith("V2") else s.PatchMerging
            return s.SwinTransformer(
                patch_size=[4, 4],
                embed_dim=16,
                depths=[2, 2],
                num_heads=[2, 4],
                window_size=[4, 4],
                stochastic_depth_prob=0.0,
                num_classes=10,
                block=getattr(s, block),
                downsample_layer=merging,
            )

        add(name, "torchvision", build, images(64))

    def convnext() -> nn.Module:
        from torchvision.models.convnext import CNBlockConfig, ConvNeXt

        settings = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, 64, 1), CNBlockConfig(64, None, 1)]
        return comparable(ConvNeXt(settings, num_classes=10, stochastic_depth_prob=0.0))

    add("convnext", "torchvision", convnext, images(32))

    def maxvit() -> nn.Module:
        from torchvision.models import MaxVit

        model = MaxVit(
            input_size=(64, 64),
            stem_channels=16,
            partition_size=4,
            block_channels=[16, 32],
            block_layers=[1, 1],
            head_dim=8,
            stochastic_depth_prob=0.0,
            num_classes=10,
        )
        return comparable(model)

    add("maxvit", "torchvision", maxvit, images(64))

    def segmentation() -> nn.Module:
        from torchvision.models import resnet
        from torchvision.models._utils import IntermediateLayerGetter
        from torchvision.models.segmentation.fcn import FCN, FCNHead

        backbone = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1])
        model = FCN(IntermediateLayerGetter(backbone, {"layer4": "out"}), FCNHead(512, 5))
        return comparable(model)

    def maps(count: int) -> Columns:
        columns = images(32)(count)
        columns["labels"] = torch.randint(0, 5, (count, 32, 32), generator=torch.Generator().manual_seed(2))
        columns["labels"][:, 0] = 255
        return columns

    def pixel_loss(outputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs["out"], labels, ignore_index=255)

    add("fcn", "torchvision", segmentation, maps, loss=pixel_loss)


def _timm(name: str, size: int = 64, slow: bool = False, **arguments: Any) -> None:
    def build() -> nn.Module:
        import timm

        return comparable(timm.create_model(name, pretrained=False, num_classes=10, drop_rate=0.0, **arguments))

    add(f"timm {name}", "timm", build, images(size), slow=slow)


def _timms() -> None:
    _timm("resnet10t")
    _timm("vit_tiny_patch16_224", 32, img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4)
    _timm("deit_tiny_distilled_patch16_224", 32, img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4)
    _timm("mixer_s32_224", 64, img_size=64)
    _timm("convnext_atto", drop_path_rate=0.0)
    _timm("efficientnet_lite0", slow=True)
    _timm("mobilenetv3_small_050")
    _timm("ghostnet_050", slow=True)
    _timm("regnetx_002", slow=True)
    _timm("repvgg_a0", slow=True)
    _timm("legacy_seresnet18", slow=True)


def _hugging(
    name: str,
    cls: str,
    config: str,
    data: Callable[[int], Columns],
    loss: Any = None,
    rate: float = 0.05,
    **settings: Any,
) -> None:
    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**settings)
        for key in ("use_cache",):
            if hasattr(made, key):
                setattr(made, key, False)
        return comparable(getattr(transformers, cls)(made))

    add(name, "transformers", build, data, loss=loss, rate=rate)


def _transformers() -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    text = {**small, "vocab_size": 99, "max_position_embeddings": 40, "num_labels": 3}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    classes = tokens(99, 12, padded=True)
    words = tokens(99, 12, "tokens", padded=True)
    following = tokens(99, 12, "next")
    _hugging("bert", "BertForSequenceClassification", "BertConfig", classes, **text, **none)
    _hugging("bert mlm", "BertForMaskedLM", "BertConfig", words, **text, **none)
    _hugging("roberta", "RobertaForSequenceClassification", "RobertaConfig", classes, **text, **none, pad_token_id=1)
    _hugging("electra", "ElectraForSequenceClassification", "ElectraConfig", classes, **text, **none, embedding_size=16)
    _hugging("albert", "AlbertForSequenceClassification", "AlbertConfig", classes, **text, **none, embedding_size=16)
    _hugging(
        "distilbert",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        classes,
        vocab_size=99,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        num_labels=3,
    )
    gpt2 = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40}
    gpt2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    _hugging("gpt2", "GPT2LMHeadModel", "GPT2Config", following, **gpt2)
    causal = {**small, "vocab_size": 99, "max_position_embeddings": 40}
    _hugging("llama", "LlamaForCausalLM", "LlamaConfig", following, **causal, num_key_value_heads=2)
    _hugging(
        "mistral", "MistralForCausalLM", "MistralConfig", following, **causal, num_key_value_heads=2, sliding_window=8
    )
    _hugging("qwen2", "Qwen2ForCausalLM", "Qwen2Config", following, **causal, num_key_value_heads=2)
    _hugging("qwen3", "Qwen3ForCausalLM", "Qwen3Config", following, **causal, num_key_value_heads=2, head_dim=8)
    _hugging("gemma", "GemmaForCausalLM", "GemmaConfig", following, **causal, num_key_value_heads=2, head_dim=8)
    _hugging("phi", "PhiForCausalLM", "PhiConfig", following, **causal)
    _hugging("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", following, **causal)
    _hugging(
        "opt",
        "OPTForCausalLM",
        "OPTConfig",
        following,
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        max_position_embeddings=40,
        word_embed_proj_dim=32,
        dropout=0.0,
        attention_dropout=0.0,
    )
    t5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    t5 |= {"decoder_start_token_id": 0}
    translated = tokens(99, 12, "tokens", target=7)
    _hugging("t5", "T5ForConditionalGeneration", "T5Config", translated, **t5)
    _hugging(
        "mt5", "MT5ForConditionalGeneration", "MT5Config", translated, rate=0.005, **t5, feed_forward_proj="gated-gelu"
    )

    def pictures(count: int) -> Columns:
        columns = images(32, classes=3)(count)
        return {"pixel_values": columns["x"], "labels": columns["labels"]}

    patches = {**small, **none, "image_size": 32, "patch_size": 8, "num_labels": 3}
    _hugging("hf vit", "ViTForImageClassification", "ViTConfig", pictures, rate=0.005, **patches)
    _hugging("hf deit", "DeiTForImageClassification", "DeiTConfig", pictures, **patches)


class _Recurrent(nn.Module):
    """Embedding, recurrent layers, and classes for each token."""

    def __init__(self, layers: nn.Module, features: int, classes: int, images: bool = False):
        super().__init__()
        self.layers, self.images = layers, images
        self.embed = nn.Conv2d(3, 16, (8, 3), padding=(0, 1)) if images else nn.Embedding(99, 16)
        self.head = nn.Linear(features, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.images:  # columns of an image are its steps, as in text recognition
            x = torch.relu(self.embed(x)).squeeze(2).permute(2, 0, 1)
            return self.head(self.layers(x)[0]).permute(1, 2, 0)
        return self.head(self.layers(self.embed(x))[0]).transpose(1, 2)


def _recurrent() -> None:
    def add_text(name: str, layers: Callable[[], nn.Module], features: int, kind: str, classes: int) -> None:
        add(
            name,
            "torch.nn",
            lambda: _Recurrent(layers(), features, classes),
            tokens(min(99, classes), 12, kind),
            rate=0.05,
        )

    add_text("lstm words", lambda: nn.LSTM(16, 24, 2, batch_first=True), 24, "next", 99)
    add_text("gru tagger", lambda: nn.GRU(16, 12, 2, batch_first=True, bidirectional=True), 24, "tokens", 9)

    def columns(count: int) -> Columns:
        found = images(8)(count)
        found["x"] = found["x"].repeat(1, 1, 1, 2)
        found["labels"] = torch.randint(0, 10, (count, 16), generator=torch.Generator().manual_seed(2))
        return found

    def crnn() -> nn.Module:
        return _Recurrent(nn.LSTM(16, 12, bidirectional=True), 24, 10, images=True)

    add("crnn", "torch.nn", crnn, columns, rate=0.05)


_torchvision()
_timms()
_transformers()
_recurrent()

"""ResNet-50, the paper's backbone, with the parameter names torchvision and timm share, in its two versions.

Version 1 is that of the ResNet paper, version 1.5 torchvision's: they differ in which convolution of a stage carries
the stride. Names and shapes are the same: weights of one load into the other, and give worse features without a word.

It is written here because torchvision and timm are heavy and not in every environment; released checkpoints and weight
files of either library load into it as they are.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

Version = Literal["1", "1.5"]

EXPANSION = 4
"""A block's output has this many times the channels of its inner convolutions."""


class ResidualBlock(nn.Module):
    """1x1, 3x3 and 1x1 convolution around a shortcut; version 1 strides in the first, version 1.5 in the second."""

    def __init__(self, inputs: int, width: int, stride: int, version: Version) -> None:
        super().__init__()
        outputs = width * EXPANSION
        strides = (stride, 1) if version == "1" else (1, stride)
        self.conv1 = nn.Conv2d(inputs, width, 1, strides[0], bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, strides[1], padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.relu(self.bn1(self.conv1(images)))
        hidden = self.relu(self.bn2(self.conv2(hidden)))
        hidden = self.bn3(self.conv3(hidden))
        shortcut = images if self.downsample is None else self.downsample(images)
        output: Tensor = self.relu(hidden + shortcut)
        return output


class ResNet50(nn.Module):
    """Images (N, 3, H, W) to pooled features (N, 2048); no classifier on top."""

    def __init__(self, version: Version = "1.5") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, blocks=3, stride=1, version=version)
        self.layer2 = _stage(256, 128, blocks=4, stride=2, version=version)
        self.layer3 = _stage(512, 256, blocks=6, stride=2, version=version)
        self.layer4 = _stage(1024, 512, blocks=3, stride=2, version=version)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        hidden = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        pooled: Tensor = self.avgpool(hidden)
        return pooled.flatten(1)


def _stage(inputs: int, width: int, *, blocks: int, stride: int, version: Version) -> nn.Sequential:
    """``blocks`` residual blocks, the first of which changes the size."""
    first = ResidualBlock(inputs, width, stride, version)
    rest = (ResidualBlock(width * EXPANSION, width, 1, version) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)

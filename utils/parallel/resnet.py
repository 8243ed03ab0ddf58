"""ResNet-18, the image classifier whose memory lesson 01 counts.

He et al. 2015 (arXiv 1512.03385), table 1, with the names and the initialisation of torchvision's `resnet18`, so that
weights saved there load here. In numbers, without torch: :mod:`utils.theory.resnet`.
"""
from torch import nn

WIDTHS = (64, 128, 256, 512)


def resnet18(classes: int = 1000) -> nn.Module:
    """A new ResNet-18: images (B, 3, H, W) to logits (B, `classes`), H and W at least 32.

    11,689,512 parameters with 1,000 classes. Fresh random weights; call `torch.manual_seed` first to repeat them.
    """
    return ResNet18(classes)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and the shortcut round them: (B, inputs, H, W) to (B, width, H/stride, W/stride)."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += shortcut
        return self.relu(out)


class ResNet18(nn.Module):
    """A stem, four pairs of blocks and a linear head; see `resnet18`."""

    def __init__(self, classes: int = 1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(BasicBlock(inputs, width, stride), BasicBlock(width, width, 1))
            for inputs, width, stride in zip((64, *WIDTHS), WIDTHS, (1, 2, 2, 2)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(WIDTHS[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))

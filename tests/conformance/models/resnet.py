"""ResNet-50 (He et al. 2015, stride in the 3 x 3 convolution) and ResNeXt-50 32x4d (Xie et al. 2016)."""
from torch import nn

from . import Model, calm, classes, images


class Bottleneck(nn.Module):
    def __init__(self, inputs, planes, stride, groups, group_width):
        super().__init__()
        inner = planes * group_width * groups // 64
        outputs = 4 * planes
        self.conv1, self.bn1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                                          nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def resnet50(divide=1, outputs=1000, groups=1, group_width=64):
    width = 64 // divide
    modules = [nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
               nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        planes = width << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            modules.append(Bottleneck(channels, planes, stride, groups, group_width))
            channels = 4 * planes
    return calm(nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)))


MODELS = [
    Model("ResNet-50", lambda: resnet50(divide=4, outputs=100), images(3, 64), classes(100), batch=8,
          learning_rate=0.0001, published=(resnet50, 25_557_032)),
    Model("ResNeXt-50", lambda: resnet50(divide=4, outputs=100, groups=8, group_width=16), images(3, 64), classes(100),
          batch=8, learning_rate=0.0001, published=(lambda: resnet50(groups=32, group_width=4), 25_028_904)),
]

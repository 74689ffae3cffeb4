"""U-Net (Ronneberger et al. 2015) with padded convolutions and batch norm: a class for each pixel."""
import torch
from torch import nn

from . import Model, calm, classes, images


class Double(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                         nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width=64, outputs=2):
        super().__init__()
        widths = [width << i for i in range(5)]
        self.first = Double(3, width)
        self.down = nn.ModuleList(Double(a, b) for a, b in zip(widths, widths[1:]))
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.merge = nn.ModuleList(Double(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, x):
        levels = [self.first(x)]
        for down in self.down:
            levels.append(down(self.pool(levels[-1])))
        y = levels.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            y = merge(torch.cat([levels.pop(), up(y)], 1))
        return self.last(y).permute(0, 2, 3, 1)  # classes last, as our loss takes them


MODELS = [
    Model("U-Net", lambda: calm(UNet(width=8, outputs=3)), images(3, 48), classes(3, 48, 48), batch=2,
          published=(UNet, 31_037_698)),
]

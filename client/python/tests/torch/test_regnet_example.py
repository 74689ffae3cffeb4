"""The example RegNet: torchvision's module, a file, an FFModel."""

from test_core_examples import falls, run


def test_regnet(daemon):
    flags = "-b 8 -e 3 --image 32 --depth 4 --first 8 --slope 8 --samples 32"
    (fall,) = falls(run(daemon, "regnet", flags))
    assert fall < 1

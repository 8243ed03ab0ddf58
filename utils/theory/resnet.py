"""ResNet-18 in numbers: its layers, its parameters, and two ways to count its activations.

The shapes follow He et al. 2015 (arXiv 1512.03385), table 1, as torchvision builds the network.
"""

from dataclasses import dataclass

from .arguments import non_negative, whole_number


@dataclass(frozen=True)
class Convolution:
    """A convolution without bias and the batch norm behind it.

    size: rows (and columns) of the output. relu: whether an in-place ReLU follows the norm directly.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: int
    relu: bool

    @property
    def parameters(self):
        return self.kernel**2 * self.inputs * self.outputs + 2 * self.outputs

    @property
    def input_elements(self):
        return self.inputs * (self.size * self.stride) ** 2

    @property
    def output_elements(self):
        return self.outputs * self.size**2


CLASSES = 1000
WIDTHS = (64, 128, 256, 512)


def resnet18_convolutions(image_size=224):
    """The 20 convolutions of ResNet-18 for square images; `image_size` must be a multiple of 32."""
    if whole_number("image_size", image_size, minimum=32) % 32:
        raise ValueError(f"image_size must be a multiple of 32, but {image_size!r} was given.")
    convolutions = [Convolution(3, 64, 7, 2, image_size // 2, relu=True)]
    inputs, size = 64, image_size // 4
    for width in WIDTHS:
        for block in range(2):
            stride = 2 if block == 0 and width != inputs else 1
            size //= stride
            convolutions.append(Convolution(inputs, width, 3, stride, size, relu=True))
            convolutions.append(Convolution(width, width, 3, 1, size, relu=False))
            if stride == 2:
                convolutions.append(Convolution(inputs, width, 1, stride, size, relu=False))
            inputs = width
    return convolutions


def resnet18_parameters():
    """Ψ of ResNet-18 with 1000 classes.

    >>> resnet18_parameters()
    11689512
    """
    return sum(layer.parameters for layer in resnet18_convolutions()) + (WIDTHS[-1] + 1) * CLASSES


def resnet18_output_bytes(batch=1, image_size=224):
    """Bytes of every convolution's and norm's fp32 output, and the logits: "forward/backward pass size".

    Model summaries print this number (39.75 MB per image), doubled for the backward pass or not. It is
    not what training holds: an in-place ReLU adds nothing, but the norm's output that it overwrites counts.
    """
    elements = sum(2 * layer.output_elements for layer in resnet18_convolutions(image_size)) + CLASSES
    return 4 * whole_number("batch", batch) * elements


def resnet18_saved_bytes(batch=1, image_size=224):
    """Bytes of the fp32 tensors that autograd keeps for the backward pass, each counted once.

    A convolution keeps its input, a norm keeps its own input; a ReLU in place keeps its output, which is
    the next convolution's input; the max-pool keeps its indices (int64); the linear layer its input.
    """
    convolutions = resnet18_convolutions(image_size)
    norm_inputs = sum(layer.output_elements for layer in convolutions)
    stem, *rest = convolutions
    relu_outputs = stem.output_elements + sum(layer.output_elements for layer in rest if layer.relu)
    block_outputs = sum(2 * width * (image_size // 4 // 2**i) ** 2 for i, width in enumerate(WIDTHS))
    pooled = stem.output_elements // 4
    elements = stem.input_elements + norm_inputs + relu_outputs + pooled + block_outputs + WIDTHS[-1]
    return whole_number("batch", batch) * (4 * elements + 8 * pooled)


def resnet18_summary_bytes(batch, image_size=224, copies=4):
    """Bytes by an often quoted addition: outputs twice, input images, 4 fp32 copies of the parameters.

    20.85 GB for 512 images. It counts outputs that nobody keeps, and the copies are no activations:
    compare `resnet18_saved_bytes`.
    """
    non_negative("copies", copies)
    images = 4 * 3 * whole_number("image_size", image_size) ** 2 * whole_number("batch", batch)
    return 2 * resnet18_output_bytes(batch, image_size) + images + 4 * copies * resnet18_parameters()

"""The course's subject as torch code: what a lesson builds by hand and later lessons reuse.

collectives  all-reduce written with sends and receives, one function per algorithm
data         data parallelism: parameter broadcast, gradient averaging, buckets, the parameter server
activations  the bytes that autograd keeps for the backward pass
resnet       the image classifier whose memory lesson 01 counts
"""
